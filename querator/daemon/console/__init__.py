"""The console: web pages of the daemon, for looking and for acting under pressure.

Pages are rendered on the server and work without scripts, except for the values under the pointer in charts. A page
gets everything from the daemon's own calls, made in process (`asking`), so that rights, checks and logs apply to it as
to any client. Nothing here is imported before the first page is opened.
"""

from __future__ import annotations

import asyncio
import importlib

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from querator.daemon.access import Access

__all__ = ["console_routes"]


def console_routes(access: Access) -> list[BaseRoute]:
    site = _OnFirstUse(access)
    return [Route("/console", site), Mount("/console", app=site)]


class _OnFirstUse:
    """Imports the pages, in a thread, when the first request comes."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            module = await asyncio.to_thread(importlib.import_module, "querator.daemon.console.site")
            self._app = self._app or module.Site(self._access)
        await self._app(scope, receive, send)
