"""The table of calls: the path below `/v1/`, the message in the body, and how long the body may be.

Our protocol class answers calls marked `hot` if it remembers the client's request head. The ASGI app answers all
others. The bulk endpoints (`/v1/bulk/...`) are not calls but streams: `bulk` passes them to the ASGI app as routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from querator import limits
from querator.wire import access_messages, messages

PREFIX: Final = "/v1/"


class Route(NamedTuple):
    path: str
    message: type[Any]
    """The type of the request body."""
    body_bytes_max: int
    hot: bool = False
    only_with_test_clock: bool = False
    refusal: str = ""
    """If set, every valid request gets 453 with this text: the call needs something that this daemon does not have."""


def _routes(*names: str, message: type[Any], body_bytes_max: int = limits.BODY_BYTES_MAX, **more: Any) -> list[Route]:
    return [Route(name, message, body_bytes_max, **more) for name in names]


_SMALL: Final = limits.SMALL_BODY_BYTES_MAX
_NO_NAMESPACES: Final = "namespace storage not configured"
_NO_USERS: Final = "user storage not configured"
_NO_KEYS: Final = "api key storage not configured"
_NO_ROLES: Final = "role storage not configured"
_NO_BINDINGS: Final = "role binding storage not configured"

_TABLE: Final[tuple[Route, ...]] = (
    # Items
    Route("queue.produce", messages.QueueProduceRequest, limits.PRODUCE_BODY_BYTES_MAX, hot=True),
    Route("queue.lease", messages.QueueLeaseRequest, _SMALL, hot=True),
    Route("queue.complete", messages.QueueCompleteRequest, limits.BODY_BYTES_MAX, hot=True),
    Route("queue.retry", messages.QueueRetryRequest, limits.BODY_BYTES_MAX, hot=True),
    Route("queue.extend", messages.QueueExtendRequest, limits.BODY_BYTES_MAX, hot=True),
    # One queue
    Route("queue.stats", messages.QueueStatsRequest, _SMALL),
    Route("queue.clear", messages.QueueClearRequest, _SMALL),
    Route("queue.reload", messages.QueueReloadRequest, _SMALL),
    # Queues
    Route("queues.create", messages.QueueInfo, limits.BODY_BYTES_MAX),
    Route("queues.list", messages.QueuesListRequest, limits.BODY_BYTES_MAX),
    Route("queues.update", messages.QueueInfo, limits.UPDATE_BODY_BYTES_MAX),
    Route("queues.delete", messages.QueuesDeleteRequest, limits.BODY_BYTES_MAX),
    Route("queues.info", messages.QueuesInfoRequest, limits.BODY_BYTES_MAX),
    Route("queues.history", messages.QueuesHistoryRequest, _SMALL),
    Route("queues.overview", messages.QueuesOverviewRequest, _SMALL),
    # What is stored
    Route("storage/items.list", messages.StorageItemsListRequest, limits.BODY_BYTES_MAX),
    Route("storage/items.import", messages.StorageItemsImportRequest, limits.IMPORT_BODY_BYTES_MAX),
    Route("storage/items.delete", messages.StorageItemsDeleteRequest, limits.BODY_BYTES_MAX),
    Route("storage/scheduled.list", messages.StorageItemsListRequest, limits.BODY_BYTES_MAX),
    Route("items.inspect", messages.ItemsInspectRequest, limits.BODY_BYTES_MAX),
    Route("sql", messages.SqlRequest, limits.BODY_BYTES_MAX),
    # Partitions and jobs
    Route("partitions.list", messages.PartitionsListRequest, limits.BODY_BYTES_MAX),
    Route("partitions.pause", messages.PartitionsPauseRequest, limits.BODY_BYTES_MAX),
    *_routes(
        "partitions.resume",
        "partitions.drain",
        "partitions.offline",
        "partitions.verify",
        "partitions.compact",
        message=messages.PartitionsRequest,
    ),
    Route("partitions.reload", messages.PartitionsReloadRequest, limits.BODY_BYTES_MAX),
    Route("partitions.accept_loss", messages.PartitionsAcceptLossRequest, limits.BODY_BYTES_MAX),
    Route("partitions.migrate", messages.PartitionsMigrateRequest, limits.BODY_BYTES_MAX),
    Route("partitions.backup", messages.PartitionsBackupRequest, limits.BODY_BYTES_MAX),
    Route("partitions.restore", messages.PartitionsRestoreRequest, limits.BODY_BYTES_MAX),
    Route("jobs.list", messages.JobsListRequest, limits.BODY_BYTES_MAX),
    Route("storages.list", messages.StoragesListRequest, limits.BODY_BYTES_MAX),
    *_routes("jobs.show", "jobs.cancel", message=messages.JobRequest),
    # The test clock
    Route("clock.advance", messages.ClockAdvanceRequest, _SMALL, only_with_test_clock=True),
    Route("clock.set", messages.ClockSetRequest, _SMALL, only_with_test_clock=True),
    # Access control, which this daemon does not have
    *_routes("namespaces.create", "namespaces.update", message=access_messages.NamespaceInfo, refusal=_NO_NAMESPACES),
    *_routes("namespaces.list", message=access_messages.NamespacesListRequest, refusal=_NO_NAMESPACES),
    *_routes("namespaces.delete", message=access_messages.NamespacesDeleteRequest, refusal=_NO_NAMESPACES),
    *_routes("users.create", message=access_messages.UsersCreateRequest, refusal=_NO_USERS),
    *_routes("users.list", message=access_messages.UsersListRequest, refusal=_NO_USERS),
    *_routes("users.delete", message=access_messages.UsersDeleteRequest, refusal=_NO_USERS),
    *_routes("apikeys.create", message=access_messages.APIKeysCreateRequest, refusal=_NO_USERS),
    *_routes("apikeys.list", message=access_messages.APIKeysListRequest, refusal=_NO_KEYS),
    *_routes("apikeys.delete", message=access_messages.APIKeysDeleteRequest, refusal=_NO_KEYS),
    *_routes("roles.create", message=access_messages.RolesCreateRequest, refusal=_NO_NAMESPACES),
    *_routes("roles.list", message=access_messages.RolesListRequest, refusal=_NO_ROLES),
    *_routes("roles.update", message=access_messages.RolesUpdateRequest, refusal=_NO_ROLES),
    *_routes("roles.delete", message=access_messages.RolesDeleteRequest, refusal=_NO_ROLES),
    *_routes("rolebindings.create", message=access_messages.RoleBindingsCreateRequest, refusal=_NO_ROLES),
    *_routes("rolebindings.delete", message=access_messages.RoleBindingsDeleteRequest, refusal=_NO_ROLES),
    *_routes("rolebindings.list", message=access_messages.RoleBindingsListRequest, refusal=_NO_BINDINGS),
)


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
