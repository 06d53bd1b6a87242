"""More or fewer partitions for a queue that is in use: what `requested_partitions` of queues.update asks for.

Growing is done when update answers. Shrinking is a job: the partitions with the highest numbers take no items any
more, what they hold is moved into the rest (`transfer.py`), and each of them is removed when it is empty. What it
remembered (request ids, lost leases) stays known: a partition that remains takes it over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from querator import ids
from querator.daemon import logs
from querator.daemon.admin import partition_calls, queue_calls
from querator.daemon.admin.item_calls import change
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs.into_partition import Mover
from querator.daemon.jobs.runner import Kind
from querator.daemon.queue.logical import Logical
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.requests import LOST_PREFIX
from querator.daemon.store import copies
from querator.errors import Conflict, InvalidRequest, RetryRequest
from querator.items import Job, Placement, Queue
from querator.limits import JOB_POLL_SECONDS, REQUEST_IDS_PAGE

if TYPE_CHECKING:
    from querator.daemon.service import Service

RESIZE = "resize"


def check(service: Service, logical: Logical, count: int) -> None:
    """Refuses a resize that cannot begin now."""
    name = logical.queue.name
    for job in service.jobs.running():
        if job.queue == name and job.kind == RESIZE:
            raise Conflict(
                f"partition is busy; job '{job.job_id}' removes partitions of queue '{name}',"
                " wait for its end or cancel it"
            )
    leaving = logical.partitions[count:]
    partition_calls.check_free(service, leaving)
    partition_calls.check_readable("remove", leaving)  # what cannot be read cannot be moved into the others
    if leaving and not any(partition.allows.storage for partition in logical.partitions[:count]):
        raise InvalidRequest(
            f"cannot remove partition; of queue '{name}' no partition that stays is open, reload one first"
        )


# -- more


async def grow(service: Service, logical: Logical, queue: Queue) -> None:
    """Records the queue's settings together with its new partitions, and opens them."""
    first = len(logical.partitions)
    placements = queue_calls.place(service, queue.name, queue.requested_partitions - first, first)
    stores = await queue_calls.create_files(service, placements)
    failpoint("resize.created")
    await service.blocking(service.catalog.grow, queue, placements)
    failpoint("resize.recorded")

    def run(now_us: int) -> None:
        for placement, store in zip(placements, stores, strict=True):
            logical.add_partition(placement, store, now_us)

    await change(logical, [], run)


# -- fewer


async def shrink(service: Service, logical: Logical, count: int) -> None:
    """Sets the job going that leaves so many partitions."""
    numbers = list(range(count, len(logical.partitions)))
    await service.jobs.start(RESIZE, logical.queue.name, numbers, to=count)


async def catch_up(service: Service) -> None:
    """At a start: a queue that was to shrink when the process ended before it could record the job."""
    for logical in service.logicals.values():
        wanted = logical.queue.requested_partitions
        is_shrinking = any(job.queue == logical.queue.name and job.kind == RESIZE for job in service.jobs.running())
        if wanted < len(logical.partitions) and not is_shrinking:
            await shrink(service, logical, wanted)


def _prepare(service: Service, logical: Logical, job: Job) -> None:
    for partition in logical.partitions[job.details["to"] :]:
        partition.begin_leaving()


async def _run(service: Service, job: Job) -> None:
    logical = service.logicals[job.queue]
    count = job.details["to"]
    movers = {
        partition: Mover(service, job, partition, lambda: logical.partitions[:count])
        for partition in logical.partitions[count:]
    }
    for mover in movers.values():
        await mover.begin()
    try:
        while movers:
            service.jobs.check(job)
            busy = False
            for mover in reversed(movers.values()):
                busy = await mover.move_chunk() or busy
            last = logical.partitions[-1]
            if last.drained and last.store is not None and await _remove(service, logical, last, job):
                del movers[last]
            elif not busy:
                await asyncio.sleep(JOB_POLL_SECONDS)
            _tell_progress(job, movers)
    finally:
        if movers and not service.stopping:
            for mover in movers.values():
                await mover.end()
            await _keep(service, logical)


def _tell_progress(job: Job, movers: dict[Partition, Mover]) -> None:
    job.partition = max([partition.number for partition in movers], default=job.partition)
    left = sum(partition.total + partition.scheduled_count for partition in movers)
    job.total = max(job.total, left)
    job.done = job.total - left


async def _keep(service: Service, logical: Logical) -> None:
    """Given up: the queue has as many partitions as are left."""
    async with service.changing:
        queue = msgspec.structs.replace(logical.queue, requested_partitions=len(logical.partitions))
        await service.blocking(service.catalog.save_queues, [queue])
        service.queues[queue.name] = queue
        logical.configure(queue)


async def _remove(service: Service, logical: Logical, partition: Partition, job: Job) -> bool:
    """Removes the last partition, which is empty. False if something got into it meanwhile."""
    async with partition_calls.closed(service, logical, partition, "its removal") as wrong:
        if wrong or not partition.drained:
            return False
        failpoint("resize.emptied")
        if not await _take_over(service, logical, logical.partitions[: job.details["to"]], partition.placement):
            return False
        failpoint("resize.remembered")
        async with service.changing:
            service.jobs.check(job)
            await service.blocking(service.catalog.shrink, partition.placement)
            failpoint("resize.removed")
            await change(logical, [], lambda now_us: logical.remove_partition(partition))
            logs.changed("partition removed", logical.queue.name, [partition.number], {"job": job.job_id})
            await queue_calls.delete_leftovers(service)
    return True


async def _take_over(service: Service, logical: Logical, remaining: list[Partition], placement: Placement) -> bool:
    """A partition that remains remembers what a closed file does; False if none can."""
    keeper = next((partition for partition in remaining if partition.allows.storage), None)
    if keeper is None:
        return False
    pages = _remembered(service, placement)
    try:
        while page := await service.blocking(next, pages, None):
            await change(logical, [keeper], partial(_remember, logical, keeper, page))
    except RetryRequest:
        return False
    return True


def _remember(logical: Logical, keeper: Partition, page: list[tuple[str, int]], now_us: int) -> None:
    logical.remember(keeper, [key for key, _ in page], [until for _, until in page])


def _remembered(service: Service, placement: Placement) -> Iterator[list[tuple[str, int]]]:
    """Blocking: the keys that a closed file remembers, and until when. A lost lease is remembered as a key, too."""
    yield from partition_calls.request_ids_in(service, placement)
    prefix = int(placement.uuid.replace("-", "")[:16], 16)
    path = service.storages[placement.storage].directory / partition_calls.file_name(placement)
    with copies.inspected(path) as cursor:
        rows = cursor.execute(
            "SELECT seq, epoch_us(until) FROM file.lost WHERE epoch_us(until) >= ?", [service.clock.now_us()]
        )
        while page := rows.fetchmany(REQUEST_IDS_PAGE):
            texts = ids.encode_many(prefix, [seq for seq, _ in page])
            yield [(LOST_PREFIX + text, until) for text, (_, until) in zip(texts, page, strict=True)]


KINDS = {RESIZE: Kind(_run, _prepare)}
