"""The ASGI app. It answers `/health`, `/metrics` and every call that our protocol class does not answer itself."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final, NoReturn, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from querator import __version__, build
from querator.daemon.access import Access, Caller, Peer, Right
from querator.daemon.http.dispatch import ArchiveReport, Call, Calls, Refused, encode, over_limit
from querator.daemon.http.routes import LEASE, PAGES, PREFIX
from querator.daemon.metrics import CONTENT_TYPE, Metrics
from querator.daemon.queue import AnswerInParts
from querator.daemon.tls import ServerTls
from querator.errors import BY_CODE, InternalError, QueratorError, RequestFailed, Unauthorized
from querator.limits import LARGE_BODY_BYTES, LINGER_SECONDS, UNREAD_SECONDS_MAX
from querator.wire import content
from querator.wire.content import Codec

log = logging.getLogger("querator.transport")

# uvicorn does not know our codes. Answers of the app and of our protocol class begin with the same line.
STATUS_LINE.update({code: f"HTTP/1.1 {code} {error.code_text}\r\n".encode() for code, error in BY_CODE.items()})

NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
STANDBY_OF: Final = b"querator-standby-of"
LAG_SECONDS: Final = b"querator-lag-seconds"


def application(
    calls: Calls, metrics: Metrics, routes: Sequence[BaseRoute] = (), *, tls: ServerTls | None = None
) -> Starlette:
    """The app of a daemon. `routes` are those of the bulk endpoints and of the console; they come before the table of
    calls."""
    answer = CallEndpoint(calls)
    app = Starlette(
        routes=[
            Route("/metrics", Page(Scrape(metrics), calls, answer)),
            Route("/health", Page(Health(calls, tls), calls, answer)),
            *routes,
        ],
        middleware=[Middleware(EndAbortedAnswers), Middleware(SayLag, archive=calls.service.archive)],
        exception_handlers={Exception: internal_error},
    )
    app.router.redirect_slashes = False
    app.router.default = answer
    return app


class ClientGone(Exception):
    """The client has disconnected, so the request needs no answer."""


class CutOff(Exception):
    """An answer fails after it has begun. It is too late for an error status, so the body stays without its end."""

    def __init__(self, reason: str, *, is_unread: bool = False) -> None:
        super().__init__(reason)
        self.is_unread = is_unread
        """Whether the client has stopped reading. Then the connection is closed without waiting for the client."""


class EndAbortedAnswers:
    """Handles what uvicorn would log as an internal error.

    A client that is still sending when the daemon stops gets an answer. An answer that is cut off becomes one line in
    the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def tracked_send(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, tracked_send)
        except asyncio.CancelledError:
            if not begun:
                await send_reply(send, content.JSON, RequestFailed("service is shutting down"), close=True)
        except CutOff as cut:
            log.warning("an answer was cut off", extra={"path": scope["path"], "reason": str(cut)})
            scope["state"]["cut_off"](cut.is_unread)


class SayLag:
    """On a standby, makes answers as new as they can be, and says in their heads how old they are."""

    def __init__(self, app: ASGIApp, archive: ArchiveReport) -> None:
        self._app, self._archive = app, archive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/health" or not self._archive.is_standby:
            await self._app(scope, receive, send)
            return
        lag = await self._archive.catch_up()

        async def send_with_lag(message: Message) -> None:
            # A stranger does not learn who the owner is.
            if lag and message["type"] == "http.response.start" and message["status"] != Unauthorized.code:
                headers = [(STANDBY_OF, lag.owner.encode()), (LAG_SECONDS, lag.seconds_text.encode())]
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        await self._app(scope, receive, send_with_lag)


class CallEndpoint:
    """Answers the calls of the table. Any other path gets the error of the wire contract."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._waiting: dict[asyncio.Future[None], Caller] = {}
        """Waiting leases by the future that ends them, with their callers."""
        calls.access.on_ended.append(self._end_leases)

    def _end_leases(self) -> None:
        for ended, caller in self._waiting.items():
            if caller.ended and not ended.done():
                ended.set_result(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        codec, close = content.JSON, False
        peer = scope["state"]["peer"]
        try:
            call = self._calls.understand(scope["method"], scope["path"], scope["headers"], peer)
            codec = call.codec
            body = await read_body(scope, receive, call.route.body_bytes_max, codec)
            if call.caller.ended:
                raise Refused(Unauthorized(call.caller.ended), codec)
            result = await self._result(call, body, receive, peer)
        except Refused as refused:
            result, codec, close = refused.error, refused.codec, refused.close
            await hold_back(self._calls.access, scope, refused.error)
        except ClientGone:
            return
        except Exception:
            log.exception("request failed", extra={"path": scope["path"]})
            result = InternalError()
        self._calls.metrics.durations(scope["path"]).observe(perf_counter() - started)
        if isinstance(result, AnswerInParts):
            await send_parts(receive, send, codec, result)
        else:
            await send_reply(send, codec, result, close=close)

    async def _result(self, call: Call, body: bytes, receive: Receive, peer: Peer) -> Any:
        """The service's answer. Abandons the call if the client disconnects first, or if its caller ends."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def respond(result: Any) -> None:
            if not answered.done():
                answered.set_result(result)

        abandon = self._calls.start(call, body, respond, peer)
        if answered.done():
            return answered.result()
        gone = asyncio.ensure_future(receive())
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if call.name == LEASE:
            self._waiting[ended] = call.caller
        try:
            await asyncio.wait((answered, gone, ended), return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                return answered.result()
            if ended.done():
                raise Refused(Unauthorized(call.caller.ended), call.codec)
            raise ClientGone
        finally:
            self._waiting.pop(ended, None)
            gone.cancel()
            if not answered.done():
                answered.cancel()
                if abandon is not None:
                    abandon()


async def hold_back(access: Access, scope: Scope, error: QueratorError) -> None:
    """Records a failed authentication, and waits before the answer if that address fails often."""
    if not isinstance(error, Unauthorized):
        return
    peer = scope["state"]["peer"]
    access.audit.denied(None, peer, scope["path"].removeprefix(PREFIX), (), error)
    if not any(name == b"authorization" for name, _ in scope["headers"]):
        return
    if not await access.failed_attempts.hold_back(peer.host):
        raise CutOff("too many failed attempts to come in from this address", is_unread=True)


async def read_body(scope: Scope, receive: Receive, bytes_max: int, codec: Codec = content.JSON) -> bytes:
    """The whole body. Raises Refused as soon as the body is known to be too long."""
    expected = 0
    for name, value in scope["headers"]:
        if name == b"content-length":
            expected = int(value)
    if expected > bytes_max:
        raise over_limit(bytes_max, codec)
    connection = scope["state"].get("body_room")  # None for a body that the console has in memory already
    chunks, size, has_room = [], 0, connection is None
    try:
        while True:
            if not has_room and max(size, expected) > LARGE_BODY_BYTES:
                has_room = True
                await connection.wait_for_room(expected or bytes_max)
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > bytes_max:
                raise over_limit(bytes_max, codec)
            if not message.get("more_body", False):
                return b"".join(chunks)
    finally:
        if has_room and connection is not None:
            connection.leave_room()


async def send_reply(send: Send, codec: Codec, result: Any, *, close: bool = False) -> None:
    status, body = encode(codec, result)
    await send_body(send, status, codec.content_type, body, close=close)


async def send_body(send: Send, status: int, content_type: str, body: bytes, *, close: bool = False) -> None:
    headers = [(b"content-type", content_type.encode()), NOSNIFF, (b"content-length", b"%d" % len(body))]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_parts(receive: Receive, send: Send, codec: Codec, answer: AnswerInParts) -> None:
    """Sends an answer part by part, as fast as the client reads. Stops when the client disconnects."""
    gone = asyncio.ensure_future(receive())
    try:
        headers = [(b"content-type", codec.content_type.encode()), NOSNIFF]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        is_first = True
        async for part in answer:
            if gone.done():
                return
            await send({"type": "http.response.body", "body": codec.part(part, is_first), "more_body": True})
            await wait_until_read(send)
            is_first = False
        await send({"type": "http.response.body", "body": codec.end_of_parts})
    except QueratorError as error:
        await cut_off(send, error, tell=codec is content.JSON)
    finally:
        gone.cancel()


async def cut_off(send: Send, error: QueratorError, *, tell: bool) -> NoReturn:
    """Cuts an answer off. With `tell`, the last line of the answer is the error as a reply."""
    if tell:
        _, reply = encode(content.JSON, error)
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await send({"type": "http.response.body", "body": b"\n" + reply, "more_body": True})
        except TimeoutError:
            raise CutOff(error.message, is_unread=True) from None
    raise CutOff(error.message)


async def wait_until_read(send: Send) -> None:
    """Waits until the client has read most of what was sent, so that memory holds one part at a time."""
    try:
        async with asyncio.timeout(UNREAD_SECONDS_MAX):
            await send({"type": "http.response.body", "body": b"", "more_body": True})
    except TimeoutError:
        raise CutOff(f"the client has read nothing for {UNREAD_SECONDS_MAX:g}s", is_unread=True) from None


async def internal_error(request: Request, error: Exception) -> Response:
    """The answer to a request that hit a defect. The traceback goes to the log only."""
    log.error("request failed", exc_info=error, extra={"path": request.url.path})
    status, body = encode(content.JSON, InternalError())
    return Response(body, status, {"x-content-type-options": "nosniff"}, media_type=content.JSON.content_type)


class PageContent(Protocol):
    """What a page shows to a caller."""

    async def __call__(self, caller: Caller) -> Response: ...


class Page:
    """Answers GET for callers who may see the page, and measures the duration. Passes other methods to another app."""

    def __init__(self, content: PageContent, calls: Calls, otherwise: ASGIApp) -> None:
        self._content, self._calls, self._otherwise = content, calls, otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await self._otherwise(scope, receive, send)
            return
        started = perf_counter()
        path, peer, access = scope["path"], scope["state"]["peer"], self._calls.access
        try:
            headers = scope["headers"]
            if not access.needs_token:
                # Before there are tokens, pages ignore a token, as the wire contract says.
                headers = [(name, value) for name, value in headers if name != b"authorization"]
            caller = access.authenticate(peer, headers)
            access.admit(caller, peer, path, PAGES[path])
            await (await self._content(caller))(scope, receive, send)
        except QueratorError as error:
            await hold_back(access, scope, error)
            await send_reply(send, content.JSON, error)
        self._calls.metrics.durations(path).observe(perf_counter() - started)


class Health:
    def __init__(self, calls: Calls, tls: ServerTls | None) -> None:
        self._service = calls.service
        self._access = calls.access
        self._tls = tls

    async def __call__(self, caller: Caller) -> Response:
        is_healthy, output = self._service.health(caller)
        status = ("warn" if output else "pass") if is_healthy else "fail"
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        check = {"componentType": "datastore", "status": status, "time": now}
        if status != "pass":
            check["output"] = caller.readable(output)
        checks: dict[str, list[dict[str, Any]]] = {"queues:storage": [check]}
        if self._tls is not None:
            checks["tls:certificate"] = [self._tls.health() | {"time": now}]
        body: dict[str, Any] = {"status": status, "version": __version__, "releaseId": build.name(), "checks": checks}
        if warning := self._access.warning():
            body["notes"] = [warning]
        if archive := self._service.archive.notes():
            # Why a standby was not promoted may name queues.
            may_all = caller.may(Right.ADMIN)
            shown = (note if may_all or not note.startswith("not promoted") else "not promoted" for note in archive)
            body["archive"] = [caller.readable(note) for note in shown]
        if lag := self._service.archive.lag():
            body["lag"] = {
                "role": "standby" if lag.is_standby else "owner",
                "seconds": round(lag.seconds, 3),
                "objects": lag.objects,
                "is_damaged": lag.is_damaged,
            } | ({"promotions": lag.promotions} if lag.is_standby else {})
        text = msgspec.json.encode(body) + b"\n"
        return Response(text, 200 if is_healthy else 503, media_type="application/health+json")


class Scrape:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, caller: Caller) -> Response:
        def is_shown(queue: str) -> bool:
            return caller.may(Right.VIEW, queue)

        return Response(await self._metrics.scrape(is_shown), headers={"content-type": CONTENT_TYPE})
