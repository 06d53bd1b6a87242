"""Querator: a durable lease queue for operators."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querator.client import AsyncClient, Client
    from querator.config import ClientTls

__all__ = ["AsyncClient", "Client", "ClientTls", "__version__"]
__version__ = "0.1.0"

if os.environ.get("QUERATOR_PURE", "").lower() not in ("", "0", "false", "no"):
    from querator import build

    build.use_plain_modules()


def __getattr__(name: str) -> Any:
    # Every completion imports this package, so the client is imported when its name is used.
    if name in ("AsyncClient", "Client"):
        from querator import client

        return getattr(client, name)
    if name == "ClientTls":
        from querator.config import ClientTls

        return ClientTls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
