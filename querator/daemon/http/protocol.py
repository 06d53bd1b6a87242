"""One client connection: uvicorn's httptools protocol, which answers the hot calls itself.

A request whose head is remembered goes to the service without a parser, a task or an ASGI message. httptools parses
every other request for the ASGI app, which uses the same functions. A connection handles one request at a time. What a
client sends ahead waits in memory, and beyond a bound in the kernel.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from querator import limits
from querator.clock import perf_counter
from querator.daemon.http.dispatch import Abandon, Call
from querator.daemon.http.gate import SWEEP_SECONDS, Gate
from querator.daemon.http.heads import END_OF_HEAD
from querator.daemon.http.parsing import (
    ANSWER,
    GONE,
    HEAD,
    HEAD_TOO_LONG,
    HOT_BODY,
    INVALID_HTTP,
    LINGER,
    METHOD,
    PARSED_BODY,
    ParsingConnection,
)
from querator.daemon.http.routes import LEASE, PREFIX
from querator.errors import Unauthorized

TLS_END_SECONDS: Final = 0.5
_WAITS: Final = re.compile(r"/v1/(queue\.lease|sql|bulk/.*)")
"""Calls that can take long. They are abandoned when the client stops sending, because it may be gone."""


class QueratorProtocol(ParsingConnection):
    """A connection that answers hot calls itself, and passes everything else to the parser."""

    @classmethod
    def behind(cls, gate: Gate) -> Any:
        """What uvicorn calls in place of a protocol class. All its connections share `gate`."""

        def connect(*args: Any, **settings: Any) -> QueratorProtocol:
            connection = cls(*args, **settings)
            connection.gate = gate
            return connection

        return connect

    # The connection as such

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_ending = False
        # A hot call
        self._started = 0.0
        self._abandon: Abandon | None = None
        self._is_calling = False
        self._chunks: list[bytes] = []
        self._head_sweep = 0
        """When the head began that is not complete yet."""
        if not self.gate.admits(self._peer, len(self.connections)):
            transport.abort()
        self.gate.keep_sweeping(self.loop, self.connections)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = GONE
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        abandon, self._abandon = self._abandon, None
        self._held = b""
        self._chunks = []
        if self.gate.latest is self:
            self.gate.latest = None
        self.gate.unread_answers.remove(self)
        self.leave_room()
        if self._room is not None:
            self.enter_room()  # the app learns that the client is gone when it reads the body
        super().connection_lost(exc)
        if abandon is not None:
            abandon()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Called when the client stops sending. It may still read, or be gone. A short call is answered, and then the
        connection ends. A long call is abandoned: leased items or a query's result could be lost on a client that is
        gone. With TLS the event loop ends the connection in any case.
        """
        if self._phase in (HOT_BODY, PARSED_BODY):
            self._fail_body("unexpected EOF")
        if self._phase != ANSWER or not self._raw.can_write_eof():
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
            if self._raw.is_closing() and not self._raw.can_write_eof():
                # close() waits for an answer to the end of TLS, which an idle client does not send.
                self.loop.call_later(TLS_END_SECONDS, self._raw.abort)

    def end_if_idle(self) -> None:
        """Ends a connection that is idle, or whose head takes too long: a client that sends it byte by byte is never
        idle.
        """
        since = self._last_sweep
        if self._phase == HEAD and self._held and not self.flow.write_paused:
            since = min(since, self._head_sweep)
        seconds = (self.gate.sweeps - since) * SWEEP_SECONDS
        if self._waits_for_room:
            return
        if seconds > self.timeout_keep_alive and self._phase in (HEAD, HOT_BODY, PARSED_BODY):
            self._raw.abort()  # close() would wait for a client that does not read

    def end_if_caller_ended(self) -> None:
        """Ends a waiting lease, and a request whose body is still arriving, if their caller has ended."""
        call = self._call
        if call is None or not call.caller.ended:
            return
        if self._phase == ANSWER and call.name == LEASE:
            abandon, self._abandon = self._abandon, None
            if abandon is not None:
                abandon()
            self._is_ending = True
            self._respond(Unauthorized(call.caller.ended))
        elif self._phase == HOT_BODY:
            self._call = None
            self._write(call.codec, Unauthorized(call.caller.ended), close=True)
            self._linger()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.gate.unread_answers.add(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.gate.unread_answers.remove(self)
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
                return
            # Nearly always, one whole request arrives, and its head is known.
            known = self._heads.of_request(data)
            if known is not None:
                gate = self.gate
                is_alone = gate.latest is self
                gate.latest = self
                self._answer(known.call, data[known.bytes :], is_alone)
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
                self._stop_lingering()

    def _advance(self, data: bytes, at: int = 0) -> None:
        """Handles the requests in `data`, one after another, until one has to wait."""
        size = len(data)
        heads = self._heads
        while at < size:
            if self._phase != HEAD or self.flow.write_paused:
                self._hold(data, at)
                return
            end = data.find(END_OF_HEAD, at) + 4
            head = data[at:end] if end > 3 else b""
            known = heads.whole.get(head) or heads.find(head)
            if known is None:
                if data.startswith(b"\r\n", at):
                    at += 2  # old clients add a line end to a body and do not count it
                elif not head:
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
                if known.length > limits.LARGE_BODY_BYTES and not self.gate.bodies.ask(self, known.length):
                    self._waits_for_room = True
                    self.flow.pause_reading()

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
        self.leave_room()
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
        method = METHOD.match(data)
        if data != b"\r" and (method is None or data[method.end() : method.end() + 1] not in (b"", b" ")):
            self._refuse_http(INVALID_HTTP)
        else:
            self._advance_held(data)

    def _advance_held(self, data: bytes) -> None:
        """Adds bytes to what is held: the rest of a head, or requests of a client that does not read its answers."""
        before = len(self._held) - self._held_at
        if not before:
            self._head_sweep = self.gate.sweeps
        self._hold(data)
        if self.flow.write_paused:
            return
        if self._held.find(END_OF_HEAD, self._held_at + max(0, before - 3)) >= 0:
            self._resume_held()
        elif len(self._held) - self._held_at > limits.HEAD_BYTES_MAX:
            self._refuse_http(HEAD_TOO_LONG)

    def _resume_held(self) -> None:
        if self._phase != HEAD or self._is_calling or self.flow.write_paused or self._raw.is_closing():
            return
        if self._held:
            self._unset_keepalive_if_required()
            data, at = self._held, self._held_at
            self._held, self._held_at = b"", 0
            self._advance(data, at)
        if self._waits_for_room or self._raw.is_closing():
            return
        if len(self._held) - self._held_at <= limits.PIPELINED_BYTES_MAX:
            self.flow.resume_reading()

    # Hot calls

    def _answer(self, call: Call, body: bytes, is_alone: bool = False) -> None:
        self._phase = ANSWER
        self._call = call
        self._started = perf_counter()
        self._is_calling = True
        abandon = self.gate.calls.start(call, body, self._respond, self._peer, is_alone)
        self._is_calling = False
        if self._phase == ANSWER:
            self._abandon = abandon

    def _respond(self, result: Any) -> None:
        call = self._call
        if call is None or self._phase != ANSWER:
            return
        self._call = self._abandon = None
        self._phase = HEAD
        self._last_sweep = self.gate.sweeps
        self._write(call.codec, result, close=self._is_ending)
        # After the answer, because the client waits for it.
        call.durations.observe(perf_counter() - self._started)
        if self._is_ending:
            self._raw.close()
        elif self._held or self.flow.read_paused:
            self._resume_held()
