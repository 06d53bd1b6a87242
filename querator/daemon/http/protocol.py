"""One client connection: uvicorn's httptools protocol, which answers the hot calls itself.

A request whose head is remembered goes to the service without a parser, a task or an ASGI message. httptools parses
every other request for the ASGI app, which uses the same functions. A connection handles one request at a time. What a
client sends ahead waits in memory, and beyond a bound in the kernel.
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
_PLACEHOLDER_METHOD: Final = b"PUT"
_WAITS: Final = re.compile(r"/v1/(queue\.lease|sql|bulk/.*)")
"""Calls that can take long. They are abandoned when the client stops sending, because it may be gone."""
_TOO_LONG: Final = "The head of the request is too long."
_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class Phase(enum.IntEnum):
    HEAD = 0
    """Between requests, or in the middle of a head."""
    HOT_BODY = 1
    """The body of a request with a remembered head is still arriving."""
    PARSED_BODY = 2
    """The body of a parsed request is still arriving."""
    ANSWER = 3
    """A complete request waits for its answer."""
    LINGER = 4
    """The last answer is sent. The client may still be sending."""
    GONE = 5


HEAD, HOT_BODY, PARSED_BODY, ANSWER, LINGER, GONE = (int(phase) for phase in Phase)


class QueratorProtocol(HttpToolsProtocol):
    """A connection. `_phase` says what the bytes that arrive next belong to."""

    gate: ClassVar[Gate]

    @classmethod
    def behind(cls, gate: Gate) -> type[QueratorProtocol]:
        """A class whose connections share `gate`. uvicorn creates the connections, so the class carries the gate."""
        return type("QueratorProtocol", (cls,), {"gate": gate})

    # The connection as such

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _LingeringTransport(self, transport)
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
        self._original_method = b""
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
        """The client sends no more; it may still read, or be gone. A short call is answered, then the connection ends.
        A long call is abandoned: leased items or a query's result could be lost on a client that is gone."""
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
            # close() would wait for a client that does not read.
            self._raw.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._resume_held()

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
        """Handles the requests in `data`, one after another, until one has to wait."""
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
                    at += 2  # old clients add a line end to a body and do not count it
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
        """Adds bytes to the body of a hot call. The pieces are joined once, at the end."""
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
        """Keeps bytes that arrived ahead of their turn. Copies them at most once per read."""
        if self._phase in (LINGER, GONE):
            return
        if self._held:
            data, at = self._held[self._held_at :] + data[at:], 0
        self._held, self._held_at = data, at
        if len(data) - at > limits.PIPELINED_BYTES_MAX:
            self.flow.pause_reading()

    def _hold_head(self, data: bytes) -> None:
        """Keeps the beginning of a head. Refuses bytes that do not look like one."""
        method = _METHOD.match(data)
        if data != b"\r" and (method is None or data[method.end() : method.end() + 1] not in (b"", b" ")):
            self._refuse_http("Invalid HTTP request received.")
        else:
            self._advance_held(data)

    def _advance_held(self, data: bytes) -> None:
        """Adds bytes to what is held: the rest of a head, or requests of a client that does not read its answers."""
        before = len(self._held) - self._held_at
        self._hold(data)
        if self.flow.write_paused:
            return
        if self._held.find(_END, self._held_at + max(0, before - 3)) >= 0:
            self._resume_held()
        elif len(self._held) - self._held_at > limits.HEAD_BYTES_MAX:
            self._refuse_http(_TOO_LONG)

    def _resume_held(self) -> None:
        """Handles the bytes that were held, if the connection is ready for the next request."""
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
            self._resume_held()

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
        """Parses the head of a request whose body begins at `at`. Returns the position up to which `data` is used."""
        if len(head) > limits.HEAD_BYTES_MAX:
            self._refuse_http(_TOO_LONG)
            return len(data)
        self._phase = PARSED_BODY
        self._head = head
        self._original_method = b""
        self._in_head, self._is_received = True, False
        self._chunked_end, self._missing = None, 0
        self._linger_bytes = limits.OVER_LIMIT_DRAIN_BYTES_MAX
        method = head.partition(b" ")[0]
        if method not in _METHODS_PARSED and _METHOD.fullmatch(method):
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
                # The request was refused early. The rest is read only so that the client can read the answer.
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
        if self._original_method:
            self.scope["method"] = self._original_method.decode()
        elif self._head and self.scope["http_version"] == "1.1" and self.scope["method"] == "POST":
            self._learn()
        self._head = self._original_method = b""

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
        self._linger_bytes = limits.OVER_LIMIT_DRAIN_BYTES_MAX
        if self._raw.is_closing():
            return
        self.flow.resume_reading()
        self._raw.write_eof()
        self._linger_timer = self.loop.call_later(limits.LINGER_SECONDS, self._raw.close)

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


class _LingeringTransport(asyncio.Transport):
    """The transport that uvicorn sees. It leaves closing to the protocol, which may have to linger."""

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
