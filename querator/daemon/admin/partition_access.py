"""How calls and jobs use partitions: choose them, refuse busy ones, close one for a while, and read a closed file."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from querator.daemon.admin.partition_files import file_name
from querator.daemon.engine import change, close_partition, open_partition
from querator.daemon.queue import Event, Logical, Partition, Standing, states
from querator.daemon.registry import Registry
from querator.daemon.store import Storage, StorageError, copies
from querator.errors import Conflict, RequestFailed
from querator.items import Placement, State
from querator.limits import REQUEST_IDS_PAGE


def chosen_partitions(registry: Registry, logical: Logical, numbers: Sequence[int]) -> list[Partition]:
    """The partitions that a request names, each once; none named means all."""
    if not numbers:
        return list(logical.partitions)
    return [registry.partition(logical, number) for number in dict.fromkeys(numbers)]


def check_free(registry: Registry, partitions: Sequence[Partition]) -> None:
    """Refuses if a job works on one of the partitions, or if one is closed already."""
    check_open(partitions)
    if partitions:
        registry.jobs.check_free(partitions[0].placement.queue, [partition.number for partition in partitions])


def check_open(partitions: Sequence[Partition]) -> None:
    """Refuses if one of the partitions is closed for a job or a reload."""
    for partition in partitions:
        if partition.closed_for:
            raise Conflict(
                f"partition is busy; partition '{partition.number}' is closed for {partition.closed_for},"
                " try again when that has ended"
            )


def check_readable(verb: str, partitions: Sequence[Partition]) -> None:
    """Refuses if the file of one of the partitions is not open."""
    for partition in partitions:
        if not partition.allows.storage:
            raise states.refusal(verb, partition.number, partition.state)


async def usable_storage(registry: Registry, name: str) -> Storage:
    """Returns the storage. Refuses if it does not exist or cannot be opened."""
    try:
        return await registry.blocking(registry.storages.opened, name)
    except StorageError as error:
        raise RequestFailed(str(error)) from error


def request_ids_in_file(registry: Registry, placement: Placement) -> Iterator[list[tuple[str, int]]]:
    """Blocking. Yields pages of the request ids that a closed file remembers, with their expiry."""
    path = registry.storages.opened(placement.storage).directory / file_name(placement)
    query = "SELECT request_id, epoch_us(until) FROM file.requests WHERE epoch_us(until) >= ?"
    with copies.inspected(path) as cursor:
        rows = cursor.execute(query, [registry.clock.now_us()])
        while page := rows.fetchmany(REQUEST_IDS_PAGE):
            yield page


@contextlib.asynccontextmanager
async def closed_partition(
    registry: Registry, logical: Logical, partition: Partition, reason: str
) -> AsyncIterator[str]:
    """Closes a partition for the time of a block, and then opens it again if it should be open.

    Yields the reason why the file may lack records that the journal has; empty if it lacks none.
    """
    async with registry.altering[logical.queue.name]:
        was_closed = partition.store is None

        def run(now_us: int) -> None:
            partition.keep_closed(reason, now_us)

        await change(logical, [], run)
        wrong = await close_partition(logical, partition)
    try:
        yield wrong or ("it was closed already" if was_closed else "")
    finally:
        if registry.stopping or partition.placement.requested is State.UNAVAILABLE:
            partition.allow_opening()
        else:
            await open_partition(logical, partition)


async def save_state_after_reload(registry: Registry, partition: Partition) -> Placement:
    """Saves the state that a partition has after a reload, and returns its placement."""
    old = partition.placement
    requested = states.after(Event.RELOAD, Standing(old.requested), partition.number).requested
    since = old.since if requested is old.requested else registry.clock.now_us()
    new = msgspec.structs.replace(old, requested=requested, since=since, resume_at=0, reason="")
    if new != old:
        await registry.blocking(registry.catalog.save_placements, [new])
    return new
