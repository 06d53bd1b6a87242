"""The table of calls: the path below `/v1/`, the message in the body, and what a caller needs for it.

Our protocol class answers calls marked `hot` if it remembers the client's request head. The ASGI app answers all
others. The bulk endpoints (`/v1/bulk/...`) are not calls but streams: `bulk` passes them to the ASGI app as routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from querator import limits
from querator.daemon.access import Right
from querator.wire import access_messages, messages

PREFIX: Final = "/v1/"
LEASE: Final = "queue.lease"
"""The only call that waits for long. It ends when its caller ends."""


class Route(NamedTuple):
    path: str
    message: type[Any]
    """The type of the request body."""
    body_bytes_max: int
    right: Right
    """What the caller needs, on every queue that the request names."""
    queues: tuple[str, ...] = ("queue_name",)
    """The fields that name queues."""
    queues_if_given: tuple[str, ...] = ()
    """Fields that name queues and can be empty."""
    audited: bool = False
    """Whether the call changes something that an operator must be able to trace."""
    hot: bool = False
    only_with_test_clock: bool = False
    refusal: str = ""
    """If set, every valid request gets 453 with this text: the call needs something that this daemon does not have."""

    def queues_in(self, request: Any) -> list[str]:
        """Every queue that a request names."""
        given = [name for field in self.queues_if_given if (name := getattr(request, field))]
        return [getattr(request, field) for field in self.queues] + given


_SMALL: Final = limits.SMALL_BODY_BYTES_MAX
_NO_NAMESPACES: Final = "namespace storage not configured"
_NO_USERS: Final = "user storage not configured"
_NO_KEYS: Final = "api key storage not configured"
_NO_ROLES: Final = "role storage not configured"
_NO_BINDINGS: Final = "role binding storage not configured"

_BODY: Final = limits.BODY_BYTES_MAX
_VIEW, _CONSUME, _OPERATE, _ADMIN = Right.VIEW, Right.CONSUME, Right.OPERATE, Right.ADMIN


def _change(path: str, message: type[Any], right: Right = _OPERATE, body_bytes_max: int = _BODY, **more: Any) -> Route:
    """A call that changes something, so it is audited."""
    return Route(path, message, body_bytes_max, right, audited=True, **more)


def _no_queue(path: str, message: type[Any], right: Right, **more: Any) -> Route:
    """A call that names no queue."""
    return Route(path, message, _BODY, right, queues=(), **more)


def _refused(path: str, message: type[Any], refusal: str) -> Route:
    return _no_queue(path, message, Right.ANY, refusal=refusal)


_TABLE: Final[tuple[Route, ...]] = (
    # Items
    Route("queue.produce", messages.QueueProduceRequest, limits.PRODUCE_BODY_BYTES_MAX, Right.PRODUCE, hot=True),
    Route(LEASE, messages.QueueLeaseRequest, _SMALL, _CONSUME, hot=True),
    Route("queue.complete", messages.QueueCompleteRequest, _BODY, _CONSUME, hot=True),
    Route("queue.retry", messages.QueueRetryRequest, _BODY, _CONSUME, hot=True),
    Route("queue.extend", messages.QueueExtendRequest, _BODY, _CONSUME, hot=True),
    # One queue
    _change("queue.release", messages.QueueRetryRequest, _CONSUME),
    Route("queue.stats", messages.QueueStatsRequest, _SMALL, _VIEW),
    _change("queue.clear", messages.QueueClearRequest, body_bytes_max=_SMALL),
    _change("queue.reload", messages.QueueReloadRequest, body_bytes_max=_SMALL),
    # Queues
    _change("queues.create", messages.QueueInfo, queues_if_given=("dead_queue",)),
    _no_queue("queues.list", messages.QueuesListRequest, _VIEW),
    _change(
        "queues.update",
        messages.QueueInfo,
        body_bytes_max=limits.UPDATE_BODY_BYTES_MAX,
        queues_if_given=("dead_queue",),
    ),
    _change("queues.delete", messages.QueuesDeleteRequest),
    Route("queues.info", messages.QueuesInfoRequest, _BODY, _VIEW),
    Route("queues.history", messages.QueuesHistoryRequest, _SMALL, _VIEW),
    Route("queues.overview", messages.QueuesOverviewRequest, _SMALL, _VIEW, ()),
    # What is stored
    Route("storage/items.list", messages.StorageItemsListRequest, _BODY, _VIEW),
    _change("storage/items.import", messages.StorageItemsImportRequest, body_bytes_max=limits.IMPORT_BODY_BYTES_MAX),
    _change("storage/items.delete", messages.StorageItemsDeleteRequest),
    Route("storage/scheduled.list", messages.StorageItemsListRequest, _BODY, _VIEW),
    Route("items.inspect", messages.ItemsInspectRequest, _BODY, _VIEW),
    _change("items.redrive", messages.ItemsRedriveRequest, queues_if_given=("to",)),
    _change("items.delete", messages.ItemsDeleteRequest),
    Route("sql", messages.SqlRequest, _BODY, _VIEW),
    # Partitions and jobs
    Route("partitions.list", messages.PartitionsListRequest, _BODY, _VIEW, (), ("queue_name",)),
    _change("partitions.pause", messages.PartitionsPauseRequest),
    _change("partitions.resume", messages.PartitionsRequest),
    _change("partitions.drain", messages.PartitionsRequest),
    _change("partitions.offline", messages.PartitionsRequest),
    _change("partitions.verify", messages.PartitionsRequest),
    _change("partitions.compact", messages.PartitionsRequest),
    _change("partitions.reload", messages.PartitionsReloadRequest),
    _change("partitions.accept_loss", messages.PartitionsAcceptLossRequest),
    _change("partitions.migrate", messages.PartitionsMigrateRequest),
    # These name directories of the daemon's machine.
    _change("partitions.backup", messages.PartitionsBackupRequest, _ADMIN),
    _change("partitions.restore", messages.PartitionsRestoreRequest, _ADMIN),
    _no_queue("jobs.list", messages.JobsListRequest, _VIEW),
    _no_queue("jobs.show", messages.JobRequest, _VIEW),
    _no_queue("jobs.cancel", messages.JobRequest, _OPERATE, audited=True),
    _no_queue("storages.list", messages.StoragesListRequest, _VIEW),
    _no_queue("daemon.status", messages.DaemonStatusRequest, _VIEW),
    # Tokens
    _no_queue("tokens.create", access_messages.TokensCreateRequest, _ADMIN, audited=True),
    _no_queue("tokens.list", access_messages.TokensListRequest, _ADMIN),
    _no_queue("tokens.revoke", access_messages.TokenRequest, _ADMIN, audited=True),
    _no_queue("tokens.rotate", access_messages.TokensRotateRequest, _ADMIN, audited=True),
    _no_queue("audit.list", access_messages.AuditListRequest, _ADMIN),
    _no_queue("tokens.whoami", access_messages.TokensWhoamiRequest, Right.ANY),
    # The test clock
    Route("clock.advance", messages.ClockAdvanceRequest, _SMALL, _ADMIN, (), only_with_test_clock=True),
    Route("clock.set", messages.ClockSetRequest, _SMALL, _ADMIN, (), only_with_test_clock=True),
    # Access control of the original service, which this daemon does not have
    _refused("namespaces.create", access_messages.NamespaceInfo, _NO_NAMESPACES),
    _refused("namespaces.update", access_messages.NamespaceInfo, _NO_NAMESPACES),
    _refused("namespaces.list", access_messages.NamespacesListRequest, _NO_NAMESPACES),
    _refused("namespaces.delete", access_messages.NamespacesDeleteRequest, _NO_NAMESPACES),
    _refused("users.create", access_messages.UsersCreateRequest, _NO_USERS),
    _refused("users.list", access_messages.UsersListRequest, _NO_USERS),
    _refused("users.delete", access_messages.UsersDeleteRequest, _NO_USERS),
    _refused("apikeys.create", access_messages.APIKeysCreateRequest, _NO_USERS),
    _refused("apikeys.list", access_messages.APIKeysListRequest, _NO_KEYS),
    _refused("apikeys.delete", access_messages.APIKeysDeleteRequest, _NO_KEYS),
    _refused("roles.create", access_messages.RolesCreateRequest, _NO_NAMESPACES),
    _refused("roles.list", access_messages.RolesListRequest, _NO_ROLES),
    _refused("roles.update", access_messages.RolesUpdateRequest, _NO_ROLES),
    _refused("roles.delete", access_messages.RolesDeleteRequest, _NO_ROLES),
    _refused("rolebindings.create", access_messages.RoleBindingsCreateRequest, _NO_ROLES),
    _refused("rolebindings.delete", access_messages.RoleBindingsDeleteRequest, _NO_ROLES),
    _refused("rolebindings.list", access_messages.RoleBindingsListRequest, _NO_BINDINGS),
)
STREAMS: Final = {
    "items.plan": Right.VIEW,
    "items.scan": Right.VIEW,
    "items.produce": Right.PRODUCE,
    "items.import": Right.OPERATE,
}
"""What a caller needs for each bulk endpoint, on the queue that the request names."""
AUDITED_STREAMS: Final = ("items.import",)
PAGES: Final = {"/metrics": Right.VIEW, "/health": Right.ANY}
"""What a caller needs for each page. A page shows only the queues that its caller may see."""


def routes_by_path(*, test_clock: bool = False, routes: Iterable[Route] = _TABLE) -> Mapping[str, Route]:
    """The calls of one daemon, by their full path."""
    return {PREFIX + route.path: route for route in routes if test_clock or not route.only_with_test_clock}


def over_limit_text(bytes_max: int) -> str:
    """The wire contract's text for a body that is too long. The unit is binary if the limit divides by 1024."""
    base, units = (1024, ("KiB", "MiB")) if bytes_max % 1024 == 0 else (1000, ("kB", "MB"))
    size, unit = f"{bytes_max}", "B"
    for power, name in enumerate(units, start=1):
        if bytes_max >= base**power:
            size, unit = f"{bytes_max / base**power:.1f}", name
    return f"request body exceeds {size}{unit} limit"
