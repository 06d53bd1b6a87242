"""items.redrive and items.delete: return or delete the ready items of a queue that meet a condition, as a job.

A redrive imports a batch into the queue in which its items died, and deletes it here when that is durable. The other
queue remembers the items by their ids here, for a month. So a job that was killed in between starts again from the
beginning and moves nothing twice. Items that come after the start of the job are not part of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from querator import ids
from querator.daemon.access import Caller
from querator.daemon.admin import check_readable, remove_items
from querator.daemon.bulk import Importer, check_condition, matching_rows
from querator.daemon.engine import change, read
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs.runner import Kind
from querator.daemon.queue import Logical, Partition, lifecycle
from querator.daemon.registry import Calls, CallsByCaller, Registry
from querator.errors import InvalidRequest, RequestFailed, RetryRequest
from querator.items import Job
from querator.wire import messages

if TYPE_CHECKING:
    import pyarrow as pa

REDRIVE, DELETE = "redrive", "delete items"
CONTENT = ("id", "kind", "reference", "encoding", "payload", "history")
WAIT_SECONDS = 0.5
SAVE_SECONDS = 5.0
UNKNOWN_ORIGIN = "origin unknown"


# -- calls


async def redrive(registry: Registry, request: messages.ItemsRedriveRequest, caller: Caller) -> messages.JobReply:
    """The job keeps the caller's patterns: it sends items only to queues that the caller may operate."""
    if request.to:
        if request.to == request.queue_name:
            raise InvalidRequest("to is invalid; a queue cannot be redriven into itself")
        registry.find(request.to)
    return await _start(
        registry,
        REDRIVE,
        request.queue_name,
        request.where,
        request.expected,
        to=request.to,
        queues=list(caller.patterns),
    )


async def delete(registry: Registry, request: messages.ItemsDeleteRequest) -> messages.JobReply:
    if not request.where.strip():
        raise InvalidRequest("where is invalid; it cannot be empty, 'queue.clear' deletes everything")
    return await _start(registry, DELETE, request.queue_name, request.where, request.expected)


async def _start(
    registry: Registry, kind: str, queue: str, where: str, expected: int, **details: Any
) -> messages.JobReply:
    logical = registry.find(queue)
    check_readable(kind, logical.partitions)
    if where.strip():
        await check_condition(registry, where)
    upto = [partition.contents.last_seq for partition in logical.partitions]
    numbers = [partition.number for partition in logical.partitions]
    job = await registry.jobs.start(kind, queue, numbers, where=where.strip(), upto=upto, expected=expected, **details)
    return messages.JobReply(job_id=job.job_id)


# -- jobs


async def _redrive(registry: Registry, job: Job) -> None:
    import pyarrow as pa

    importers: dict[str, Importer] = {}
    stayed: Counter[str] = Counter()
    async for logical, partition, rows in _tables(registry, job, CONTENT):
        targets = [job.details["to"] or _origin(history) for history in rows.column("history").to_pylist()]
        for target in dict.fromkeys(targets):
            some = rows.filter(pa.array([one == target for one in targets]))
            if target and not any(fnmatchcase(target, pattern) for pattern in job.details["queues"]):
                stayed["the caller may not send to their origin"] += some.num_rows
                continue
            if target not in registry.logicals or target == job.queue:
                stayed[f"there is no queue '{target}'" if target else UNKNOWN_ORIGIN] += some.num_rows
                continue
            if target not in importers:
                importers[target] = Importer(registry, registry.logicals[target])
            imported = some.rename_columns({"id": "source_id"})
            await _until_possible(registry, job, partial(importers[target].add, imported))
            failpoint("redrive.imported")
            texts = some.column("id").to_pylist()
            await _until_possible(registry, job, partial(_remove, logical, partition, texts))
            job.done += len(texts)
    if stayed:
        reasons = ", ".join(f"{count} ({reason})" for reason, count in stayed.most_common())
        raise RequestFailed(f"redrove {job.done} items, these stayed: {reasons}")


async def _delete(registry: Registry, job: Job) -> None:
    async for logical, partition, rows in _tables(registry, job, ("id",)):
        texts = rows.column("id").to_pylist()
        await _until_possible(registry, job, partial(_remove, logical, partition, texts))
        job.done += len(texts)


async def _tables(
    registry: Registry, job: Job, columns: Sequence[str]
) -> AsyncIterator[tuple[Logical, Partition, pa.Table]]:
    """The ready items that meet the job's condition. Sleeps as long as each table took, so that clients get half of the
    loop."""
    logical = registry.logicals[job.queue]
    job.total = max(job.details["expected"], job.done)
    saved = time.monotonic()
    for partition, upto in zip(list(logical.partitions), job.details["upto"], strict=False):
        async for rows in matching_rows(registry, logical, partition, columns, job.details["where"], upto):
            started = time.monotonic()
            registry.jobs.check(job)
            still = await _still_ready(logical, partition, rows)
            if still.num_rows:
                yield logical, partition, still
            if time.monotonic() - saved > SAVE_SECONDS:
                await registry.jobs.save(job)
                saved = time.monotonic()
            await asyncio.sleep(time.monotonic() - started)


async def _still_ready(logical: Logical, partition: Partition, rows: pa.Table) -> pa.Table:
    """The rows without items that were leased, completed or deleted since they were read."""
    import pyarrow as pa

    seqs = [ids.decode(text).seq for text in rows.column("id").to_pylist()]
    found = await read(logical, partition, lambda store: store.find(seqs, payloads=False))
    return rows.filter(pa.array([(one := found.get(seq)) is not None and one.state == "ready" for seq in seqs]))


async def _remove(logical: Logical, partition: Partition, texts: Sequence[str]) -> None:
    wanted = {ids.decode(text).seq: text for text in texts}
    found = await read(logical, partition, lambda store: store.find(list(wanted), payloads=False))
    await change(logical, [partition], lambda now_us: remove_items(partition, wanted, found))


async def _until_possible(registry: Registry, job: Job, step: Callable[[], Awaitable[None]]) -> None:
    """Repeats a step while a partition cannot be used, until the job is cancelled. The job's reason says what it waits
    for.
    """
    while True:
        try:
            await step()
        except RetryRequest as error:
            job.reason = f"waits: {error.message}"
            registry.jobs.check(job)
            await asyncio.sleep(WAIT_SECONDS)
        else:
            job.reason = ""
            return


def _origin(history: str) -> str:
    """The queue in which an item died last; empty if its history does not say."""
    events = lifecycle.events(history.encode())
    return next((event.queue_name for event in reversed(events) if event.queue_name), "")


KINDS = {REDRIVE: Kind(_redrive), DELETE: Kind(_delete)}
CALLS: Calls = {"items.delete": delete}
CALLS_BY_CALLER: CallsByCaller = {"items.redrive": redrive}
