"""Every message of the wire as a struct: what the service and the client read and write, whatever the encoding.

An attribute carries the JSON name of its field, with a trailing underscore where Python has the word already. Times
are microseconds since 1970 with None for unset, durations stay text, and a default is what an absent field means.
Field numbers and the camelCase names live in `querator.proto`; a test holds the two together.
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
        """Stands for int, as a type of its own so that the JSON decoder asks us what its text means."""


Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Message(
    msgspec.Struct,
    gc=False,  # messages are trees, never cycles
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename=lambda name: name.rstrip("_"),
):
    """What all messages have in common: zero values are left out, unknown fields are refused."""


class Reply(Message):
    code: Int32 = 0
    code_text: str = ""
    message: str = ""
    details: dict[str, str] = {}


# -- queue.*


class QueueProduceItem(Message):
    encoding: str = ""
    kind: str = ""
    reference: str = ""
    enqueue_at: Timestamp | None = None
    bytes_: bytes = b""
    utf8: str = ""

    @property
    def payload(self) -> bytes:
        return self.bytes_ or self.utf8.encode()


class QueueProduceRequest(Message):
    queue_name: str = ""
    request_timeout: str = ""
    items: list[QueueProduceItem] = []
    request_id: str = ""


def payloads(request: QueueProduceRequest) -> list[bytes]:
    return [item.bytes_ or item.utf8.encode() for item in request.items]


class QueueLeaseRequest(Message):
    queue_name: str = ""
    batch_size: Int32 = 0
    client_id: str = ""
    request_timeout: str = ""
    complete_ids: list[str] = []


class QueueLeaseItem(Message):
    encoding: str = ""
    kind: str = ""
    reference: str = ""
    id: str = ""
    attempts: Int32 = 0
    lease_deadline: Timestamp | None = None
    bytes_: bytes = b""

    @property
    def payload(self) -> bytes:
        return self.bytes_


class QueueLeaseResponse(Message):
    queue_name: str = ""
    partition: Int32 = 0
    items: list[QueueLeaseItem] = []


class QueueCompleteRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    request_timeout: str = ""
    ids: list[str] = []


class QueueRetryItem(Message):
    id: str = ""
    retry_at: Timestamp | None = None
    dead: bool = False
    unused: bool = False
    reason: str = ""


class QueueRetryRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    items: list[QueueRetryItem] = []


class QueueExtendRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    ids: list[str] = []
    lease_timeout: str = ""


class QueueExtendItem(Message):
    id: str = ""
    lease_deadline: Timestamp | None = None


class QueueExtendResponse(Message):
    items: list[QueueExtendItem] = []


class QueueClearRequest(Message):
    queue_name: str = ""
    scheduled: bool = False
    queue: bool = False
    destructive: bool = False
    counts: bool = False


class QueueReloadRequest(Message):
    queue_name: str = ""


class QueueStatsRequest(Message):
    queue_name: str = ""


class QueuePartitionStats(Message):
    partition: Int32 = 0
    total: Int32 = 0
    total_leased: Int32 = 0
    failures: Int32 = 0
    average_age: str = ""
    average_leased_age: str = ""
    scheduled: Int32 = 0


class QueueLogicalStats(Message):
    produce_waiting: Int32 = 0
    lease_waiting: Int32 = 0
    complete_waiting: Int32 = 0
    in_flight: Int32 = 0
    partitions: list[QueuePartitionStats] = []


class QueueStatsResponse(Message):
    queue_name: str = ""
    logical_queues: list[QueueLogicalStats] = msgspec.field(default_factory=list, name="logicalQueues")


# -- queues.*


class PartitionInfo(Message):
    partition: Int32 = 0


class QueueFigures(Message):
    """What a queue holds and does at the moment."""

    ready: Int32 = 0
    leased: Int32 = 0
    scheduled: Int32 = 0
    produced_last_minute: Int64 = 0
    completed_last_minute: Int64 = 0
    oldest_age: str = ""


class QueueInfo(Message):
    queue_name: str = ""
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    dead_queue: str = ""
    reference: str = ""
    lease_timeout: str = ""
    expire_timeout: str = ""
    max_attempts: Int32 = 0
    requested_partitions: Int32 = 0
    partitions: list[PartitionInfo] = []
    namespace: str = ""
    retention: str = ""
    figures: QueueFigures | None = None
    """Only in answers to requests that are `extended`."""


class QueuesInfoRequest(Message):
    queue_name: str = ""
    extended: bool = False


class QueuesListRequest(Message):
    pivot: str = ""
    limit: Int32 = 0
    namespace: str = ""
    extended: bool = False


class QueuesListResponse(Message):
    items: list[QueueInfo] = []


class QueuesDeleteRequest(Message):
    queue_name: str = ""
    force: bool = False


# -- storage/* and items.*


class StorageItem(Message):
    """In replies `lease_deadline`, `expire_deadline` and `created_at` are always set; un-leased is year 1."""

    id: str = ""
    source_id: str = ""
    is_leased: bool = False
    lease_deadline: Timestamp | None = None
    expire_deadline: Timestamp | None = None
    dead_deadline: Timestamp | None = None
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    enqueue_at: Timestamp | None = None
    attempts: Int32 = 0
    max_attempts: Int32 = 0
    reference: str = ""
    encoding: str = ""
    kind: str = ""
    payload: bytes = b""
    client_id: str = ""
    leased_at: Timestamp | None = None


class StorageItemsListRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    pivot: str = ""
    limit: Int32 = 0


class StorageItemsListResponse(Message):
    items: list[StorageItem] = []


class StorageItemsImportRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    items: list[StorageItem] = []


class StorageItemsImportResponse(Message):
    items: list[StorageItem] = []


class StorageItemsDeleteRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    ids: list[str] = []
    purpose: str = ""


class ItemsInspectRequest(Message):
    queue_name: str = ""
    id: str = ""


class ItemDeath(Message):
    queue_name: str = ""
    source_id: str = ""
    reason: str = ""
    attempts: Int32 = 0
    at: Timestamp | None = None


class FailedAttempt(Message):
    attempt: Int32 = 0
    at: Timestamp | None = None
    client_id: str = ""
    held: str = ""
    reason: str = ""


class ItemsInspectResponse(Message):
    item: StorageItem | None = None
    state: str = ""
    partition: Int32 = 0
    history: list[ItemDeath] = []
    failed_attempts: list[FailedAttempt] = []


# -- partitions.* and jobs.*


class PartitionsListRequest(Message):
    queue_name: str = ""


class PartitionStatus(Message):
    queue_name: str = ""
    partition: Int32 = 0
    storage: str = ""
    state: str = ""
    requested_state: str = ""
    reason: str = ""
    since: Timestamp | None = None
    resume_at: Timestamp | None = None
    total: Int32 = 0
    leased: Int32 = 0
    scheduled: Int32 = 0
    drained: bool = False
    bytes_: Int64 = 0
    job_id: str = ""
    file: str = ""


class StoragesListRequest(Message):
    pass


class StorageStatus(Message):
    storage: str = ""
    directory: str = ""
    partitions: Int32 = 0
    partition_bytes: Int64 = 0
    journal_bytes: Int64 = 0
    unapplied_bytes: Int64 = 0
    free_bytes: Int64 = 0
    total_bytes: Int64 = 0
    reason: str = ""


class StoragesListResponse(Message):
    items: list[StorageStatus] = []


class PartitionsListResponse(Message):
    items: list[PartitionStatus] = []


class PartitionsRequest(Message):
    """Resume, drain, offline, verify and compact. No partitions named means all of them."""

    queue_name: str = ""
    partitions: list[Int32] = []


class PartitionsReloadRequest(Message):
    queue_name: str = ""
    partitions: list[Int32] = []
    keep_states: bool = False


class PartitionsPauseRequest(Message):
    queue_name: str = ""
    partitions: list[Int32] = []
    for_: str = ""


class PartitionsMigrateRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    to_partition: Int32 | None = None
    to_storage: str = ""


class PartitionsBackupRequest(Message):
    queue_name: str = ""
    partitions: list[Int32] = []
    to: str = ""


class PartitionsRestoreRequest(Message):
    """A queue that does not exist is created from the settings in the backup."""

    queue_name: str = ""
    partitions: list[Int32] = []
    from_: str = ""
    dry_run: bool = False
    """Run every check, change nothing, and start no job."""


class PartitionsAcceptLossRequest(Message):
    queue_name: str = ""
    partition: Int32 = 0
    dry_run: bool = False
    """Tell what would be given up, and change nothing."""


class PartitionsAcceptLossResponse(Message):
    """What was given up, and what the partition still has."""

    reason: str = ""
    applied: Int64 = 0
    replayed: Int64 = 0
    ready: Int64 = 0
    leased: Int64 = 0
    scheduled: Int64 = 0


class JobReply(Message):
    job_id: str = ""


class JobRequest(Message):
    job_id: str = ""


class Job(Message):
    job_id: str = ""
    kind: str = ""
    queue_name: str = ""
    partition: Int32 = 0
    state: str = ""
    done: Int64 = 0
    total: Int64 = 0
    reason: str = ""
    created_at: Timestamp | None = None
    ended_at: Timestamp | None = None


class JobsListRequest(Message):
    pass


class JobsListResponse(Message):
    items: list[Job] = []


# -- clock.* and sql


class ClockAdvanceRequest(Message):
    by: str = ""


class ClockSetRequest(Message):
    now: Timestamp | None = None


class ClockResponse(Message):
    now: Timestamp | None = None


class SqlRequest(Message):
    queue_name: str = ""
    query: str = ""
    format: str = ""
    timeout: str = ""
    limit: Int32 = 0


# -- namespaces, users, keys, roles


class NamespaceInfo(Message):
    name: str = ""
    description: str = ""
    created_at: Timestamp | None = None
    api_key_tag: str = ""


class NamespacesListRequest(Message):
    pivot: str = ""
    limit: Int32 = 0


class NamespacesListResponse(Message):
    items: list[NamespaceInfo] = []


class NamespacesDeleteRequest(Message):
    name: str = ""


class User(Message):
    id: str = ""
    username: str = ""
    external_id: str = ""
    email: str = ""
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None


class UsersCreateRequest(Message):
    username: str = ""
    email: str = ""
    external_id: str = ""


class UsersCreateResponse(Message):
    id: str = ""


class UsersListRequest(Message):
    limit: Int32 = 0
    pivot: str = ""


class UsersListResponse(Message):
    items: list[User] = []


class UsersDeleteRequest(Message):
    id: str = ""


class APIKeyMetadata(Message):
    id: str = ""
    user_id: str = ""
    namespace_scope: str = ""
    name: str = ""
    prefix: str = ""
    expires_at: Timestamp | None = None
    last_used_at: Timestamp | None = None
    created_at: Timestamp | None = None


class APIKeysCreateRequest(Message):
    user_id: str = ""
    name: str = ""
    namespace_scope: str = ""
    expires_at: Timestamp | None = None
    key_tag: str = ""


class APIKeysCreateResponse(Message):
    id: str = ""
    key: str = ""
    prefix: str = ""


class APIKeysListRequest(Message):
    user_id: str = ""
    limit: Int32 = 0
    pivot: str = ""


class APIKeysListResponse(Message):
    items: list[APIKeyMetadata] = []


class APIKeysDeleteRequest(Message):
    id: str = ""


class Role(Message):
    id: str = ""
    namespace: str = ""
    name: str = ""
    permissions: list[str] = []
    created_at: Timestamp | None = None


class RolesCreateRequest(Message):
    namespace: str = ""
    name: str = ""
    permissions: list[str] = []


class RolesCreateResponse(Message):
    id: str = ""


class RolesUpdateRequest(Message):
    namespace: str = ""
    name: str = ""
    permissions: list[str] = []


class RolesListRequest(Message):
    namespace: str = ""
    limit: Int32 = 0
    pivot: str = ""


class RolesListResponse(Message):
    items: list[Role] = []


class RolesDeleteRequest(Message):
    namespace: str = ""
    name: str = ""


class RoleBinding(Message):
    id: str = ""
    namespace: str = ""
    user_id: str = ""
    role_id: str = ""
    created_at: Timestamp | None = None


class RoleBindingsCreateRequest(Message):
    namespace: str = ""
    role_name: str = ""
    user_id: str = ""


class RoleBindingsCreateResponse(Message):
    id: str = ""


class RoleBindingsListRequest(Message):
    namespace: str = ""
    user_id_filter: str = ""
    limit: Int32 = 0
    pivot: str = ""


class RoleBindingsListResponse(Message):
    items: list[RoleBinding] = []


class RoleBindingsDeleteRequest(Message):
    namespace: str = ""
    role_name: str = ""
    user_id: str = ""
