"""One client connection: uvicorn's httptools protocol, with the hot calls answered right here.

A request whose head is familiar is cut out of the bytes and handed to the service without a parser, a task or an
ASGI message. Everything else is parsed by httptools and goes to the ASGI app, which does the same with the same
functions. There is one request at a time: what a client sends ahead waits, unread if it is much.
"""

from __future__ import annotations

import asyncio
import enum
import re
from time import perf_counter
from typing import Any, ClassVar, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from querator import limits
from querator.daemon.http.chunked import ChunkedEnd, TooMuchFraming
from querator.daemon.http.dispatch import LARGE_BODY_BYTES, Abandon, Call, Refused, encode, reply_codec
from querator.daemon.http.gate import SWEEP_SECONDS, Gate
from querator.daemon.http.routes import PREFIX
from querator.errors import TransportError
from querator.wire import content
from querator.wire.content import Codec

_END: Final = b"\r\n\r\n"
_METHOD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_METHODS_PARSED: Final = frozenset(b"DELETE GET HEAD OPTIONS PATCH POST PUT TRACE".split())
_METHOD_STAND_IN: Final = b"PUT"
_WAITS: Final = re.compile(r"/v1/(queue\.lease|sql|bulk/.*)")
"""Calls that may take long, and are given up when their client seems to be gone."""
_TOO_LONG: Final = "The head of the request is too long."
_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class Phase(enum.IntEnum):
    HEAD = 0
    """Between requests, or in the middle of a head."""
    HOT_BODY = 1
    """The rest of a familiar request is on its way."""
    PARSED_BODY = 2
    """The parser is at work on a request that is still arriving."""
    ANSWER = 3
    """A whole request waits for its answer."""
    LINGER = 4
    """We have said our last; the client may still be sending."""
    GONE = 5


HEAD, HOT_BODY, PARSED_BODY, ANSWER, LINGER, GONE = (int(phase) for phase in Phase)


class QueratorProtocol(HttpToolsProtocol):
    gate: ClassVar[Gate]

    @classmethod
    def behind(cls, gate: Gate) -> type[QueratorProtocol]:
        """uvicorn makes the connections, so what they share comes with the class."""
        return type("QueratorProtocol", (cls,), {"gate": gate})

    # The connection as such

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _PoliteTransport(self, transport)
        self._raw = transport
        self._phase = HEAD
        self._held, self._held_at = b"", 0
        self._last_sweep = self.gate.sweeps
        self._is_ending = False
        self._linger_bytes = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        # A hot call
        self._call: Call | None = None
        self._started = 0.0
        self._abandon: Abandon | None = None
        self._is_calling = False
        self._chunks: list[bytes] = []
        self._missing = 0
        # A parsed request
        self._head = b""
        self._method_said = b""
        self._in_head = False
        self._chunked_end: ChunkedEnd | None = None
        self._is_received = True
        self.gate.keep_sweeping(self.loop, self.connections)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = GONE
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        abandon, self._abandon = self._abandon, None
        self._held = b""
        self._chunks = []
        super().connection_lost(exc)
        if abandon is not None:
            abandon()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. It may still read, or be gone: a short call is answered, then the connection ends.
        Nobody leases items or lets a query run for somebody who may be gone."""
        if self._phase in (HOT_BODY, PARSED_BODY):
            self._fail_body("unexpected EOF")
        if self._phase != ANSWER:
            return False
        if self._call is not None:
            self._is_ending = True
            return not _WAITS.fullmatch(PREFIX + self._call.name)
        self.cycle.keep_alive = False
        return not _WAITS.fullmatch(self.scope["path"])

    def shutdown(self) -> None:
        if self._phase in (LINGER, GONE):
            self._raw.close()
        elif self._call is not None:
            self._is_ending = True
        else:
            super().shutdown()

    def end_if_idle(self) -> None:
        idle_seconds = (self.gate.sweeps - self._last_sweep) * SWEEP_SECONDS
        if idle_seconds > self.timeout_keep_alive and self._phase in (HEAD, HOT_BODY, PARSED_BODY):
            # Not close(), which would wait for a client that does not read.
            self._raw.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    # Bytes in

    def data_received(self, data: bytes) -> None:
        self._last_sweep = self.gate.sweeps
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        phase = self._phase
        if phase == HEAD:
            if self._held or self.flow.write_paused:
                self._advance_held(data)
            else:
                self._advance(data)
        elif phase == HOT_BODY:
            self._collect(data)
        elif phase == PARSED_BODY:
            at = self._feed_body(data, 0)
            self._advance(data, at)
        elif phase == ANSWER:
            self._hold(data)
        elif phase == LINGER:
            self._linger_bytes -= len(data)
            if self._linger_bytes < 0:
                self._raw.close()

    def _advance(self, data: bytes, at: int = 0) -> None:
        """Takes request after request out of the bytes, until one has to wait."""
        size = len(data)
        heads = self.gate.heads
        while at < size:
            if self._phase != HEAD or self.flow.write_paused:
                self._hold(data, at)
                return
            end = data.find(_END, at) + 4
            head = data[at:end]
            known = heads.whole.get(head) or heads.find(head)
            if known is None:
                if data.startswith(b"\r\n", at):
                    at += 2  # old clients end a body with a line end that they do not count
                elif end == 3:
                    self._hold_head(data[at:])
                    return
                else:
                    at = self._parse(head, data, end)
                continue
            at = end + known.length
            if at <= size:
                self._answer(known.call, data[end:at])
            else:
                self._phase = HOT_BODY
                self._call = known.call
                self._chunks = [data[end:]]
                self._missing = at - size

    def _collect(self, data: bytes) -> None:
        """More of a hot body. The pieces are put together once, however many they are."""
        call, chunks, missing = self._call, self._chunks, self._missing
        assert call is not None
        if len(data) < missing:
            chunks.append(data)
            self._missing = missing - len(data)
            return
        chunks.append(data[:missing])
        self._chunks = []
        self._answer(call, b"".join(chunks))
        self._advance(data, missing)

    def _hold(self, data: bytes, at: int = 0) -> None:
        """Keeps what came too early; a copy per read at most, however many requests are in it."""
        if self._phase in (LINGER, GONE):
            return
        if self._held:
            data, at = self._held[self._held_at :] + data[at:], 0
        self._held, self._held_at = data, at
        if len(data) - at > limits.PIPELINED_BYTES_MAX:
            self.flow.pause_reading()

    def _hold_head(self, data: bytes) -> None:
        """The beginning of a head, if it looks like one."""
        method = _METHOD.match(data)
        if data != b"\r" and (method is None or data[method.end() : method.end() + 1] not in (b"", b" ")):
            self._refuse_http("Invalid HTTP request received.")
        else:
            self._advance_held(data)

    def _advance_held(self, data: bytes) -> None:
        """More bytes after the beginning of a head, or from a client that does not read its answers."""
        before = len(self._held) - self._held_at
        self._hold(data)
        if self.flow.write_paused:
            return
        if self._held.find(_END, self._held_at + max(0, before - 3)) >= 0:
            self._go_on()
        elif len(self._held) - self._held_at > limits.HEAD_BYTES_MAX:
            self._refuse_http(_TOO_LONG)

    def _go_on(self) -> None:
        """Looks at what was held back, if its turn has come."""
        if self._phase != HEAD or self._is_calling or self.flow.write_paused or self._raw.is_closing():
            return
        if self._held:
            self._unset_keepalive_if_required()
            data, at = self._held, self._held_at
            self._held, self._held_at = b"", 0
            self._advance(data, at)
        if len(self._held) - self._held_at <= limits.PIPELINED_BYTES_MAX and not self._raw.is_closing():
            self.flow.resume_reading()

    # Hot calls

    def _answer(self, call: Call, body: bytes) -> None:
        self._phase = ANSWER
        self._call = call
        self._started = perf_counter()
        self._is_calling = True
        abandon = self.gate.calls.start(call, body, self._respond)
        self._is_calling = False
        if self._phase == ANSWER:
            self._abandon = abandon

    def _respond(self, result: Any) -> None:
        call = self._call
        if call is None or self._phase != ANSWER:
            return
        call.durations.observe(perf_counter() - self._started)
        self._call = self._abandon = None
        self._phase = HEAD
        self._last_sweep = self.gate.sweeps
        self._write(call.codec, result, close=self._is_ending)
        if self._is_ending:
            self._raw.close()
        elif self._held or self.flow.read_paused:
            self._go_on()

    def _write(self, codec: Codec, result: Any, *, close: bool) -> None:
        reply_heads = self.gate.reply_heads
        if reply_heads.dated is not self.server_state.default_headers:
            reply_heads.date(self.server_state.default_headers)
        if result is None and not close:
            self._raw.write(reply_heads.ok[codec.content_type])
            return
        status, body = encode(codec, result)
        start = reply_heads.start(status, codec, len(body), close=close)
        if len(body) < LARGE_BODY_BYTES:
            self._raw.write(start + body)
        else:
            self._raw.write(start)
            self._raw.write(body)

    # Everything else: the parser and the ASGI app

    def _parse(self, head: bytes, data: bytes, at: int) -> int:
        """Begins a request that is not familiar; returns how much of `data`, which goes on at `at`, is used up."""
        if len(head) > limits.HEAD_BYTES_MAX:
            self._refuse_http(_TOO_LONG)
            return len(data)
        self._phase = PARSED_BODY
        self._head = head
        self._method_said = b""
        self._in_head, self._is_received = True, False
        self._chunked_end, self._missing = None, 0
        self._linger_bytes = limits.OVER_LIMIT_DRAIN_BYTES_MAX
        method = head.partition(b" ")[0]
        if method not in _METHODS_PARSED and _METHOD.fullmatch(method):
            # The parser knows a fixed set of methods; our answer to all but POST is the same.
            self._method_said = method
            head = _METHOD_STAND_IN + head[len(method) :]
        if b"pgrade" in head:
            # We never upgrade, and the parser would take the body for the first bytes of the other protocol.
            head = _UPGRADE.sub(b"", head)
        # A parser per request: it never sees a byte of the next one, so that there is one request at a time.
        self.parser = httptools.HttpRequestParser(self)
        self._feed(head)
        if self._in_head and self._phase == PARSED_BODY:
            self._refuse_http("Invalid HTTP request received.")
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
                # Refused early: read to its end only so that the client can read the answer.
                self._linger_bytes -= end - at
                if self._linger_bytes < 0:
                    self._raw.close()
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
                self._refuse_http("Invalid HTTP request received.")
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
        if b"transfer-encoding" in names:
            self._chunked_end = ChunkedEnd()
        elif b"content-length" in names:
            self._missing = int(headers[names.index(b"content-length")][1])
        if self._method_said:
            self.scope["method"] = self._method_said.decode()
        elif self._head and self.scope["http_version"] == "1.1" and self.scope["method"] == "POST":
            self._learn()
        self._head = self._method_said = b""

    def _learn(self) -> None:
        try:
            call = self.gate.calls.understand("POST", self.scope["path"], self.headers)
        except Refused:
            return
        self.gate.heads.learn(self._head, self.headers, call)

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
            self._go_on()

    # Ends

    def end(self) -> None:
        """Closes the connection, in a way that the client can read what was said last."""
        if self._phase == PARSED_BODY and not self._is_received:
            self._linger()
        elif self._phase != LINGER:
            self._raw.close()

    def cut_off(self, is_unread: bool) -> None:
        """Ends a connection in the middle of an answer; uvicorn need not know."""
        self.cycle.disconnected = True
        if is_unread:
            self._raw.abort()  # close() would wait for a client that does not read
        else:
            self._raw.close()

    def _linger(self) -> None:
        # Closed with unread bytes the kernel would send a reset, and the client might never see our answer.
        self._phase = LINGER
        self._held = b""
        self._linger_bytes = limits.OVER_LIMIT_DRAIN_BYTES_MAX
        if self._raw.is_closing():
            return
        self.flow.resume_reading()
        self._raw.write_eof()
        self._linger_timer = self.loop.call_later(limits.LINGER_SECONDS, self._raw.close)

    def _fail_body(self, reason: str) -> None:
        """A body that cannot be read to its end: told, if nothing else was, and then the connection ends."""
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


class _PoliteTransport(asyncio.Transport):
    """The transport as uvicorn sees it: closing it goes by way of the protocol, which may have to linger."""

    def __init__(self, protocol: QueratorProtocol, transport: asyncio.Transport) -> None:
        super().__init__()
        self._protocol = protocol
        self._transport = transport
        self.write = transport.write  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]

    def close(self) -> None:
        self._protocol.end()

    def is_closing(self) -> bool:
        return self._protocol._phase == LINGER or self._transport.is_closing()
