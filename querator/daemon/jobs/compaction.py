"""partitions.compact: gives back the room that deleted rows have left in a file. By itself where that is most of it.

The partition goes on meanwhile: what is committed is in the journal, and only reading from the file waits.
"""

from __future__ import annotations

import asyncio
import logging

from querator import limits
from querator.daemon.admin import partition_calls
from querator.daemon.engine import at_store
from querator.daemon.jobs.runner import Kind
from querator.daemon.queue import Partition
from querator.daemon.registry import Registry
from querator.daemon.store import StorageError, Store
from querator.errors import QueratorError
from querator.items import Job
from querator.limits import COMPACT_CHECK_SECONDS, COMPACT_FREE_SHARE_MIN
from querator.wire import messages

log = logging.getLogger("querator.maintenance")

COMPACT = "compact"


async def compact(registry: Registry, request: messages.PartitionsRequest) -> messages.JobReply:
    logical = registry.find(request.queue_name)
    partitions = partition_calls.chosen(registry, logical, request.partitions)
    partition_calls.check_readable("compact", partitions)
    job = await registry.jobs.start(COMPACT, logical.queue.name, [partition.number for partition in partitions])
    return messages.JobReply(job_id=job.job_id)


async def _run(registry: Registry, job: Job) -> None:
    """`done` and `total` are partitions. Repeating a compaction does no harm, so it simply starts over."""
    logical = registry.logicals[job.queue]
    job.done, job.total = 0, len(job.details["partitions"])
    for number in job.details["partitions"]:
        registry.jobs.check(job)
        job.partition = number
        await at_store(logical, logical.partitions[number], lambda store: store.compact())
        job.done += 1


async def watch(registry: Registry) -> None:
    """Looks at large files now and then, for as long as the daemon runs."""
    while True:
        await asyncio.sleep(COMPACT_CHECK_SECONDS)
        for logical in list(registry.logicals.values()):
            for partition in list(logical.partitions):
                try:
                    await _look(registry, partition)
                except (QueratorError, StorageError) as error:
                    # Whatever it is, it concerns others more: the partition fails by itself where it must.
                    extra = {"queue": logical.queue.name, "partition": partition.number, "reason": str(error)}
                    log.warning("partition cannot be compacted", extra=extra)


async def _look(registry: Registry, partition: Partition) -> None:
    placement = partition.placement
    (size,) = await registry.blocking(partition_calls.sizes, registry, [placement])
    logical = registry.logicals.get(placement.queue)
    if logical is None or size < limits.COMPACT_FILE_BYTES_MIN or not partition.allows.storage:
        return
    if registry.jobs.on(placement.queue, placement.number):
        return
    if await at_store(logical, partition, _free_share) >= COMPACT_FREE_SHARE_MIN:
        await registry.jobs.start(COMPACT, placement.queue, [partition.number])


def _free_share(store: Store) -> float:
    # Only a checkpoint tells which blocks the rows that were deleted have left free.
    store.flush()
    store.checkpoint(force=True)
    return store.free_share()


KINDS = {COMPACT: Kind(_run)}
CALLS = {"partitions.compact": compact}
