"""What all client connections share: the calls, the remembered request heads and the prepared answer heads."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import Final, Protocol

from querator import limits
from querator.daemon import allocators
from querator.daemon.access import UNIX, Caller, Peer
from querator.daemon.http.dispatch import DONE, Calls
from querator.daemon.http.heads import RememberedHeads
from querator.daemon.http.memory import BodyRoom, UnreadAnswers
from querator.errors import BY_CODE
from querator.wire.content import Codec

log = logging.getLogger("querator.transport")

SWEEP_SECONDS: Final = 15
FULL_LOGGED_EVERY_SWEEPS: Final = 4
DefaultHeaders = list[tuple[bytes, bytes]]


class Connection(Protocol):
    def end_if_idle(self) -> None: ...

    def end_if_caller_ended(self) -> None: ...


class ReplyHeads:
    """The heads of answers. They are built once a second, because of their Date, and not once per request."""

    def __init__(self) -> None:
        self.dated: DefaultHeaders | None = None
        self.ok: dict[str, bytes] = {}
        """The whole answer of a plain success, by content type. `done` adds those that are missing."""
        self._starts: dict[tuple[int, str], bytes] = {}
        self._latest: Codec | None = None
        self._latest_length = -1
        self._latest_head = b""
        """The head of the last success that was not plain. Answers to leases mostly have the same length."""

    def date(self, headers: DefaultHeaders) -> None:
        """Takes over uvicorn's default headers. uvicorn makes a new list every second."""
        self.dated = headers
        self._starts = {}
        self.ok = {}
        self._latest = None

    def done(self, codec: Codec) -> bytes:
        """The whole answer of a plain success."""
        body = codec.encode(DONE)
        answer = self.ok[codec.content_type] = self.start(200, codec, len(body), close=False) + body
        return answer

    def success(self, codec: Codec, length: int) -> bytes:
        """The head of an answer with this many bytes."""
        if codec is not self._latest or length != self._latest_length:
            self._latest_head = self.start(200, codec, length, close=False)
            self._latest, self._latest_length = codec, length
        return self._latest_head

    def start(self, status: int, codec: Codec, length: int, *, close: bool) -> bytes:
        start = self._starts.get((status, codec.content_type))
        if start is None:
            text = "OK" if status == 200 else BY_CODE[status].code_text
            lines = [
                f"HTTP/1.1 {status} {text}".encode(),
                *[name + b": " + value for name, value in self.dated or ()],
                b"content-type: " + codec.content_type.encode(),
                b"x-content-type-options: nosniff",
                b"content-length: ",
            ]
            start = self._starts[status, codec.content_type] = b"\r\n".join(lines)
        return start + (b"%d\r\nconnection: close\r\n\r\n" % length if close else b"%d\r\n\r\n" % length)


class Gate:
    """The state that all connections share. It also ends idle connections, and returns memory after a peak."""

    def __init__(self, calls: Calls, tcp_connections_max: int = limits.TCP_CONNECTIONS_MAX) -> None:
        self.calls = calls
        self._tcp_connections_max = tcp_connections_max
        self._full_until = 0
        """The log has a line about too many connections. The next one comes with this sweep at the earliest."""
        self.heads: defaultdict[Caller | None, RememberedHeads] = defaultdict(RememberedHeads)
        """Remembered heads by the caller that the connection itself proves: the same head can mean another caller on
        another kind of connection.
        """
        calls.access.on_ended.append(self._forget_callers)
        self.reply_heads = ReplyHeads()
        self.latest: Connection | None = None
        """The connection that the last request came from. If the next one comes from it too, no other client is active.
        """
        self.bodies = BodyRoom()
        self.unread_answers = UnreadAnswers()
        self.sweeps = 0
        """The number of sweeps so far. It serves as a coarse clock, because a timer per request would be too slow."""
        self._is_sweeping = False
        self._connections: set[Connection] = set()

    def _forget_callers(self) -> None:
        """Forgets all heads, because some of their callers have ended, and ends the waiting leases of those callers."""
        for heads in self.heads.values():
            heads.forget()
        for connection in list(self._connections):
            connection.end_if_caller_ended()

    def admits(self, peer: Peer, connections: int) -> bool:
        """Whether one more connection may stay open. The Unix socket is always open for operators."""
        if connections <= self._tcp_connections_max or peer.host == UNIX:
            return True
        if self.sweeps >= self._full_until:
            self._full_until = self.sweeps + FULL_LOGGED_EVERY_SWEEPS
            log.warning("too many connections; new ones over TCP are closed", extra={"connections": connections})
        return False

    def keep_sweeping(self, loop: asyncio.AbstractEventLoop, connections: set[Connection]) -> None:
        """Ends idle connections every few seconds, as long as there are connections."""
        self._connections = connections
        if not self._is_sweeping:
            self._is_sweeping = True
            loop.call_later(SWEEP_SECONDS, self._sweep, loop, connections)

    def _sweep(self, loop: asyncio.AbstractEventLoop, connections: set[Connection]) -> None:
        self.sweeps += 1
        for connection in list(connections):
            connection.end_if_idle()
        self._give_back(loop)
        self._is_sweeping = False
        if connections:
            self.keep_sweeping(loop, connections)

    def _give_back(self, loop: asyncio.AbstractEventLoop) -> None:
        """Returns free memory to the system when a peak is over."""
        bodies, unread = self.bodies, self.unread_answers
        if (bodies.had_peak or unread.had_peak) and not bodies.bytes and not unread.bytes:
            bodies.had_peak = unread.had_peak = False
            loop.run_in_executor(None, allocators.give_back)
