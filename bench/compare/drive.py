"""The event loop of the load: raw sockets, one epoll, and a generator per connection.

All protocols share this loop, so that no peer has a better client than another. A generator yields an `Exchange`: the
bytes to send, a test for a complete reply, and a list for the durations. It gets the reply in return.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

STALL_SECONDS_MAX = 20.0
"""If no connection gets a reply for this long, the peer is stuck and the run is aborted."""

_RECEIVE_BYTES = 1 << 20


class Exchange(NamedTuple):
    request: bytes
    is_whole: Callable[[bytes], bool]
    latencies_ns: list[int]


Script = Generator[Exchange, bytes, None]


class Phase:
    """The state that the connections of a phase share: the number of items still to request, and the measured times.

    Consumers request exactly the number of produced items, so a phase ends without empty or parked requests.
    """

    __slots__ = ("arrived", "batch", "is_drained", "items", "latencies_ns", "unclaimed")

    def __init__(self, items: int, batch: int) -> None:
        self.items = items
        self.unclaimed = items
        self.batch = batch
        self.latencies_ns: dict[str, list[int]] = {}
        # Only for peers that push items: how many have arrived, and whether to stop waiting for a full batch.
        self.arrived = 0
        self.is_drained = False

    def claim(self) -> int:
        """The number of items that the caller should request next, or 0 at the end of the phase."""
        count = min(self.batch, self.unclaimed)
        self.unclaimed -= count
        return count

    def give_back(self, count: int) -> None:
        self.unclaimed += count

    def split(self, parts: int) -> list[Phase]:
        """Splits the items evenly into this many phases, which all record their times in this one."""
        phases = [Phase(self.items // parts, self.batch) for _ in range(parts)]
        for phase in phases:
            phase.latencies_ns = self.latencies_ns
        return phases

    def samples(self, operation: str) -> list[int]:
        return self.latencies_ns.setdefault(operation, [])


class Stalled(Exception):
    """The peer stopped answering."""


class _Lane:
    """A connection that runs its script."""

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
    """Runs every script on its own socket. Returns the seconds from the first request to the last reply."""
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
    # All connections share a buffer, because allocating a megabyte costs more than the recv() itself.
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
    """Passes the reply to the script, and sends its next request."""
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
        # A large batch does not fit into the socket. The rest is sent when the peer has read some of it, and other
        # connections are served in the meantime.
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
