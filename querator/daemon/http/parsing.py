"""A client connection whose requests httptools parses for the ASGI app, and the ways in which a connection ends.

`protocol` adds the hot calls. Here are uvicorn's callbacks: a parser per request, the end of each body, and lingering.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from querator import limits
from querator.daemon.http.chunked import ChunkedEnd, TooMuchFraming
from querator.daemon.http.dispatch import LARGE_ANSWER_BYTES, Call, Refused, encode, reply_codec
from querator.daemon.http.gate import Gate
from querator.daemon.http.peers import peer_of
from querator.errors import TransportError
from querator.wire import content
from querator.wire.content import Codec

INVALID_HTTP: Final = "Invalid HTTP request received."
HEAD_TOO_LONG: Final = "The head of the request is too long."
METHOD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_METHODS_PARSED: Final = frozenset(b"DELETE GET HEAD OPTIONS PATCH POST PUT TRACE".split())
_PLACEHOLDER_METHOD: Final = b"PUT"
_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


# The phases of a connection: what the bytes that arrive next belong to. Not an enum, because compiled code puts such
# constants in the place of their names.
HEAD: Final = 0
"""Between requests, or in the middle of a head."""
HOT_BODY: Final = 1
"""The body of a request with a remembered head is still arriving."""
PARSED_BODY: Final = 2
"""The body of a parsed request is still arriving."""
ANSWER: Final = 3
"""A complete request waits for its answer."""
LINGER: Final = 4
"""The last answer is sent. The client may still be sending."""
GONE: Final = 5


class ParsingConnection(HttpToolsProtocol):
    """A connection. `_phase` says what the bytes that arrive next belong to."""

    gate: Gate

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _LingeringTransport(self, transport)  # type: ignore[assignment]
        self._raw = transport
        self._peer = peer_of(transport, self.gate.calls.access)
        self._heads = self.gate.heads[self._peer.caller]
        self._phase: int = HEAD
        self._held, self._held_at = b"", 0
        self._last_sweep = self.gate.sweeps
        self._linger_bytes = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        self._call: Call | None = None
        """The hot call that is under way."""
        self._missing = 0
        """Bytes of the body that are still to come."""
        self._waits_for_room = False
        self._room: asyncio.Future[None] | None = None
        """Done when the parsed body that waits for room may enter."""
        self._head = b""
        self._original_method = b""
        self._in_head = False
        self._chunked_end: ChunkedEnd | None = None
        self._is_received = True

    def _resume_held(self) -> None:
        """Handles the bytes that were held, if the connection is ready for the next request."""
        raise NotImplementedError

    def _parse(self, head: bytes, data: bytes, at: int) -> int:
        """Parses the head of a request whose body begins at `at`. Returns the position up to which `data` is used."""
        if len(head) > limits.HEAD_BYTES_MAX:
            self._refuse_http(HEAD_TOO_LONG)
            return len(data)
        self._phase = PARSED_BODY
        self._head = head
        self._original_method = b""
        self._in_head, self._is_received = True, False
        self._chunked_end, self._missing = None, 0
        self._linger_bytes = limits.OVER_LIMIT_DRAIN_BYTES_MAX
        method = head.partition(b" ")[0]
        if method not in _METHODS_PARSED and METHOD.fullmatch(method):
            # The parser knows a fixed set of methods. Our answer to every method but POST is the same.
            self._original_method = method
            head = _PLACEHOLDER_METHOD + head[len(method) :]
        if b"pgrade" in head:
            # We never upgrade. The parser would take the body for bytes of the other protocol.
            head = _UPGRADE.sub(b"", head)
        # Each request has its own parser, which sees no byte of the next request. So there is one request at a time.
        self.parser = httptools.HttpRequestParser(self)
        self._feed(head)
        if self._in_head and self._phase == PARSED_BODY:
            self._refuse_http(INVALID_HTTP)
        return self._feed_body(data, at)

    def _feed_body(self, data: bytes, at: int) -> int:
        if self._phase == PARSED_BODY and not self._is_received:
            try:
                end = at + self._missing if self._chunked_end is None else self._chunked_end.find(data, at)
            except TooMuchFraming:
                self._fail_body("header line too long")
                return len(data)
            is_last = 0 <= end <= len(data)
            if not is_last:
                end = len(data)
            if self.cycle.response_complete:
                # The request was refused early. The rest is read only so that the client can read the answer.
                self._linger_bytes -= end - at
                if self._linger_bytes < 0:
                    self._stop_lingering()
                    return len(data)
            self._missing -= end - at
            if end > at:
                self._feed(data[at:end])
            if is_last and self._phase == PARSED_BODY and not self._is_received:
                self._fail_body("unexpected EOF")
            at = end
        if self._phase != PARSED_BODY:
            return len(data)
        if self._is_received:
            self._phase = HEAD if self.cycle.response_complete else ANSWER
        return at

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if self._phase != PARSED_BODY:
                return
            if self._in_head:
                self._refuse_http(INVALID_HTTP)
            else:
                self._fail_body("invalid byte in chunk length")

    def on_headers_complete(self) -> None:
        self._in_head = False
        headers = self.headers
        names = [name for name, _ in headers]
        if b"host" not in names and self.parser.get_http_version() == "1.1":
            self._refuse_http("missing required Host header")
            return
        super().on_headers_complete()
        self.scope["state"]["cut_off"] = self.cut_off
        self.scope["state"]["peer"] = self._peer
        self.scope["state"]["body_room"] = self
        if b"transfer-encoding" in names:
            self._chunked_end = ChunkedEnd()
        elif b"content-length" in names:
            self._missing = int(headers[names.index(b"content-length")][1])
        if self._original_method:
            self.scope["method"] = self._original_method.decode()
        elif self._head and self.scope["http_version"] == "1.1" and self.scope["method"] == "POST":
            self._learn()
        self._head = self._original_method = b""

    def _learn(self) -> None:
        try:
            call = self.gate.calls.understand("POST", self.scope["path"], self.headers, self._peer)
        except Refused:
            return
        self._heads.learn(self._head, self.headers, call)

    # Memory (the methods that `memory` calls, and the room for a body that the ASGI app reads)

    async def wait_for_room(self, size: int) -> None:
        """Returns when a large body may be read, or when the connection is gone. The caller must call `leave_room`."""
        if not self.gate.bodies.ask(self, size):
            self._waits_for_room = True
            self._room = self.loop.create_future()
            await self._room

    def leave_room(self) -> None:
        self._waits_for_room = False
        self.gate.bodies.leave(self)

    def enter_room(self) -> None:
        self._waits_for_room = False
        self._last_sweep = self.gate.sweeps
        room, self._room = self._room, None
        if room is not None:
            if not room.done():
                room.set_result(None)
        elif not self._raw.is_closing():
            self.flow.resume_reading()

    def unread_bytes(self) -> int:
        return self._raw.get_write_buffer_size()

    def cut(self) -> None:
        self._raw.abort()

    def on_body(self, body: bytes) -> None:
        if self._phase == PARSED_BODY:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._phase == PARSED_BODY:
            super().on_message_complete()
            self._is_received = True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._last_sweep = self.gate.sweeps
        if self._phase == ANSWER:
            self._phase = HEAD
            self._resume_held()

    # Ends

    def end(self) -> None:
        """Closes the connection in such a way that the client can read the last answer."""
        if self._phase == PARSED_BODY and not self._is_received:
            self._linger()
        elif self._phase != LINGER:
            self._raw.close()

    def cut_off(self, is_unread: bool) -> None:
        """Closes the connection in the middle of an answer, without telling uvicorn."""
        self.cycle.disconnected = True
        if is_unread:
            self._raw.abort()  # close() would wait for a client that does not read
        else:
            self._raw.close()

    def _linger(self) -> None:
        # If we closed with unread bytes, the kernel would send a reset, and the client might never see our answer.
        self._phase = LINGER
        self._held = b""
        self.leave_room()
        self._linger_bytes = limits.OVER_LIMIT_DRAIN_BYTES_MAX
        if self._raw.is_closing():
            return
        self.flow.resume_reading()
        if self._raw.can_write_eof():  # not with TLS, where the client knows the end by the length of the answer
            self._raw.write_eof()
        self._linger_timer = self.loop.call_later(limits.LINGER_SECONDS, self._stop_lingering)

    def _stop_lingering(self) -> None:
        if self._raw.can_write_eof():
            self._raw.close()
        else:
            self._raw.abort()  # with TLS, close() would read on until the client ends the connection

    def _fail_body(self, reason: str) -> None:
        """Ends the connection because a body is malformed or breaks off. Answers first, if no answer has begun."""
        codec = content.JSON
        if self._call is not None:
            codec, self._call = self._call.codec, None
        elif not self.cycle.response_started:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            codec = reply_codec(self.headers)
        else:
            self._raw.close()
            return
        self._write(codec, TransportError(reason), close=True)
        self._linger()

    def _refuse_http(self, reason: str) -> None:
        self._phase, self._is_received = PARSED_BODY, False
        self.send_400_response(reason)

    # Answers that do not come from the ASGI app

    def _write(self, codec: Codec, result: Any, *, close: bool) -> None:
        reply_heads = self.gate.reply_heads
        if reply_heads.dated is not self.server_state.default_headers:
            reply_heads.date(self.server_state.default_headers)
        if result is None and not close:
            self._raw.write(reply_heads.ok.get(codec.content_type) or reply_heads.done(codec))
            return
        status, body = encode(codec, result)
        if status == 200 and not close:
            start = reply_heads.success(codec, len(body))
        else:
            start = reply_heads.start(status, codec, len(body), close=close)
        if len(body) < LARGE_ANSWER_BYTES:
            self._raw.write(start + body)
        else:
            self._raw.write(start)
            self._raw.write(body)


class _LingeringTransport:
    """What uvicorn uses of a transport. It leaves closing to the protocol, which may have to linger."""

    def __init__(self, protocol: ParsingConnection, transport: asyncio.Transport) -> None:
        self._protocol = protocol
        self._transport = transport
        self.write = transport.write
        self.get_extra_info = transport.get_extra_info

    def close(self) -> None:
        self._protocol.end()

    def is_closing(self) -> bool:
        return self._protocol._phase == LINGER or self._transport.is_closing()
