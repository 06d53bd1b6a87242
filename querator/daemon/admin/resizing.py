"""More or fewer partitions for a queue in use, as `requested_partitions` of queues.update asks.

Growing is done when the update is answered. Shrinking is a job, which is only started here.
"""

from __future__ import annotations

from querator.daemon.admin import partition_files
from querator.daemon.admin.partition_access import check_free, check_readable
from querator.daemon.engine import change
from querator.daemon.failpoints import failpoint
from querator.daemon.queue import Logical
from querator.daemon.registry import Registry
from querator.errors import Conflict, InvalidRequest
from querator.items import Queue

RESIZE = "resize"


def check(registry: Registry, logical: Logical, count: int) -> None:
    """Refuses a resize that cannot begin now."""
    name = logical.queue.name
    for job in registry.jobs.running():
        if job.queue == name and job.kind == RESIZE:
            raise Conflict(
                f"partition is busy; job '{job.job_id}' removes partitions of queue '{name}',"
                " wait for its end or cancel it"
            )
    leaving = logical.partitions[count:]
    check_free(registry, leaving)
    check_readable("remove", leaving)  # items of an unreadable partition cannot be moved
    if leaving and not any(partition.allows.storage for partition in logical.partitions[:count]):
        raise InvalidRequest(
            f"cannot remove partition; of queue '{name}' no partition that stays is open, reload one first"
        )


async def grow(registry: Registry, logical: Logical, queue: Queue) -> None:
    """Saves the queue's settings together with its new partitions, and opens these."""
    first = len(logical.partitions)
    placements = partition_files.place(registry, queue.name, queue.requested_partitions - first, first)
    stores = await partition_files.create_files(registry, placements)
    failpoint("resize.created")
    await registry.blocking(registry.catalog.grow, queue, placements)
    failpoint("resize.recorded")

    def run(now_us: int) -> None:
        for placement, store in zip(placements, stores, strict=True):
            logical.add_partition(placement, store, now_us)

    await change(logical, [], run)


async def shrink(registry: Registry, logical: Logical, count: int) -> None:
    """Starts the job that shrinks the queue to `count` partitions."""
    numbers = list(range(count, len(logical.partitions)))
    await registry.jobs.start(RESIZE, logical.queue.name, numbers, to=count)


async def resume_shrinking(registry: Registry) -> None:
    """At the start, shrinks queues whose new partition count was saved before a crash, but whose job was not."""
    for logical in registry.logicals.values():
        wanted = logical.queue.requested_partitions
        is_shrinking = any(job.queue == logical.queue.name and job.kind == RESIZE for job in registry.jobs.running())
        if wanted < len(logical.partitions) and not is_shrinking:
            await shrink(registry, logical, wanted)
