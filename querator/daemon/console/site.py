"""The ASGI app of the console: finds the page, renders it, and adds the security headers to every answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from querator.daemon.access import Access
from querator.daemon.console import (
    daemon_page,
    dead_page,
    items_page,
    jobs_page,
    overview_page,
    queue_page,
    sign_in_page,
    sql_page,
)
from querator.daemon.console.item_actions import ITEM_ACTIONS
from querator.daemon.console.pages import ConsolePage, Redirect, command, render, static
from querator.daemon.console.partition_actions import PARTITION_ACTIONS
from querator.daemon.console.plans import action_page
from querator.daemon.console.sessions import Sessions
from querator.daemon.console.visits import Desk, Visit, address
from querator.errors import Forbidden, NotFound, QueratorError, Unauthorized

log = logging.getLogger("querator.console")

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
SIGN_IN: Final = "/sign-in"
Handler = Callable[[Visit], Awaitable[ConsolePage | Redirect]]
PAGES: Final[Mapping[str, Handler]] = {
    "/": overview_page.show,
    "/queue": queue_page.show,
    "/leases": queue_page.show_leases,
    "/settings": queue_page.show_settings,
    "/items": items_page.show,
    "/item": items_page.show_one,
    "/dead": dead_page.show,
    "/sql": sql_page.show,
    "/jobs": jobs_page.show,
    "/daemon": daemon_page.show,
    SIGN_IN: sign_in_page.show,
    "/sign-out": sign_in_page.sign_out,
    **{f"/act/{name}": action_page(action) for name, action in {**PARTITION_ACTIONS, **ITEM_ACTIONS}.items()},
}


class Site:
    def __init__(self, access: Access) -> None:
        self._desk = Desk()
        self._sessions = Sessions(access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(scope, receive)
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        path = scope["path"].removeprefix("/console")
        if path.startswith("/static/"):
            return static(path.removeprefix("/static/"))
        try:
            visit = Visit(self._desk, self._sessions, scope, receive)
        except QueratorError as error:
            return Response(error.message, 400, media_type="text/plain")
        try:
            return _response(visit, await self._find(visit))
        except QueratorError as error:
            return _response(visit, _failure(error.message, _status(error)))
        except Exception:
            log.exception("a page of the console failed", extra={"path": visit.path})
            return _response(visit, _failure("The console has failed. The log of the daemon has the details.", 500))

    async def _find(self, visit: Visit) -> ConsolePage | Redirect:
        handler = PAGES.get(visit.path)
        if handler is None:
            raise NotFound(f"there is no page {visit.path}")
        body = await visit.read_body()
        if visit.method == "POST":
            visit.take_form(body)
        elif visit.method not in ("GET", "HEAD"):
            raise Forbidden(f"{visit.method} is not used here")
        if visit.refusal is not None and "authorization" in visit.headers:
            await visit.sessions.record_failure(visit.peer, visit.refusal)
        if visit.caller is None and visit.path != SIGN_IN:
            return Redirect(address(SIGN_IN, to=visit.place if visit.method == "GET" else ""))
        return await handler(visit)


def _response(visit: Visit, found: ConsolePage | Redirect) -> Response:
    response: Response
    if isinstance(found, Redirect):
        response = RedirectResponse(found.address, 303)
    else:
        response = Response(render(visit, found), found.status, media_type="text/html")
    response.headers["cache-control"] = "no-store"
    if visit.is_new:
        response.set_cookie(
            visit.cookie_name, visit.visitor, path="/console", httponly=True, samesite="strict", secure=visit.is_secure
        )
    return response


def _failure(message: str, status: int) -> ConsolePage:
    return ConsolePage(
        "error.html", "This did not work", {"message": message}, commands=(command("doctor"),), status=status
    )


def _status(error: QueratorError) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, Unauthorized | Forbidden):
        return error.code
    return 400 if 400 <= error.code < 500 else 500
