"""partitions.verify: reads every row of a partition and compares the rows with the daemon's counters."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from querator.daemon.engine import at_store
from querator.daemon.jobs.runner import Kind, start_on_files
from querator.daemon.queue import Change, Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import FileSnapshot, SnapshotLost, StorageError, Store
from querator.errors import QueratorError, RequestFailed
from querator.items import Job
from querator.limits import VERIFY_TRIES_MAX
from querator.wire import messages

VERIFY = "verify"


class Believed(NamedTuple):
    """A partition's counters at the moment when `record` was its last durable batch."""

    record: int
    items: int
    leases: int
    scheduled: int
    created_sum: int


async def verify(registry: Registry, request: messages.PartitionsRequest) -> messages.JobReply:
    return await start_on_files(registry, VERIFY, request, "verify")


async def _run(registry: Registry, job: Job) -> None:
    logical = registry.logicals[job.queue]
    partitions = [logical.partitions[number] for number in job.details["partitions"]]
    job.done, job.total = 0, sum(partition.counts.stored for partition in partitions)
    wrong: list[str] = []
    for partition in partitions:
        registry.jobs.check(job)
        job.partition = partition.number
        job.done += await _check(registry, logical, partition, wrong)
    if wrong:
        raise RequestFailed("; ".join(wrong))


async def _check(registry: Registry, logical: Logical, partition: Partition, wrong: list[str]) -> int:
    """Adds one partition's defects to `wrong`. Returns its number of items."""
    while True:
        believed, snapshot = await _at_one_moment(logical, partition)
        reading = asyncio.ensure_future(registry.blocking(_compare, believed, snapshot))
        try:
            reasons = await asyncio.shield(reading)
        except SnapshotLost:
            continue
        wrong += [f"partition '{partition.number}' {reason}" for reason in reasons]
        return believed.items + believed.scheduled


async def _at_one_moment(logical: Logical, partition: Partition) -> tuple[Believed, FileSnapshot]:
    """Returns counters and a snapshot of the file from the same moment, while the queue keeps working."""
    for _ in range(VERIFY_TRIES_MAX):
        await at_store(logical, partition, lambda store: store.flush())
        believed = await _count(logical, partition)
        snapshot = await at_store(logical, partition, _apply)
        if believed is not None and snapshot.applied == believed.record:
            return believed, snapshot
        snapshot.close()
    raise RequestFailed(f"partition '{partition.number}' changes too fast to be compared, try again")


async def _count(logical: Logical, partition: Partition) -> Believed | None:
    """Counts a partition between two passes, when memory holds exactly what is durable. Freezes its batches, so that an
    apply brings the file to the same moment. Returns None if the next pass came first."""
    loop = asyncio.get_running_loop()
    counted: asyncio.Future[Believed | None] = loop.create_future()

    def count() -> None:
        store = partition.store
        if counted.done():
            return
        if store is None:
            counted.set_exception(RequestFailed(f"partition '{partition.number}' failed"))
            return
        if store.has_staged or partition.contents.has_changes:
            counted.set_result(None)
            return
        store.freeze()
        counts = partition.counts
        counted.set_result(
            Believed(store.record_written, counts.total, counts.leased, counts.scheduled, counts.created_sum)
        )

    def respond(result: Any) -> None:
        if isinstance(result, QueratorError):
            if not counted.done():
                counted.set_exception(result)
            return
        # Changes of this pass itself, such as items that came due, count as durable only after all answers.
        loop.call_soon(count)

    logical.submit(Change(respond, [partition], lambda now_us: None))
    return await counted


def _apply(store: Store) -> FileSnapshot:
    store.apply()
    return store.snapshot()


def _compare(believed: Believed, snapshot: FileSnapshot) -> list[str]:
    """Blocking. Returns every difference and defect."""
    try:
        audit = snapshot.audit()
    except SnapshotLost:
        raise
    except StorageError as error:
        return [str(error)]
    finally:
        snapshot.close()
    found = {
        "items": (audit.rows["items"], believed.items),
        "leases": (audit.rows["leases"], believed.leases),
        "scheduled items": (audit.rows["scheduled"], believed.scheduled),
        "microseconds in the sum of all times of creation": (audit.created_sum, believed.created_sum),
    }
    wrong = [f"holds {stored} {what}, not {count}" for what, (stored, count) in found.items() if stored != count]
    if audit.orphaned_leases:
        wrong.append(f"has {audit.orphaned_leases} leases of items that are not there")
    if audit.faults:
        wrong.append(f"has rows that a restore would refuse: {', '.join(audit.faults)}")
    return wrong


KINDS = {VERIFY: Kind(_run)}
CALLS = {"partitions.verify": verify}
