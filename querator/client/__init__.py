"""The client library: `Client`, `AsyncClient` and `BulkClient`.

What stands behind them is their own business: the catalogue of calls, the connection, and when a call is repeated.
Nothing here knows the daemon or the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from querator.client.bulk_client import BulkClient
    from querator.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "BulkClient", "Client"]

_MODULES: Final = {"AsyncClient": "clients", "BulkClient": "bulk_client", "Client": "clients"}


def __getattr__(name: str) -> Any:
    # A command imports the catalogue of calls alone; pyarrow and the connection are for whoever asks for them.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
