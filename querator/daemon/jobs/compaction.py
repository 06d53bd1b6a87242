"""partitions.compact: frees the space of deleted rows in a file. Also runs by itself when most of a file is free.

The partition keeps working meanwhile: commits go to the journal, and only reads of the file wait.
"""

from __future__ import annotations

import asyncio
import logging

from querator import limits
from querator.daemon.admin import file_sizes
from querator.daemon.engine import at_store
from querator.daemon.jobs.runner import Kind, start_on_files
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
    return await start_on_files(registry, COMPACT, request, "compact")


async def _run(registry: Registry, job: Job) -> None:
    """Compacts the partitions; `done` and `total` count partitions. After a restart it starts over, which is
    harmless."""
    logical = registry.logicals[job.queue]
    job.done, job.total = 0, len(job.details["partitions"])
    for number in job.details["partitions"]:
        registry.jobs.check(job)
        job.partition = number
        await at_store(logical, logical.partitions[number], lambda store: store.compact())
        job.done += 1


async def watch_free_space(registry: Registry) -> None:
    """Checks large files at intervals for as long as the daemon runs."""
    while True:
        await asyncio.sleep(COMPACT_CHECK_SECONDS)
        for logical in list(registry.logicals.values()):
            for partition in list(logical.partitions):
                try:
                    await _look(registry, partition)
                except (QueratorError, StorageError) as error:
                    # Only logged: a faulty partition goes into error by itself.
                    extra = {"queue": logical.queue.name, "partition": partition.number, "reason": str(error)}
                    log.warning("partition cannot be compacted", extra=extra)


async def _look(registry: Registry, partition: Partition) -> None:
    placement = partition.placement
    (size,) = await registry.blocking(file_sizes, registry, [placement])
    logical = registry.logicals.get(placement.queue)
    if logical is None or size < limits.COMPACT_FILE_BYTES_MIN or not partition.allows.storage:
        return
    if registry.jobs.on(placement.queue, placement.number):
        return
    if await at_store(logical, partition, _free_share) >= COMPACT_FREE_SHARE_MIN:
        await registry.jobs.start(COMPACT, placement.queue, [partition.number])


def _free_share(store: Store) -> float:
    # DuckDB knows which blocks are free only after a checkpoint.
    store.flush()
    store.checkpoint(force=True)
    return store.free_share()


KINDS = {COMPACT: Kind(_run)}
CALLS = {"partitions.compact": compact}
