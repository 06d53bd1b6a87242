"""Querator: a durable lease queue for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The command line imports this package for every word it completes; the client is for those who ask for it.
    if name in ("AsyncClient", "Client"):
        from querator.client import clients

        return getattr(clients, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
