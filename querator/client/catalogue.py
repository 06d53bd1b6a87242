"""Every call of the wire contract, and our additions, described as data: path, request, reply.

Nothing here sends anything. `Client` and `AsyncClient` offer each of these functions as a method of the same name
and signature; so there is one list of calls, and two ways to wait for the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from querator import durations, times
from querator.client.attempts import Call
from querator.client.rows import Rows
from querator.limits import NS_PER_SECOND, REASON_BYTES_MAX, US_PER_SECOND
from querator.wire import json as wire_json
from querator.wire import messages as m

M = TypeVar("M", bound=m.Message)

Duration = str | float | timedelta
"""`"1m30s"`, seconds, or a timedelta."""
Time = str | datetime | int
"""RFC 3339 text, a datetime with a time zone, or microseconds since 1970."""
Payload = str | bytes | m.QueueProduceItem
"""A payload alone, or an item with kind, reference, encoding and time."""

LEASE_SLACK: Final = 1.0
REASONS_BYTES_MAX: Final = 100_000
"""The reasons of one retry together, so that its body is not too long for the daemon."""


def duration_text(value: Duration) -> str:
    if isinstance(value, str):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return durations.text(round(seconds * NS_PER_SECOND))


def time_us(value: Time) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return times.parse(value)
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    return round(value.timestamp() * US_PER_SECOND)


def new_client_id() -> str:
    """Names a consumer; unique, because a queue refuses two waiting leases of one client."""
    return f"{os.uname().nodename}-{os.getpid()}-{os.urandom(6).hex()}"


def new_request_id() -> str:
    return os.urandom(16).hex()


def produce_item(
    payload: str | bytes, *, kind: str = "", reference: str = "", encoding: str = "", enqueue_at: Time | None = None
) -> m.QueueProduceItem:
    """An item to produce."""
    return m.QueueProduceItem(
        bytes_=payload.encode() if isinstance(payload, str) else payload,
        kind=kind,
        reference=reference,
        encoding=encoding,
        enqueue_at=None if enqueue_at is None else time_us(enqueue_at),
    )


def _message(type_: type[M]) -> Callable[[bytes], M]:
    return lambda body: wire_json.decode(type_, body)


def _items(type_: type[Any]) -> Callable[[bytes], Any]:
    return lambda body: wire_json.decode(type_, body).items


def _nothing(_: bytes) -> None:
    return None


def _counts(body: bytes) -> dict[str, int]:
    return {state: int(number) for state, number in wire_json.decode(m.Reply, body).details.items()}


def _was_added(body: bytes) -> bool:
    return "repeated" not in wire_json.decode(m.Reply, body).details


def _raw(body: bytes) -> bytes:
    return body


# Items


def produce(
    queue: str, items: Payload | Iterable[Payload], *, request_id: str | None = None, timeout: float | None = None
) -> Call[bool]:
    """Add items, all or none. The request id makes a repeated request add nothing; without one a new one is made.

    Returns False if a request with this id was carried out before, so that this one added nothing.
    """
    if isinstance(items, (str, bytes, m.QueueProduceItem)):
        items = (items,)
    request = m.QueueProduceRequest(
        queue_name=queue,
        items=[item if isinstance(item, m.QueueProduceItem) else produce_item(item) for item in items],
        request_id=new_request_id() if request_id is None else request_id,
        first_attempt=request_id is None,
    )
    return Call("queue.produce", request, _was_added, timeout=timeout, carries_timeout=True)


def lease(
    queue: str,
    n: int = 1,
    *,
    client_id: str | None = None,
    complete_ids: Sequence[str] = (),
    timeout: float | None = None,
) -> Call[m.QueueLeaseResponse]:
    """Lease up to n items, waiting for the first; RetryRequest when there were none in time.

    `complete_ids` are completed first, in the same step.
    """
    request = m.QueueLeaseRequest(
        queue_name=queue, batch_size=n, client_id=client_id or new_client_id(), complete_ids=list(complete_ids)
    )
    return Call("queue.lease", request, _message(m.QueueLeaseResponse), timeout=timeout, carries_timeout=True)


def complete(queue: str, ids: Iterable[str], *, partition: int = 0, timeout: float | None = None) -> Call[None]:
    """Done with these items; they may be of several partitions. Safe to repeat."""
    request = m.QueueCompleteRequest(queue_name=queue, partition=partition, ids=list(ids))
    return Call("queue.complete", request, _nothing, timeout=timeout, carries_timeout=True)


def retry(
    queue: str,
    ids: Iterable[str],
    *,
    at: Time | None = None,
    dead: bool = False,
    unused: bool = False,
    reason: str = "",
    purpose: str = "",
    partition: int = 0,
    timeout: float | None = None,
) -> Call[None]:
    """Give leased items back: now, at a time, or straight to the dead queue. `unused` does not count the attempt.

    `reason` says why the attempt failed; the items keep it. What is too long for the daemon is cut off. `purpose` is
    for operators who take items from a consumer: the daemon logs it.
    """
    retry_at = None if at is None else time_us(at)
    wanted = list(ids)
    told = _cut(reason, min(REASON_BYTES_MAX, REASONS_BYTES_MAX // max(1, len(wanted))))
    items = [m.QueueRetryItem(id=id, retry_at=retry_at, dead=dead, unused=unused, reason=told) for id in wanted]
    request = m.QueueRetryRequest(queue_name=queue, partition=partition, items=items, purpose=purpose)
    # Not repeatable: when the first one did arrive, the second finds the lease lost.
    return Call("queue.retry", request, _nothing, repeatable=False, timeout=timeout)


def _cut(text: str, bytes_max: int) -> str:
    """The beginning of a text, in whole characters."""
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def extend(
    queue: str,
    ids: Iterable[str],
    *,
    lease_timeout: Duration | None = None,
    partition: int = 0,
    timeout: float | None = None,
) -> Call[list[m.QueueExtendItem]]:
    """Keep leased items for longer: the queue's lease timeout, or this one, from now."""
    request = m.QueueExtendRequest(
        queue_name=queue,
        partition=partition,
        ids=list(ids),
        lease_timeout="" if lease_timeout is None else duration_text(lease_timeout),
    )
    return Call("queue.extend", request, _items(m.QueueExtendResponse), timeout=timeout)


# One queue


def stats(queue: str, *, timeout: float | None = None) -> Call[m.QueueStatsResponse]:
    """Counts by partition, and who waits."""
    return Call("queue.stats", m.QueueStatsRequest(queue_name=queue), _message(m.QueueStatsResponse), timeout=timeout)


def clear(
    queue: str, *, items: bool = False, scheduled: bool = False, destructive: bool = False, timeout: float | None = None
) -> Call[dict[str, int]]:
    """Delete ready items, scheduled items, or both. `items` with `destructive` deletes leased and scheduled items too.

    Gives the number of deleted items by state: `ready`, `leased`, `scheduled`.
    """
    request = m.QueueClearRequest(
        queue_name=queue, queue=items, scheduled=scheduled, destructive=destructive, counts=True
    )
    return Call("queue.clear", request, _counts, timeout=timeout)


# Queues


def create_queue(
    name: str,
    *,
    partitions: int = 1,
    lease_timeout: Duration = "1m",
    expire_timeout: Duration = "24h",
    max_attempts: int = 0,
    dead_queue: str = "",
    reference: str = "",
    namespace: str = "",
    retention: str = "",
    timeout: float | None = None,
) -> Call[None]:
    """Create a queue; Conflict when the name is taken. `retention` (`30d`) bounds how long it keeps dead items."""
    request = m.QueueInfo(
        queue_name=name,
        requested_partitions=partitions,
        lease_timeout=duration_text(lease_timeout),
        expire_timeout=duration_text(expire_timeout),
        max_attempts=max_attempts,
        dead_queue=dead_queue,
        reference=reference,
        namespace=namespace,
        retention=retention,
    )
    return Call("queues.create", request, _nothing, repeatable=False, timeout=timeout)


def update_queue(info: m.QueueInfo, *, timeout: float | None = None) -> Call[None]:
    """Change a queue to what `info` says. Get it with `queue_info` first: what is left empty is reset."""
    return Call("queues.update", info, _nothing, timeout=timeout)


def list_queues(
    *, pivot: str = "", limit: int = 0, namespace: str = "", timeout: float | None = None
) -> Call[list[m.QueueInfo]]:
    """Queues by name, from the pivot on, with what each holds and did in the last minute."""
    request = m.QueuesListRequest(pivot=pivot, limit=limit, namespace=namespace, extended=True)
    return Call("queues.list", request, _items(m.QueuesListResponse), timeout=timeout)


def queue_info(name: str, *, timeout: float | None = None) -> Call[m.QueueInfo]:
    """A queue's settings, and what it holds; NotFound when there is none."""
    request = m.QueuesInfoRequest(queue_name=name, extended=True)
    return Call("queues.info", request, _message(m.QueueInfo), timeout=timeout)


def delete_queue(name: str, *, force: bool = False, timeout: float | None = None) -> Call[None]:
    """Delete a queue and its items; `force` also if it is someone's dead queue."""
    request = m.QueuesDeleteRequest(queue_name=name, force=force)
    return Call("queues.delete", request, _nothing, repeatable=False, timeout=timeout)


# What is stored


def list_items(
    queue: str, *, partition: int = 0, pivot: str = "", limit: int = 0, timeout: float | None = None
) -> Call[list[m.StorageItem]]:
    """Stored items of one partition in the order of their ids, from the pivot on; scheduled ones are apart."""
    request = m.StorageItemsListRequest(queue_name=queue, partition=partition, pivot=pivot, limit=limit)
    return Call("storage/items.list", request, _items(m.StorageItemsListResponse), timeout=timeout)


def list_scheduled(
    queue: str, *, partition: int = 0, pivot: str = "", limit: int = 0, timeout: float | None = None
) -> Call[list[m.StorageItem]]:
    """Scheduled items of one partition."""
    request = m.StorageItemsListRequest(queue_name=queue, partition=partition, pivot=pivot, limit=limit)
    return Call("storage/scheduled.list", request, _items(m.StorageItemsListResponse), timeout=timeout)


def import_items(
    queue: str, items: Iterable[m.StorageItem], *, partition: int = 0, timeout: float | None = None
) -> Call[list[m.StorageItem]]:
    """Put items into a partition as they are. One whose `source_id` is already there is left out."""
    request = m.StorageItemsImportRequest(queue_name=queue, partition=partition, items=list(items))
    return Call(
        "storage/items.import", request, _items(m.StorageItemsImportResponse), repeatable=False, timeout=timeout
    )


def delete_items(
    queue: str, ids: Iterable[str], *, partition: int = 0, purpose: str = "", timeout: float | None = None
) -> Call[None]:
    """Delete items of one partition, whatever their state. The daemon logs the purpose."""
    request = m.StorageItemsDeleteRequest(queue_name=queue, partition=partition, ids=list(ids), purpose=purpose)
    return Call("storage/items.delete", request, _nothing, timeout=timeout)


def inspect_item(queue: str, id: str, *, timeout: float | None = None) -> Call[m.ItemsInspectResponse]:
    """Everything known of one item."""
    request = m.ItemsInspectRequest(queue_name=queue, id=id)
    return Call("items.inspect", request, _message(m.ItemsInspectResponse), timeout=timeout)


def sql(queue: str, query: str, *, limit: int = 0, timeout: float | None = None) -> Call[Rows]:
    """The rows of a SELECT over the queue's live partitions, in Arrow: `.to_pandas()`, `.to_polars()`, `.arrow`."""
    found = sql_bytes(queue, query, format="arrow", limit=limit, timeout=timeout)
    return Call(found.path, found.request, Rows, timeout=found.timeout)


def sql_bytes(queue: str, query: str, *, format: str, limit: int = 0, timeout: float | None = None) -> Call[bytes]:
    """The same rows as `json`, `ndjson`, `csv` or `arrow` bytes."""
    request = m.SqlRequest(
        queue_name=queue,
        query=query,
        format=format,
        limit=limit,
        timeout="" if timeout is None else duration_text(timeout),
    )
    return Call("sql", request, _raw, timeout=None if timeout is None else timeout + LEASE_SLACK)


# Partitions and jobs


def list_partitions(queue: str = "", *, timeout: float | None = None) -> Call[list[m.PartitionStatus]]:
    """The partitions of a queue, or of all queues, with storage, state and counts."""
    request = m.PartitionsListRequest(queue_name=queue)
    return Call("partitions.list", request, _items(m.PartitionsListResponse), timeout=timeout)


def list_storages(*, timeout: float | None = None) -> Call[list[m.StorageStatus]]:
    """The daemon's storages: where they lie, what is in them, and how much room is left."""
    return Call("storages.list", m.StoragesListRequest(), _items(m.StoragesListResponse), timeout=timeout)


def pause_partitions(
    queue: str, partitions: Sequence[int] = (), *, for_: Duration | None = None, timeout: float | None = None
) -> Call[None]:
    """No produce, no lease, until resumed or for a while."""
    request = m.PartitionsPauseRequest(
        queue_name=queue, partitions=list(partitions), for_="" if for_ is None else duration_text(for_)
    )
    return Call("partitions.pause", request, _nothing, timeout=timeout)


def resume_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[None]:
    """Back to available."""
    return _partitions("resume", queue, partitions, timeout)


def drain_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[None]:
    """No produce; what is there is leased until nothing is left."""
    return _partitions("drain", queue, partitions, timeout)


def offline_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[None]:
    """Close the files, so that an operator may touch them."""
    return _partitions("offline", queue, partitions, timeout)


def reload_partitions(
    queue: str, partitions: Sequence[int] = (), *, keep_states: bool = False, timeout: float | None = None
) -> Call[None]:
    """Close, reopen and read again, one after another; answered when done. Conflict while another reload runs.

    With `keep_states`, paused partitions stay paused, and offline partitions are skipped.
    """
    request = m.PartitionsReloadRequest(queue_name=queue, partitions=list(partitions), keep_states=keep_states)
    return Call("partitions.reload", request, _nothing, repeatable=False, timeout=timeout)


def _partitions(verb: str, queue: str, partitions: Sequence[int], timeout: float | None) -> Call[None]:
    request = m.PartitionsRequest(queue_name=queue, partitions=list(partitions))
    return Call(f"partitions.{verb}", request, _nothing, timeout=timeout)


def migrate_partition(
    queue: str,
    partition: int,
    *,
    to_partition: int | None = None,
    to_storage: str = "",
    timeout: float | None = None,
) -> Call[str]:
    """Move a partition to another storage, or its items into another partition. Returns the job's id."""
    request = m.PartitionsMigrateRequest(
        queue_name=queue, partition=partition, to_partition=to_partition, to_storage=to_storage
    )
    return Call("partitions.migrate", request, _job_id, repeatable=False, timeout=timeout)


def backup_partitions(
    queue: str, to: str, partitions: Sequence[int] = (), *, timeout: float | None = None
) -> Call[str]:
    """Snapshot live partitions into a directory of the daemon's machine. Returns the job's id."""
    request = m.PartitionsBackupRequest(queue_name=queue, partitions=list(partitions), to=to)
    return Call("partitions.backup", request, _job_id, repeatable=False, timeout=timeout)


def restore_partitions(
    queue: str, from_: str, partitions: Sequence[int] = (), *, dry_run: bool = False, timeout: float | None = None
) -> Call[str]:
    """Restore a backup; a queue that does not exist is created from the settings in it. Returns the job's id.

    With `dry_run` everything is checked and nothing changed, and the id is empty.
    """
    request = m.PartitionsRestoreRequest(queue_name=queue, partitions=list(partitions), from_=from_, dry_run=dry_run)
    return Call("partitions.restore", request, _job_id, repeatable=False, timeout=timeout)


def accept_loss(
    queue: str, partition: int, *, dry_run: bool = False, timeout: float | None = None
) -> Call[m.PartitionsAcceptLossResponse]:
    """Open a partition that cannot be trusted, without what it lost. With `dry_run`, only tell what that is."""
    request = m.PartitionsAcceptLossRequest(queue_name=queue, partition=partition, dry_run=dry_run)
    return Call("partitions.accept_loss", request, _loss, repeatable=False, timeout=timeout)


def _loss(body: bytes) -> m.PartitionsAcceptLossResponse:
    return wire_json.decode(m.PartitionsAcceptLossResponse, body)


def verify_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[str]:
    """Read everything and compare with what the daemon believes. Returns the job's id."""
    request = m.PartitionsRequest(queue_name=queue, partitions=list(partitions))
    return Call("partitions.verify", request, _job_id, repeatable=False, timeout=timeout)


def compact_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[str]:
    """Give the space of deleted rows back. Returns the job's id."""
    request = m.PartitionsRequest(queue_name=queue, partitions=list(partitions))
    return Call("partitions.compact", request, _job_id, repeatable=False, timeout=timeout)


def _job_id(body: bytes) -> str:
    return wire_json.decode(m.JobReply, body).job_id


def list_jobs(*, timeout: float | None = None) -> Call[list[m.Job]]:
    """Jobs that run, and those that ended lately."""
    return Call("jobs.list", m.JobsListRequest(), _items(m.JobsListResponse), timeout=timeout)


def show_job(job_id: str, *, timeout: float | None = None) -> Call[m.Job]:
    """One job; NotFound when there is none."""
    return Call("jobs.show", m.JobRequest(job_id=job_id), _message(m.Job), timeout=timeout)


def cancel_job(job_id: str, *, timeout: float | None = None) -> Call[None]:
    """Stop a job; what it has begun is finished or undone."""
    return Call("jobs.cancel", m.JobRequest(job_id=job_id), _nothing, timeout=timeout)


# The test clock


def advance_clock(by: Duration, *, timeout: float | None = None) -> Call[int]:
    """Move a test clock on; due timers have fired when it answers. Returns the new time in microseconds."""
    request = m.ClockAdvanceRequest(by=duration_text(by))
    return Call("clock.advance", request, _now, repeatable=False, timeout=timeout)


def set_clock(now: Time, *, timeout: float | None = None) -> Call[int]:
    """Set a test clock, also backwards."""
    return Call("clock.set", m.ClockSetRequest(now=time_us(now)), _now, timeout=timeout)


def _now(body: bytes) -> int:
    return wire_json.decode(m.ClockResponse, body).now or 0
