"""The event loop of the load: raw sockets, one epoll, and a generator per connection that says what to send next.

It is one loop for every protocol, so that no peer is measured with a better client than another. A generator yields an
`Exchange` (what to send, how to know that the reply is whole, where to note how long it took) and is sent the reply.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

STALL_SECONDS_MAX = 20.0
"""No reply on any connection for this long: the peer is stuck and the run is given up."""

_RECEIVE_BYTES = 1 << 20


class Exchange(NamedTuple):
    request: bytes
    is_whole: Callable[[bytes], bool]
    latencies_ns: list[int]


Script = Generator[Exchange, bytes, None]


class Phase:
    """What the connections of one phase share: how many items nobody has asked for yet, and what they measured.

    Consumers ask for exactly what was produced, so a phase ends without empty polls or parked requests.
    """

    __slots__ = ("arrived", "batch", "is_drained", "items", "latencies_ns", "unclaimed")

    def __init__(self, items: int, batch: int) -> None:
        self.items = items
        self.unclaimed = items
        self.batch = batch
        self.latencies_ns: dict[str, list[int]] = {}
        # Only for peers that push: how many have arrived, and whether those who wait for a full batch should stop.
        self.arrived = 0
        self.is_drained = False

    def claim(self) -> int:
        """How many items the caller should ask for next; 0 when there is nothing left to ask for."""
        count = min(self.batch, self.unclaimed)
        self.unclaimed -= count
        return count

    def give_back(self, count: int) -> None:
        self.unclaimed += count

    def split(self, parts: int) -> list[Phase]:
        """As many phases with an equal share of the items each, which all measure into this one."""
        phases = [Phase(self.items // parts, self.batch) for _ in range(parts)]
        for phase in phases:
            phase.latencies_ns = self.latencies_ns
        return phases

    def samples(self, operation: str) -> list[int]:
        return self.latencies_ns.setdefault(operation, [])


class Stalled(Exception):
    """The peer stopped answering."""


class _Lane:
    """One connection while its script runs."""

    __slots__ = ("is_whole", "latencies_ns", "partial", "recv_into", "rest", "send", "sent_at", "sock", "step")

    def __init__(self, sock: socket.socket, script: Script) -> None:
        self.sock = sock
        self.recv_into = sock.recv_into
        self.send = sock.send
        self.step = script.send
        self.is_whole: Callable[[bytes], bool]
        self.latencies_ns: list[int]
        self.partial = b""
        self.rest: memoryview | None = None
        self.sent_at = 0


def run(scripts: Iterable[tuple[socket.socket, Script]], phase: Phase | None = None) -> float:
    """Run every script to its end on its own socket; the seconds from the first request to the last reply."""
    poller = select.epoll()
    lanes: dict[int, _Lane] = {}
    began = time.perf_counter()
    try:
        for sock, script in scripts:
            sock.setblocking(False)
            lane = _Lane(sock, script)
            poller.register(sock.fileno(), select.EPOLLIN)
            lanes[sock.fileno()] = lane
            _advance(poller, lanes, lane, None)
        _serve(poller, lanes, phase)
        return time.perf_counter() - began
    finally:
        poller.close()


def _serve(poller: select.epoll, lanes: dict[int, _Lane], phase: Phase | None) -> None:
    now_ns = time.perf_counter_ns
    poll = poller.poll
    # One buffer for all: asking recv() for a megabyte of new memory costs more than the system call itself.
    view = memoryview(bytearray(_RECEIVE_BYTES))
    while lanes:
        events = poll(STALL_SECONDS_MAX)
        if not events:
            raise Stalled(f"no reply for {STALL_SECONDS_MAX:.0f} s on {len(lanes)} connections")
        for fd, event in events:
            lane = lanes.get(fd)
            if lane is None:
                continue
            if event & select.EPOLLOUT:
                _send_rest(poller, lane)
            if not event & ~select.EPOLLOUT:
                continue
            try:
                count = lane.recv_into(view)
            except BlockingIOError:
                continue
            if not count:
                raise Stalled("the peer closed a connection")
            data = lane.partial + view[:count] if lane.partial else bytes(view[:count])
            if not lane.is_whole(data):
                lane.partial = data
                continue
            lane.latencies_ns.append(now_ns() - lane.sent_at)
            lane.partial = b""
            _advance(poller, lanes, lane, data)
        if phase is not None and phase.is_drained:
            for lane in list(lanes.values()):
                if lane.is_whole(lane.partial):
                    data, lane.partial = lane.partial, b""
                    _advance(poller, lanes, lane, data)


def _advance(poller: select.epoll, lanes: dict[int, _Lane], lane: _Lane, reply: bytes | None) -> None:
    """Hand the reply to the script and send what it wants to send next."""
    try:
        request, lane.is_whole, lane.latencies_ns = lane.step(reply)  # type: ignore[arg-type]  # None starts it
    except StopIteration:
        del lanes[lane.sock.fileno()]
        poller.unregister(lane.sock.fileno())
        return
    lane.sent_at = time.perf_counter_ns()
    try:
        sent = lane.send(request)
    except BlockingIOError:
        sent = 0
    if sent < len(request):
        # A large batch does not fit into the socket: the rest goes out when the peer has read some, and the other
        # connections are served meanwhile.
        lane.rest = memoryview(request)[sent:]
        poller.modify(lane.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)


def _send_rest(poller: select.epoll, lane: _Lane) -> None:
    if lane.rest is not None:
        try:
            lane.rest = lane.rest[lane.send(lane.rest) :]
        except BlockingIOError:
            return
        if lane.rest:
            return
    lane.rest = None
    poller.modify(lane.sock.fileno(), select.EPOLLIN)
