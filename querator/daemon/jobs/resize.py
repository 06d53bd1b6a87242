"""The job that removes partitions from a queue in use, which `admin/resizing.py` starts.

The partitions with the highest numbers take no more items. Their items move into the other partitions
(`into_partition.py`), and each partition is removed when it is empty. A partition that stays takes over the request ids
and lost leases that a removed one remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from functools import partial

import msgspec

from querator import ids
from querator.daemon import logs
from querator.daemon.admin import RESIZE, closed_partition, delete_leftovers, file_name, request_ids_in_file
from querator.daemon.engine import change
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs.into_partition import Mover
from querator.daemon.jobs.runner import Kind
from querator.daemon.queue import LOST_PREFIX, Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import copies
from querator.errors import RetryRequest
from querator.items import Job
from querator.limits import JOB_POLL_SECONDS, REQUEST_IDS_PAGE


def _prepare(registry: Registry, logical: Logical, job: Job) -> None:
    for partition in logical.partitions[job.details["to"] :]:
        partition.begin_leaving()


async def _run(registry: Registry, job: Job) -> None:
    logical = registry.logicals[job.queue]
    count = job.details["to"]
    movers = {
        partition: Mover(registry, job, partition, lambda: logical.partitions[:count])
        for partition in logical.partitions[count:]
    }
    for mover in movers.values():
        await mover.begin()
    try:
        while movers:
            registry.jobs.check(job)
            busy = False
            for mover in reversed(movers.values()):
                busy = await mover.move_chunk() or busy
            last = logical.partitions[-1]
            if last.is_empty and last.store is not None and await _remove(registry, logical, last, job):
                del movers[last]
            elif not busy:
                await asyncio.sleep(JOB_POLL_SECONDS)
            _tell_progress(job, movers)
    finally:
        if movers and not registry.stopping:
            for mover in movers.values():
                await mover.end()
            await _keep(registry, logical)


def _tell_progress(job: Job, movers: dict[Partition, Mover]) -> None:
    job.partition = max([partition.number for partition in movers], default=job.partition)
    left = sum(partition.counts.stored for partition in movers)
    job.total = max(job.total, left)
    job.done = job.total - left


async def _keep(registry: Registry, logical: Logical) -> None:
    """After a cancelled shrink, saves the number of partitions that are left."""
    async with registry.changing:
        queue = msgspec.structs.replace(logical.queue, requested_partitions=len(logical.partitions))
        await registry.blocking(registry.catalog.save_queues, [queue])
        registry.queues[queue.name] = queue
        logical.configure(queue)


async def _remove(registry: Registry, logical: Logical, partition: Partition, job: Job) -> bool:
    """Removes the last partition, which is empty. Returns False if it got items meanwhile."""
    async with closed_partition(registry, logical, partition, "its removal") as wrong:
        if wrong or not partition.is_empty:
            return False
        failpoint("resize.emptied")
        if not await _take_over(registry, logical, logical.partitions[: job.details["to"]], partition):
            return False
        failpoint("resize.remembered")
        async with registry.changing:
            registry.jobs.check(job)
            await registry.blocking(registry.catalog.shrink, partition.placement)
            failpoint("resize.removed")
            await change(logical, [], lambda now_us: logical.remove_partition(partition))
            logs.changed("partition removed", logical.queue.name, [partition.number], {"job": job.job_id})
            await delete_leftovers(registry)
    return True


async def _take_over(registry: Registry, logical: Logical, remaining: Sequence[Partition], leaving: Partition) -> bool:
    """Copies the keys of a closed file to a partition that stays. Returns False if no partition can take them."""
    keeper = next((partition for partition in remaining if partition.allows.storage), None)
    if keeper is None:
        return False
    pages = _remembered(registry, leaving)
    try:
        while page := await registry.blocking(next, pages, None):
            await change(logical, [keeper], partial(_remember, logical, keeper, page))
    except RetryRequest:
        # The error keeps `pages` alive, and `pages` keeps the file attached, which then could not be opened again.
        await registry.blocking(pages.close)
        return False
    return True


def _remember(logical: Logical, keeper: Partition, page: list[tuple[str, int]], now_us: int) -> None:
    logical.remember(keeper, [key for key, _ in page], [until for _, until in page])


def _remembered(registry: Registry, partition: Partition) -> Generator[list[tuple[str, int]]]:
    """Blocking. Yields the keys that a closed file remembers, with their expiry. A lost lease is a key, too."""
    placement = partition.placement
    yield from request_ids_in_file(registry, placement)
    path = registry.storages[placement.storage].directory / file_name(placement)
    with copies.inspected(path) as cursor:
        rows = cursor.execute(
            "SELECT seq, epoch_us(until) FROM file.lost WHERE epoch_us(until) >= ?", [registry.clock.now_us()]
        )
        while page := rows.fetchmany(REQUEST_IDS_PAGE):
            texts = ids.encode_many(partition.prefix, [seq for seq, _ in page])
            yield [(LOST_PREFIX + text, until) for text, (_, until) in zip(texts, page, strict=True)]


KINDS = {RESIZE: Kind(_run, _prepare)}
