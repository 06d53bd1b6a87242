"""From a request's head and body to the service, and from its result to the bytes of the answer.

Our protocol class and the ASGI app both use these functions, so that they cannot differ. Errors are checked in the
order of the wire contract: Accept, method, who is calling, path, body size, Content-Type, decoding, what they may do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from typing import Any, Final, Protocol

from querator.clock import perf_counter
from querator.daemon.access import Access, Caller, Headers, Peer
from querator.daemon.http.routes import Route, over_limit_text
from querator.daemon.metrics import ArchiveLag, Durations, HttpMetrics
from querator.errors import (
    ContentError,
    InternalError,
    InvalidRequest,
    QueratorError,
    RequestFailed,
    Unauthorized,
    UnknownMethod,
)
from querator.wire import content
from querator.wire.content import Codec
from querator.wire.leased import LeaseReply
from querator.wire.messages import Reply

log = logging.getLogger("querator.transport")

Respond = Callable[[Any], None]
Abandon = Callable[[], None]

DONE: Final = Reply(code=200)
_NOTHING: Final[frozenset[str]] = frozenset()
LARGE_ANSWER_BYTES: Final = 65_536
"""Longer bodies get a write of their own, because copying them behind their head costs more than a second write."""


class ArchiveReport(Protocol):
    """What answers say about the archive, and about a standby that follows it."""

    @property
    def is_standby(self) -> bool:
        """Whether this daemon only follows the owner of its archive."""
        ...

    async def catch_up(self) -> ArchiveLag | None:
        """On a standby: makes the next answers as new as they can be, and returns their lag."""
        ...

    def lag(self) -> ArchiveLag | None:
        """How far the archive is behind this daemon, or this standby behind the owner. None without an archive."""
        ...

    def notes(self) -> list[str]:
        """Remarks for people in `/health` that are not warnings."""
        ...


class CallHandler(Protocol):
    """The methods of the service that this package calls."""

    def call(
        self, route: str, request: Any, respond: Respond, caller: Caller, is_alone: bool = False
    ) -> Abandon | None:
        """Starts a request that its caller may make. Calls `respond` exactly once, on this thread.

        That can be before this method returns. `is_alone` says that no other client seems to be active.

        The result is a message, an error, or None for a plain success. Returns a function that abandons the request.
        """
        ...

    def health(self, caller: Caller) -> tuple[bool, str]:
        """Whether the service works, and what is wrong. If it works, the text is a warning."""
        ...

    @property
    def archive(self) -> ArchiveReport: ...


class Refused(Exception):
    """A request that is refused before it reaches the service."""

    def __init__(self, error: QueratorError, codec: Codec, *, close: bool = False) -> None:
        super().__init__(error.message)
        self.error, self.codec, self.close = error, codec, close


class Call:
    """What a valid request head asks for. Many requests share one Call, so it holds no state of a request."""

    __slots__ = ("caller", "codec", "content_error", "decode", "durations", "granted", "message", "name", "route")

    def __init__(
        self,
        route: Route,
        caller: Caller,
        decode: Callable[[Any, bytes], Any],
        codec: Codec,
        durations: Durations,
    ) -> None:
        self.route = route
        self.caller = caller
        self.granted: Set[str] | None = caller.granted[route.right] if route.hot else _NOTHING
        """The queues for which this call needs no further check. None if no call of this caller needs one."""
        if caller.is_unlimited and not route.refusal and not route.audited:
            self.granted = None
        self.name = route.path
        self.message = route.message
        self.decode = decode
        self.codec = codec
        self.durations = durations
        self.content_error: ContentError | None = None
        """The error for an unknown Content-Type. It is raised only after the body was read within its limit."""


class Calls:
    """The calls that one daemon answers, and the service that carries them out."""

    def __init__(self, service: CallHandler, table: Mapping[str, Route], metrics: HttpMetrics, access: Access) -> None:
        self.service = service
        self.metrics = metrics
        self.access = access
        self._table = table

    def understand(self, method: str, path: str, headers: Headers, peer: Peer) -> Call:
        """What a head asks for. Raises Refused if this is not a valid call. Header names are in lower case."""
        codec, content_type, caller = self.check_head(method, headers, peer)
        route = self._table.get(path)
        if route is None:
            raise Refused(UnknownMethod(f"no such method; {path}"), codec)
        durations = self.metrics.durations(path)
        try:
            call = Call(route, caller, content.request_codec(content_type).decode, codec, durations)
        except ContentError as error:
            call = Call(route, caller, content.JSON.decode, codec, durations)
            call.content_error = error
        return call

    def check_head(self, method: str, headers: Headers, peer: Peer) -> tuple[Codec, str, Caller]:
        """The codec of the answer, the Content-Type and the caller. Raises Refused if it is not the head of a call."""
        accept = content_type = None
        for name, value in headers:
            if name == b"accept" and accept is None:
                accept = value
            elif name == b"content-type" and content_type is None:
                content_type = value
        try:
            codec = content.reply_codec(_text(accept))
        except ContentError as error:
            raise Refused(error, content.JSON) from None
        if method != "POST":
            raise Refused(InvalidRequest(f"http method '{method}' not allowed; only POST"), codec)
        try:
            return codec, _text(content_type), self.access.authenticate(peer, headers)
        except Unauthorized as error:
            raise Refused(error, codec) from None

    def start(self, call: Call, body: bytes, respond: Respond, peer: Peer, is_alone: bool = False) -> Abandon | None:
        """Passes the decoded body to the service. Never raises. Returns a function that abandons a waiting call."""
        try:
            if call.content_error is not None:
                raise call.content_error
            request = call.decode(call.message, body)
            if call.granted is not None and (not call.granted or request.queue_name not in call.granted):
                respond = self._check(call, request, respond, peer)
            return self.service.call(call.name, request, respond, call.caller, is_alone)
        except QueratorError as error:
            respond(error)
        except Exception:
            log.exception("call failed", extra={"path": call.name})
            respond(InternalError())
        return None

    def _check(self, call: Call, request: Any, respond: Respond, peer: Peer) -> Respond:
        """Raises unless the caller may make the request. Returns how to answer it."""
        route = call.route
        self.access.admit(call.caller, peer, call.name, route.right, route.queues_in(request))
        if route.refusal:
            raise RequestFailed(route.refusal)
        if not route.audited:
            return respond
        started = perf_counter()

        def record(result: Any) -> None:
            self.access.audit.changed(
                call.caller, peer, call.name, request, result, perf_counter() - started, lambda: respond(result)
            )

        return record


def reply_codec(headers: Headers) -> Codec:
    """The codec for an error about a request that could not be read."""
    accept = next((value for name, value in headers if name == b"accept"), None)
    try:
        return content.reply_codec(_text(accept))
    except ContentError:
        return content.JSON


def over_limit(bytes_max: int, codec: Codec) -> Refused:
    """The refusal of a body that is too long. It also ends the connection, because the rest of the body is not read."""
    return Refused(InvalidRequest(over_limit_text(bytes_max)), codec, close=True)


def encode(codec: Codec, result: Any) -> tuple[int, bytes]:
    """The status and body of an answer. An error becomes a Reply."""
    try:
        if isinstance(result, LeaseReply):
            return 200, codec.encode_leases(result)
        if isinstance(result, QueratorError):
            return _encode_error(codec, result)
        return 200, codec.encode(DONE if result is None else result)
    except QueratorError as error:
        return _encode_error(codec, error)
    except Exception:
        log.exception("an answer could not be encoded", extra={"message_type": type(result).__name__})
        return _encode_error(codec, InternalError())


def _encode_error(codec: Codec, error: QueratorError) -> tuple[int, bytes]:
    if not error.code:
        log.error("an error without a code reached the wire", exc_info=error)
        error = InternalError()
    return error.code, codec.encode(Reply(code=error.code, code_text=error.code_text, message=error.message))


def _text(header: bytes | None) -> str:
    return "" if header is None else header.decode("utf-8", "replace").strip(" \t")
