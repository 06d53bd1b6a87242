"""Every call of the API as data: its path, its request and its answer. Nothing here sends anything.

`Client` and `AsyncClient` have a method with the same name and parameters for each function here. So there is one list
of calls for both clients.
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
from querator.wire import access_messages as a
from querator.wire import json as wire_json
from querator.wire import messages as m

M = TypeVar("M", bound=m.Message)

Duration = str | float | timedelta
"""`"1m30s"`, seconds, or a timedelta."""
Time = str | datetime | int
"""RFC 3339 text, a datetime with a time zone, or microseconds since 1970."""
Payload = str | bytes | m.QueueProduceItem
"""Only a payload, or an item with kind, reference, encoding and time."""

LEASE_SLACK: Final = 1.0
REASONS_BYTES_MAX: Final = 100_000
"""The reasons of one retry request are cut to this many bytes in total, so that the daemon accepts its size."""


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
    """A unique name for a consumer. A queue refuses a second waiting lease of the same client."""
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
    """Add items, all or none. A repeated request with the same id adds nothing. Default: a new id.

    Returns False if a request with this id was accepted before. This one then added nothing.
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
    """Lease up to n items, and wait for the first. Raises RetryRequest if there were none in time.

    The items in `complete_ids` are completed first, in the same request.
    """
    request = m.QueueLeaseRequest(
        queue_name=queue, batch_size=n, client_id=client_id or new_client_id(), complete_ids=list(complete_ids)
    )
    return Call("queue.lease", request, _message(m.QueueLeaseResponse), timeout=timeout, carries_timeout=True)


def complete(queue: str, ids: Iterable[str], *, partition: int = 0, timeout: float | None = None) -> Call[None]:
    """Complete items, which may be in several partitions. Safe to repeat."""
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
    """Return leased items now, at a time, or to the dead queue. With `unused` the attempt does not count.

    `reason` says why the attempt failed. The items keep it. A reason that is too long is cut. `purpose` is for
    operators who take items from a consumer: the daemon then logs and audits the call.
    """
    retry_at = None if at is None else time_us(at)
    wanted = list(ids)
    short_reason = _cut(reason, min(REASON_BYTES_MAX, REASONS_BYTES_MAX // max(1, len(wanted))))
    items = [m.QueueRetryItem(id=id, retry_at=retry_at, dead=dead, unused=unused, reason=short_reason) for id in wanted]
    request = m.QueueRetryRequest(queue_name=queue, partition=partition, items=items, purpose=purpose)
    # Not repeatable: if the first request arrived, the second one would find the leases lost.
    call = "queue.release" if purpose else "queue.retry"
    return Call(call, request, _nothing, repeatable=False, timeout=timeout)


def _cut(text: str, bytes_max: int) -> str:
    """The beginning of a text, cut between characters."""
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def extend(
    queue: str,
    ids: Iterable[str],
    *,
    lease_timeout: Duration | None = None,
    partition: int = 0,
    timeout: float | None = None,
) -> Call[list[m.QueueExtendItem]]:
    """Extend the leases of items from now, by the lease timeout of the queue or by this one."""
    request = m.QueueExtendRequest(
        queue_name=queue,
        partition=partition,
        ids=list(ids),
        lease_timeout="" if lease_timeout is None else duration_text(lease_timeout),
    )
    return Call("queue.extend", request, _items(m.QueueExtendResponse), timeout=timeout)


# One queue


def stats(queue: str, *, timeout: float | None = None) -> Call[m.QueueStatsResponse]:
    """Item counts by partition, and the number of waiting requests."""
    return Call("queue.stats", m.QueueStatsRequest(queue_name=queue), _message(m.QueueStatsResponse), timeout=timeout)


def queue_history(queue: str, *, last: str = "", timeout: float | None = None) -> Call[m.QueuesHistoryResponse]:
    """What a queue held and did over time, such as the last `24h`; the last 15 minutes by default."""
    request = m.QueuesHistoryRequest(queue_name=queue, last=last)
    return Call("queues.history", request, _message(m.QueuesHistoryResponse), timeout=timeout)


def clear(
    queue: str, *, items: bool = False, scheduled: bool = False, destructive: bool = False, timeout: float | None = None
) -> Call[dict[str, int]]:
    """Delete ready items, scheduled items, or both. `items` with `destructive` deletes leased and scheduled items too.

    Returns the number of deleted items by state: `ready`, `leased`, `scheduled`.
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
    """Create a queue. Raises Conflict if it exists. Dead items are deleted after `retention`, such as `30d`."""
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
    """Change the settings of a queue to `info`. Get it from `queue_info` first, because empty fields are reset."""
    return Call("queues.update", info, _nothing, timeout=timeout)


def list_queues(
    *, pivot: str = "", limit: int = 0, namespace: str = "", timeout: float | None = None
) -> Call[list[m.QueueInfo]]:
    """Queues by name, from the pivot on, with their item counts and their rates of the last minute."""
    request = m.QueuesListRequest(pivot=pivot, limit=limit, namespace=namespace, extended=True)
    return Call("queues.list", request, _items(m.QueuesListResponse), timeout=timeout)


def queue_info(name: str, *, timeout: float | None = None) -> Call[m.QueueInfo]:
    """The settings and item counts of a queue. Raises NotFound if it does not exist."""
    request = m.QueuesInfoRequest(queue_name=name, extended=True)
    return Call("queues.info", request, _message(m.QueueInfo), timeout=timeout)


def delete_queue(name: str, *, force: bool = False, timeout: float | None = None) -> Call[None]:
    """Delete a queue and its items. `force` is needed if other queues use it as their dead queue."""
    request = m.QueuesDeleteRequest(queue_name=name, force=force)
    return Call("queues.delete", request, _nothing, repeatable=False, timeout=timeout)


# Stored items


def list_items(
    queue: str, *, partition: int = 0, pivot: str = "", limit: int = 0, timeout: float | None = None
) -> Call[list[m.StorageItem]]:
    """Stored items of one partition by id, from the pivot on. Scheduled items are not included."""
    request = m.StorageItemsListRequest(queue_name=queue, partition=partition, pivot=pivot, limit=limit, extended=True)
    return Call("storage/items.list", request, _items(m.StorageItemsListResponse), timeout=timeout)


def list_scheduled(
    queue: str, *, partition: int = 0, pivot: str = "", limit: int = 0, timeout: float | None = None
) -> Call[list[m.StorageItem]]:
    """Scheduled items of one partition."""
    request = m.StorageItemsListRequest(queue_name=queue, partition=partition, pivot=pivot, limit=limit, extended=True)
    return Call("storage/scheduled.list", request, _items(m.StorageItemsListResponse), timeout=timeout)


def import_items(
    queue: str, items: Iterable[m.StorageItem], *, partition: int = 0, timeout: float | None = None
) -> Call[list[m.StorageItem]]:
    """Add items to a partition unchanged. Items whose `source_id` is there already are skipped."""
    request = m.StorageItemsImportRequest(queue_name=queue, partition=partition, items=list(items), extended=True)
    return Call(
        "storage/items.import", request, _items(m.StorageItemsImportResponse), repeatable=False, timeout=timeout
    )


def delete_items(
    queue: str, ids: Iterable[str], *, partition: int = 0, purpose: str = "", timeout: float | None = None
) -> Call[None]:
    """Delete items of one partition, in any state. The daemon logs the purpose."""
    request = m.StorageItemsDeleteRequest(queue_name=queue, partition=partition, ids=list(ids), purpose=purpose)
    return Call("storage/items.delete", request, _nothing, timeout=timeout)


def inspect_item(queue: str, id: str, *, timeout: float | None = None) -> Call[m.ItemsInspectResponse]:
    """One item in full, with its history."""
    request = m.ItemsInspectRequest(queue_name=queue, id=id)
    return Call("items.inspect", request, _message(m.ItemsInspectResponse), timeout=timeout)


def sql(queue: str, query: str, *, limit: int = 0, timeout: float | None = None) -> Call[Rows]:
    """The rows of a SELECT over the live partitions of a queue: use `.to_pandas()`, `.to_polars()` or `.arrow`."""
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
    """The storages of the daemon, with directory, size and free space."""
    return Call("storages.list", m.StoragesListRequest(), _items(m.StoragesListResponse), timeout=timeout)


def daemon_status(*, timeout: float | None = None) -> Call[m.DaemonStatus]:
    """The process of the daemon, its uptime and its memory. Admins also get its data directory."""
    return Call("daemon.status", m.DaemonStatusRequest(), _message(m.DaemonStatus), timeout=timeout)


def pause_partitions(
    queue: str, partitions: Sequence[int] = (), *, for_: Duration | None = None, timeout: float | None = None
) -> Call[None]:
    """Stop producing to partitions and leasing from them, until they are resumed or for a duration."""
    request = m.PartitionsPauseRequest(
        queue_name=queue, partitions=list(partitions), for_="" if for_ is None else duration_text(for_)
    )
    return Call("partitions.pause", request, _nothing, timeout=timeout)


def resume_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[None]:
    """Make partitions available again."""
    return _partitions("resume", queue, partitions, timeout)


def drain_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[None]:
    """Stop producing to partitions, and let consumers empty them."""
    return _partitions("drain", queue, partitions, timeout)


def offline_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[None]:
    """Close the files of partitions, so that an operator can work on them."""
    return _partitions("offline", queue, partitions, timeout)


def reload_partitions(
    queue: str, partitions: Sequence[int] = (), *, keep_states: bool = False, timeout: float | None = None
) -> Call[None]:
    """Close, reopen and read partitions again, and wait until it is done. Raises Conflict while another reload runs.

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
    """Move a partition to another storage, or its items into another partition. Returns the id of the job."""
    request = m.PartitionsMigrateRequest(
        queue_name=queue, partition=partition, to_partition=to_partition, to_storage=to_storage
    )
    return Call("partitions.migrate", request, _job_id, repeatable=False, timeout=timeout)


def backup_partitions(
    queue: str, to: str, partitions: Sequence[int] = (), *, timeout: float | None = None
) -> Call[str]:
    """Back up live partitions to a directory on the daemon's machine. Returns the id of the job."""
    request = m.PartitionsBackupRequest(queue_name=queue, partitions=list(partitions), to=to)
    return Call("partitions.backup", request, _job_id, repeatable=False, timeout=timeout)


def restore_partitions(
    queue: str, from_: str, partitions: Sequence[int] = (), *, dry_run: bool = False, timeout: float | None = None
) -> Call[str]:
    """Restore a backup. A missing queue is created with the settings in the backup. Returns the id of the job.

    With `dry_run`, the daemon only checks the backup, and the id is empty.
    """
    request = m.PartitionsRestoreRequest(queue_name=queue, partitions=list(partitions), from_=from_, dry_run=dry_run)
    return Call("partitions.restore", request, _job_id, repeatable=False, timeout=timeout)


def accept_loss(
    queue: str, partition: int, *, dry_run: bool = False, timeout: float | None = None
) -> Call[m.PartitionsAcceptLossResponse]:
    """Open a partition that cannot be trusted, without what it lost. With `dry_run`, only report the loss."""
    request = m.PartitionsAcceptLossRequest(queue_name=queue, partition=partition, dry_run=dry_run)
    return Call(
        "partitions.accept_loss", request, _message(m.PartitionsAcceptLossResponse), repeatable=False, timeout=timeout
    )


def verify_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[str]:
    """Read all items and compare them with what the daemon has in memory. Returns the id of the job."""
    request = m.PartitionsRequest(queue_name=queue, partitions=list(partitions))
    return Call("partitions.verify", request, _job_id, repeatable=False, timeout=timeout)


def compact_partitions(queue: str, partitions: Sequence[int] = (), *, timeout: float | None = None) -> Call[str]:
    """Return the disk space of deleted items. Returns the id of the job."""
    request = m.PartitionsRequest(queue_name=queue, partitions=list(partitions))
    return Call("partitions.compact", request, _job_id, repeatable=False, timeout=timeout)


def _job_id(body: bytes) -> str:
    return wire_json.decode(m.JobReply, body).job_id


def redrive_items(
    queue: str, *, where: str = "", to: str = "", expected: int = 0, timeout: float | None = None
) -> Call[str]:
    """Return dead items to the queues in which they died, or all of them to one queue. Returns the job's id."""
    request = m.ItemsRedriveRequest(queue_name=queue, where=where, to=to, expected=expected)
    return Call("items.redrive", request, _job_id, repeatable=False, timeout=timeout)


def delete_items_where(queue: str, where: str, *, expected: int = 0, timeout: float | None = None) -> Call[str]:
    """Delete the ready items that meet a condition in SQL. Returns the job's id."""
    request = m.ItemsDeleteRequest(queue_name=queue, where=where, expected=expected)
    return Call("items.delete", request, _job_id, repeatable=False, timeout=timeout)


def list_jobs(*, timeout: float | None = None) -> Call[list[m.Job]]:
    """Running jobs, and jobs that ended recently."""
    return Call("jobs.list", m.JobsListRequest(), _items(m.JobsListResponse), timeout=timeout)


def show_job(job_id: str, *, timeout: float | None = None) -> Call[m.Job]:
    """One job. Raises NotFound if it does not exist."""
    return Call("jobs.show", m.JobRequest(job_id=job_id), _message(m.Job), timeout=timeout)


def cancel_job(job_id: str, *, timeout: float | None = None) -> Call[None]:
    """Cancel a job. The daemon finishes or undoes the step that is under way."""
    return Call("jobs.cancel", m.JobRequest(job_id=job_id), _nothing, timeout=timeout)


# Tokens


def create_token(
    name: str,
    role: str,
    *,
    queues: Sequence[str] = (),
    expires_at: Time | None = None,
    timeout: float | None = None,
) -> Call[a.TokenSecret]:
    """Create a token. `queues` are patterns of queue names, none for every queue. The answer has the secret."""
    request = a.TokensCreateRequest(
        name=name,
        role=str(role),
        queues=list(queues),
        expires_at=None if expires_at is None else time_us(expires_at),
    )
    return Call("tokens.create", request, _message(a.TokenSecret), repeatable=False, timeout=timeout)


def list_tokens(*, timeout: float | None = None) -> Call[list[a.TokenInfo]]:
    """All tokens, without their secrets."""
    return Call("tokens.list", a.TokensListRequest(), _items(a.TokensListResponse), timeout=timeout)


def revoke_token(name: str, *, timeout: float | None = None) -> Call[None]:
    """Revoke a token. Its next request is refused."""
    return Call("tokens.revoke", a.TokenRequest(name=name), _nothing, repeatable=False, timeout=timeout)


def rotate_token(name: str, *, grace: Duration = "1h", timeout: float | None = None) -> Call[a.TokenSecret]:
    """Give a token a new secret. The old one stays valid for `grace`."""
    request = a.TokensRotateRequest(name=name, grace=duration_text(grace))
    return Call("tokens.rotate", request, _message(a.TokenSecret), repeatable=False, timeout=timeout)


def whoami(*, timeout: float | None = None) -> Call[a.TokensWhoamiResponse]:
    """The name, kind and role that the daemon sees in the caller."""
    return Call("tokens.whoami", a.TokensWhoamiRequest(), _message(a.TokensWhoamiResponse), timeout=timeout)


def list_audit(
    *, since: Time | None = None, who: str = "", queue: str = "", limit: int = 0, timeout: float | None = None
) -> Call[list[a.AuditEntry]]:
    """Entries of the audit log, oldest first: the latest ones, or those from `since` on."""
    request = a.AuditListRequest(
        since=None if since is None else time_us(since), who=who, queue_name=queue, limit=limit
    )
    return Call("audit.list", request, _items(a.AuditListResponse), timeout=timeout)


# The test clock


def advance_clock(by: Duration, *, timeout: float | None = None) -> Call[int]:
    """Advance a test clock, and wait until all due timers have fired. Returns the new time in microseconds."""
    request = m.ClockAdvanceRequest(by=duration_text(by))
    return Call("clock.advance", request, _now, repeatable=False, timeout=timeout)


def set_clock(now: Time, *, timeout: float | None = None) -> Call[int]:
    """Set a test clock, forwards or backwards."""
    return Call("clock.set", m.ClockSetRequest(now=time_us(now)), _now, timeout=timeout)


def _now(body: bytes) -> int:
    return wire_json.decode(m.ClockResponse, body).now or 0
