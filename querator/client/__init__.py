"""The client library: `Client`, `AsyncClient` and `BulkClient`.

The other names are for the command line and for Spark: the parser of addresses, and a pool of connections for code that
must not spend the time to import a whole client. All other modules here are private to this package. Nothing here knows
the daemon or the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from querator.client.bulk_client import PATIENCE_SECONDS, BulkClient
    from querator.client.catalogue import new_request_id, produce_item
    from querator.client.clients import AsyncClient, Client
    from querator.client.connection import ConnectionPool, parse_address

__all__ = [
    "PATIENCE_SECONDS",
    "AsyncClient",
    "BulkClient",
    "Client",
    "ConnectionPool",
    "new_request_id",
    "parse_address",
    "produce_item",
]

_MODULES: Final = {
    "PATIENCE_SECONDS": "bulk_client",
    "AsyncClient": "clients",
    "BulkClient": "bulk_client",
    "Client": "clients",
    "ConnectionPool": "connection",
    "new_request_id": "catalogue",
    "parse_address": "connection",
    "produce_item": "catalogue",
}


def __getattr__(name: str) -> Any:
    # A module is imported when one of its names is used: a completion must not pay for pyarrow or httpx.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
