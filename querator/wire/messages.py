"""Every message of the wire as a struct. Service and client use these, whatever the encoding.

An attribute has the JSON name of its field, with a trailing underscore where Python reserves the word. Times are
microseconds since 1970, None if unset. Durations stay text. A default is what an absent field means. Field numbers and
camelCase names are in `querator.proto`, and a test compares the two.

The docstring below a field is its description in the API's reference. A field without one means the same as the field
of that name above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

if TYPE_CHECKING:
    Timestamp = int
else:

    class _AnyInt(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return type(value) is int

    class Timestamp(metaclass=_AnyInt):
        """Stands for int. It is a type of its own, so that the JSON decoder calls our hook for the text of a time."""


Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Message(
    msgspec.Struct,
    gc=False,  # messages are trees, never cycles
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename=lambda name: name.rstrip("_"),
):
    """What all messages have in common: the encoder leaves zero values out, the decoder refuses unknown fields."""


class Reply(Message):
    code: Int32 = 0
    """200, or the error; the same as the HTTP status."""
    code_text: str = ""
    """The name of the code."""
    message: str = ""
    """What happened, in a sentence."""
    details: dict[str, str] = {}
    """Further results: `repeated` if a produce with this `request_id` was carried out before, and, if `queue.clear` was
    asked for `counts`, how many items of each state it deleted.
    """


# -- queue.*


class QueueProduceItem(Message):
    encoding: str = ""
    """How the payload is encoded. The daemon passes it on to consumers and does not look at it."""
    kind: str = ""
    """What kind of item it is. The daemon passes it on to consumers and does not look at it."""
    reference: str = ""
    """A note by the caller. The daemon passes it on to consumers and does not look at it."""
    enqueue_at: Timestamp | None = None
    """The item is ready from this time on. Absent or past means now."""
    bytes_: bytes = b""
    """The payload, in base64."""
    utf8: str = ""
    """The payload as text; used if `bytes` is empty."""

    @property
    def payload(self) -> bytes:
        return self.bytes_ or self.utf8.encode()


class QueueProduceRequest(Message):
    queue_name: str = ""
    """The name of the queue."""
    request_timeout: str = ""
    """How long the caller waits, as a duration; up to 15m."""
    items: list[QueueProduceItem] = []
    """The items."""
    request_id: str = ""
    """For an hour, a second request with the same id adds nothing. Up to 256 bytes."""
    first_attempt: bool = False
    """Whether the client made the `request_id` for this request and sends it for the first time. The request then does
    not wait for a partition that cannot be read.
    """


def payloads(request: QueueProduceRequest) -> list[bytes]:
    return [item.bytes_ or item.utf8.encode() for item in request.items]


class QueueLeaseRequest(Message):
    queue_name: str = ""
    batch_size: Int32 = 0
    """The largest number of items to lease, 1 to 1,000."""
    client_id: str = ""
    """The consumer that leases or holds the item. A queue accepts only one waiting lease per client id."""
    request_timeout: str = ""
    complete_ids: list[str] = []
    """Items to complete first, in the same step. They can be of any partition; at most 1,000."""


class QueueLeaseItem(Message):
    encoding: str = ""
    kind: str = ""
    reference: str = ""
    id: str = ""
    """The item's id, 27 characters."""
    attempts: Int32 = 0
    """How often the item was leased."""
    lease_deadline: Timestamp | None = None
    """When the lease ends."""
    bytes_: bytes = b""

    @property
    def payload(self) -> bytes:
        return self.bytes_


class QueueLeaseResponse(Message):
    queue_name: str = ""
    partition: Int32 = 0
    """The number of the partition."""
    items: list[QueueLeaseItem] = []


class QueueCompleteRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    request_timeout: str = ""
    ids: list[str] = []
    """Ids of items, 1 to 1,000."""


class QueueRetryItem(Message):
    id: str = ""
    retry_at: Timestamp | None = None
    """The item is ready again from this time on. Absent or past means now."""
    dead: bool = False
    """Move the item to the dead queue at once. This wins over `retry_at`."""
    unused: bool = False
    """Whether nobody worked on the item. This lease then does not count as an attempt."""
    reason: str = ""
    """Why the attempt failed, in the client's words; at most 2,000 bytes."""


class QueueRetryRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    items: list[QueueRetryItem] = []
    purpose: str = ""
    """Why an operator takes the items back with `queue.release`, for the daemon's log. At most 256 characters are kept.
    A consumer leaves it empty, and its retries are not logged."""


class QueueExtendRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    ids: list[str] = []
    lease_timeout: str = ""
    """How long a consumer may hold an item, as a duration."""


class QueueExtendItem(Message):
    id: str = ""
    lease_deadline: Timestamp | None = None


class QueueExtendResponse(Message):
    items: list[QueueExtendItem] = []


class QueueClearRequest(Message):
    queue_name: str = ""
    scheduled: bool = False
    """Delete scheduled items."""
    queue: bool = False
    """Delete ready items."""
    destructive: bool = False
    """With `queue`: delete leased and scheduled items too."""
    counts: bool = False
    """Answer with the number of deleted items by state, in `details`."""


class QueueReloadRequest(Message):
    queue_name: str = ""


class QueueStatsRequest(Message):
    queue_name: str = ""


class QueuePartitionStats(Message):
    partition: Int32 = 0
    total: Int32 = 0
    """How many items the partition stores, leased ones included."""
    total_leased: Int32 = 0
    """How many items are leased."""
    failures: Int32 = 0
    """How often the partition's storage failed since it last worked."""
    average_age: str = ""
    """The mean age of the items, as a duration."""
    average_leased_age: str = ""
    """The mean time until the leases end, as a duration."""
    scheduled: Int32 = 0
    """How many items are scheduled."""


class QueueLogicalStats(Message):
    produce_waiting: Int32 = 0
    """Produce requests that wait for a pass."""
    lease_waiting: Int32 = 0
    """Lease requests that wait for an item."""
    complete_waiting: Int32 = 0
    """Complete requests that wait for a pass."""
    in_flight: Int32 = 0
    """Requests under way, waiting leases included."""
    partitions: list[QueuePartitionStats] = []
    """The partitions of the queue."""


class QueueStatsResponse(Message):
    queue_name: str = ""
    logical_queues: list[QueueLogicalStats] = msgspec.field(default_factory=list, name="logicalQueues")
    """Always one entry."""


# -- queues.*


class PartitionInfo(Message):
    partition: Int32 = 0


class QueueFigures(Message):
    """What a queue holds and does at the moment."""

    ready: Int32 = 0
    """How many items wait to be leased."""
    leased: Int32 = 0
    """How many items are leased."""
    scheduled: Int32 = 0
    produced_last_minute: Int64 = 0
    """How many items were added in the last minute."""
    completed_last_minute: Int64 = 0
    """How many items consumers completed in the last minute."""
    oldest_age: str = ""
    """The age of the oldest among the 1,000 items of each partition that are next to be leased, as a duration; empty if
    no item waits."""
    waiting_clients: list[str] = []
    """The clients whose lease requests wait for items, the one that waits longest first, at most 100. Only in
    `queues.info`."""


class QueueInfo(Message):
    queue_name: str = ""
    created_at: Timestamp | None = None
    """When it was created."""
    updated_at: Timestamp | None = None
    """When it was last changed."""
    dead_queue: str = ""
    """Where dead items go. This queue must exist and have no dead queue of its own."""
    reference: str = ""
    lease_timeout: str = ""
    expire_timeout: str = ""
    """How long an item lives if nobody completes it, as a duration."""
    max_attempts: Int32 = 0
    """How often an item can be leased before it is dead; 0 means no limit."""
    requested_partitions: Int32 = 0
    """How many partitions, from 1 to 1000."""
    partitions: list[PartitionInfo] = []
    namespace: str = ""
    """Kept for clients that send one; `_system` if empty."""
    retention: str = ""
    """How long this queue keeps items that died in another queue, such as `30d`. `0` keeps them until they are
    redriven, completed, cleared or deleted. Absent: off for a new queue, unchanged for an update."""
    figures: QueueFigures | None = None
    """What the queue holds and does; only in answers to `extended` requests."""


class QueuesInfoRequest(Message):
    queue_name: str = ""
    extended: bool = False
    """Whether the answer includes fields that clients of the original service refuse: `figures` and `retention` of a
    queue, `client_id`, `token_name` and `leased_at` of an item.
    """


class QueuesListRequest(Message):
    pivot: str = ""
    """Begin with this entry."""
    limit: Int32 = 0
    """The largest number of entries; 0 means the default."""
    namespace: str = ""
    extended: bool = False


class QueuesListResponse(Message):
    items: list[QueueInfo] = []


class QueuesHistoryRequest(Message):
    queue_name: str = ""
    last: str = ""
    """How far back, as a duration up to 168h; 15m if absent. The steps are 10s for up to 15m, 5m for up to 24h, and 30m
    beyond."""


class HistorySample(Message):
    """One step of a queue's history. Counts are of this step; the other figures are the largest values seen in it."""

    at: Timestamp | None = None
    """When the step began."""
    seconds: Int32 = 0
    """How many seconds of the step were observed."""
    ready: Int64 = 0
    leased: Int64 = 0
    scheduled: Int64 = 0
    produced: Int64 = 0
    """How many items were added."""
    leases: Int64 = 0
    """How many leases were given out."""
    completed: Int64 = 0
    """How many items consumers completed."""
    dead: Int64 = 0
    """How many items died."""
    oldest_age_ms: Int64 = 0
    """The age of the oldest item among those next to be leased."""
    wait_ms: Int64 | None = None
    """How long an item waits for its lease: the items that are ready, divided by the leases per second. Absent if items
    waited and none was leased."""
    held_ms: Int64 | None = None
    """How long a consumer holds an item: the items that are leased, divided by the completions per second. Absent if
    items were leased and none was completed."""


class QueuesHistoryResponse(Message):
    queue_name: str = ""
    step: str = ""
    """The time between two samples, as a duration."""
    samples: list[HistorySample] = []
    """The samples, oldest first. Times at which the daemon did not run are left out."""
    now: Timestamp | None = None
    """The daemon's time: where the history ends."""


class QueuesOverviewRequest(Message):
    contains: str = ""
    """Only queues with this text in their name. Upper and lower case are the same."""
    sort: str = ""
    """`trouble` (the default), `name`, `ready`, `leased`, `scheduled`, `in`, `out`, `age` or `dead`; the largest
    first."""
    offset: Int32 = 0
    """How many queues to skip."""
    limit: Int32 = 0


class QueueOverview(Message):
    queue_name: str = ""
    state: str = ""
    """The worst state of its partitions."""
    reason: str = ""
    """What is wrong with one of its partitions, or empty."""
    ready: Int64 = 0
    leased: Int64 = 0
    scheduled: Int64 = 0
    produced_last_minute: Int64 = 0
    completed_last_minute: Int64 = 0
    died: Int64 = 0
    """How many items died in this queue in the last 15 minutes."""
    oldest_age_ms: Int64 = 0
    dead_queue: str = ""
    is_dead_queue: bool = False
    """Whether another queue uses it as its dead queue."""
    depths: list[Int64] = []
    """Ready and leased items over the last 15 minutes, oldest first."""
    partitions: Int32 = 0
    stopped: Int32 = 0
    """How many of its partitions are not available."""


class QueuesOverviewResponse(Message):
    queues: Int32 = 0
    """How many queues there are."""
    matching: Int32 = 0
    """How many of them match the request."""
    troubled: Int32 = 0
    """How many of those have a partition that is not available."""
    ready: Int64 = 0
    """The sum over all queues that match, as of the last sample, which is about ten seconds old at most."""
    leased: Int64 = 0
    scheduled: Int64 = 0
    items: list[QueueOverview] = []
    died: Int64 = 0
    """How many items died in all queues that match, in the last 15 minutes, or since the daemon started."""


class QueuesDeleteRequest(Message):
    queue_name: str = ""
    force: bool = False
    """Whether to delete the queue even if another queue uses it as its dead queue."""


# -- storage/* and items.*


class StorageItem(Message):
    """In answers `lease_deadline`, `expire_deadline` and `created_at` are always set."""

    id: str = ""
    source_id: str = ""
    """The id the item had in the queue where it died, or the one it was imported with."""
    is_leased: bool = False
    """Whether a consumer holds the item."""
    lease_deadline: Timestamp | None = None
    """When the lease ends; year 1 if the item is not leased."""
    expire_deadline: Timestamp | None = None
    """When the item is dead if nobody completes it."""
    dead_deadline: Timestamp | None = None
    """Not used."""
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    enqueue_at: Timestamp | None = None
    attempts: Int32 = 0
    max_attempts: Int32 = 0
    reference: str = ""
    encoding: str = ""
    kind: str = ""
    payload: bytes = b""
    """The payload, in base64."""
    client_id: str = ""
    leased_at: Timestamp | None = None
    """When the item was leased; absent if it is not."""
    token_name: str = ""
    """The token with which the consumer leased the item; empty if without one."""


class StorageItemsListRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    pivot: str = ""
    limit: Int32 = 0
    extended: bool = False


class StorageItemsListResponse(Message):
    items: list[StorageItem] = []


class StorageItemsImportRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    items: list[StorageItem] = []
    extended: bool = False


class StorageItemsImportResponse(Message):
    items: list[StorageItem] = []


class StorageItemsDeleteRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    ids: list[str] = []
    purpose: str = ""
    """Why the items are deleted, for the daemon's log; at most 256 characters are kept."""


class ItemsInspectRequest(Message):
    queue_name: str = ""
    id: str = ""


class ItemDeath(Message):
    queue_name: str = ""
    source_id: str = ""
    reason: str = ""
    """`max_attempts`, `expired` or `client`."""
    attempts: Int32 = 0
    at: Timestamp | None = None
    """When the item died."""


class FailedAttempt(Message):
    attempt: Int32 = 0
    """The number of the attempt."""
    at: Timestamp | None = None
    """When the attempt ended."""
    client_id: str = ""
    held: str = ""
    """How long the client held the item, as a duration."""
    reason: str = ""
    """Why the attempt failed, in the client's words; at most 2,000 bytes."""


class ItemsInspectResponse(Message):
    item: StorageItem | None = None
    """The item."""
    state: str = ""
    """`ready`, `leased` or `scheduled`."""
    partition: Int32 = 0
    history: list[ItemDeath] = []
    """Its deaths, the latest last."""
    failed_attempts: list[FailedAttempt] = []
    """Its last failed attempts, at most 10, the latest last."""


# -- partitions.* and jobs.*


class PartitionsListRequest(Message):
    queue_name: str = ""


class PartitionStatus(Message):
    queue_name: str = ""
    partition: Int32 = 0
    storage: str = ""
    """The name of the storage."""
    state: str = ""
    """`available`, `paused`, `draining`, `unavailable` or `error`."""
    requested_state: str = ""
    """The state that an operator asked for."""
    reason: str = ""
    """Why the partition is in its state."""
    since: Timestamp | None = None
    """When the partition entered its state."""
    resume_at: Timestamp | None = None
    """When a pause ends by itself."""
    total: Int32 = 0
    leased: Int32 = 0
    scheduled: Int32 = 0
    drained: bool = False
    """Whether the partition is draining and nothing is left."""
    bytes_: Int64 = 0
    """The size of the partition's file and of its write-ahead log."""
    job_id: str = ""
    """The job's id; empty if there is none."""
    file: str = ""
    """The partition's file, below the storage's directory."""


class DaemonStatusRequest(Message):
    pass


class LoggedWarning(Message):
    at: Timestamp | None = None
    """When it was logged."""
    level: str = ""
    """`warning`, `error` or `critical`."""
    message: str = ""
    """What happened, in a sentence."""
    fields: dict[str, str] = {}
    """What it is about, such as `queue` and `reason`."""


class DaemonStatus(Message):
    version: str = ""
    """The version of Querator."""
    pid: Int32 = 0
    """The number of the daemon's process."""
    started_at: Timestamp | None = None
    """When the daemon started."""
    uptime_ms: Int64 = 0
    """How long ago that was."""
    now: Timestamp | None = None
    """The daemon's time."""
    data: str = ""
    """The data directory on the daemon's machine; only for admins."""
    queues: Int32 = 0
    """How many queues there are that the caller may see."""
    partitions: Int32 = 0
    """How many partitions they have."""
    memory_bytes: Int64 = 0
    """The memory that the process uses."""
    cpu_ms: Int64 = 0
    """The processor time that the process has used since its start."""
    commits: Int64 = 0
    """How often something was made durable since the start."""
    commit_mean_us: Int64 = 0
    """How long that took on average."""
    commit_p99_us: Int64 = 0
    """99 of 100 took at most this long."""
    warnings: list[LoggedWarning] = []
    """The last 100 warnings and errors of the log, the latest first. Deaths of items are left out."""


class StoragesListRequest(Message):
    pass


class StorageStatus(Message):
    storage: str = ""
    directory: str = ""
    """The storage's directory on the daemon's machine."""
    partitions: Int32 = 0
    """How many partitions of queues are placed in the storage, whether their files can be read or not."""
    partition_bytes: Int64 = 0
    """The disk space of the files of these partitions. Other files do not count."""
    journal_bytes: Int64 = 0
    """The size of its journal."""
    unapplied_bytes: Int64 = 0
    """Bytes in the journal that are not in the partition files yet."""
    free_bytes: Int64 = 0
    """Free space on its disk."""
    total_bytes: Int64 = 0
    """The size of its disk."""
    reason: str = ""
    """Why the storage cannot be used or takes no more items; empty if it works."""


class StoragesListResponse(Message):
    items: list[StorageStatus] = []


class PartitionsListResponse(Message):
    items: list[PartitionStatus] = []


class PartitionsRequest(Message):
    """Resume, drain, offline, verify and compact. No partitions named means all of them."""

    queue_name: str = ""
    partitions: list[Int32] = []
    """The numbers of the partitions; none means all."""


class PartitionsReloadRequest(Message):
    queue_name: str = ""
    partitions: list[Int32] = []
    keep_states: bool = False
    """Keep each partition's requested state, and skip offline partitions."""


class PartitionsPauseRequest(Message):
    queue_name: str = ""
    partitions: list[Int32] = []
    for_: str = ""
    """Resume the partitions after this duration."""


class PartitionsMigrateRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    to_partition: Int32 | None = None
    """The partition that takes the items."""
    to_storage: str = ""
    """The storage that takes the file."""


class PartitionsBackupRequest(Message):
    queue_name: str = ""
    partitions: list[Int32] = []
    to: str = ""
    """A directory on the daemon's machine."""


class PartitionsRestoreRequest(Message):
    """A queue that does not exist is created from the settings in the backup."""

    queue_name: str = ""
    partitions: list[Int32] = []
    from_: str = ""
    """The directory of the backup, on the daemon's machine."""
    dry_run: bool = False
    """Run every check, change nothing, and start no job."""


class PartitionsAcceptLossRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    dry_run: bool = False
    """Whether to report only what would be given up, and change nothing."""


class PartitionsAcceptLossResponse(Message):
    """What was given up, and what the partition still has."""

    reason: str = ""
    """Why the partition could not be trusted."""
    applied: Int64 = 0
    """The last journal record that the partition's file has."""
    replayed: Int64 = 0
    """How many later records the journal still has."""
    ready: Int64 = 0
    leased: Int64 = 0
    scheduled: Int64 = 0


class ItemsRedriveRequest(Message):
    """Return the ready items of a dead queue that meet a condition to the queues in which they died."""

    queue_name: str = ""
    where: str = ""
    """Only items that meet this condition, in the SQL of `/v1/sql` over the columns of one item; empty for all."""
    to: str = ""
    """Send all items to this queue, instead of the queue in which each died."""
    expected: Int64 = 0
    """How many items the caller expects, for the job's progress; 0 if unknown."""


class ItemsDeleteRequest(Message):
    """Delete the ready items of a queue that meet a condition."""

    queue_name: str = ""
    where: str = ""
    expected: Int64 = 0


class JobReply(Message):
    job_id: str = ""


class JobRequest(Message):
    job_id: str = ""


class Job(Message):
    job_id: str = ""
    kind: str = ""
    """What the job does."""
    queue_name: str = ""
    partition: Int32 = 0
    state: str = ""
    """`running`, `done`, `failed` or `cancelled`."""
    done: Int64 = 0
    """Items or bytes so far."""
    total: Int64 = 0
    """Items or bytes in all."""
    reason: str = ""
    """Why the job failed."""
    created_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    """When the job ended."""


class JobsListRequest(Message):
    pass


class JobsListResponse(Message):
    items: list[Job] = []


# -- clock.* and sql


class ClockAdvanceRequest(Message):
    by: str = ""
    """How far, as a duration."""


class ClockSetRequest(Message):
    now: Timestamp | None = None
    """The time."""


class ClockResponse(Message):
    now: Timestamp | None = None


class SqlRequest(Message):
    queue_name: str = ""
    query: str = ""
    """One SELECT over the tables `items`, `leases` and `scheduled`. Their column `text` is the payload as text."""
    format: str = ""
    """`json` (the default), `ndjson`, `csv` or `arrow`."""
    timeout: str = ""
    """How long the query may run, as a duration."""
    limit: Int32 = 0
    latest: Int32 = 0
    """The query sees only about this many of the latest rows of `items`, which bounds how long it runs; 0 for all."""
