"""Parked leases: each has its own connection, and waits on an empty queue until an item is produced."""

from __future__ import annotations

import resource
import select
import socket
import time

from bench.compare import measure
from bench.compare.wire import Address, PeerError, connect
from bench.compare.wire_querator import QueratorConnection, is_whole_reply

QUEUE = "parked"
_REPLY_SECONDS_MAX = 10.0


class ParkedLeases:
    def __init__(self, address: Address, count: int) -> None:
        allow_open_files(count)
        self._poller = select.epoll()
        self._address = address
        self._encoder = QueratorConnection(address, QUEUE, 1)
        self._sockets: dict[int, tuple[socket.socket, int]] = {}
        for index in range(count):
            sock = connect(address)
            self._sockets[sock.fileno()] = (sock, index)
            self._poller.register(sock.fileno(), select.EPOLLIN)
            self._park(sock, index)
        early = self._poller.poll(1.0)
        if early:
            sock = self._sockets[early[0][0]][0]
            raise PeerError(f"a lease did not park: {sock.recv(500)!r}")

    def wake(self, rounds: int) -> tuple[int, int, int]:
        """Produces one item at a time. Returns the microseconds until a parked lease gets it: p50, p99 and highest."""
        producer = self._encoder.sock
        samples = []
        for _ in range(rounds):
            began = time.perf_counter_ns()
            producer.sendall(next(self._encoder.produce_requests))
            events = self._poller.poll(_REPLY_SECONDS_MAX)
            if not events:
                raise PeerError("no parked lease was woken")
            samples.append((time.perf_counter_ns() - began) // 1000)
            _read_reply(producer)
            sock, index = self._sockets[events[0][0]]
            ids = self._encoder.ids_of(_read_reply(sock))
            producer.sendall(self._encoder.complete_request(ids))
            _read_reply(producer)
            self._park(sock, index)
        samples.sort()
        return measure.percentile(samples, 0.5), measure.percentile(samples, 0.99), samples[-1]

    def close(self) -> None:
        self._poller.close()
        self._encoder.close()
        for sock, _ in self._sockets.values():
            sock.close()

    def _park(self, sock: socket.socket, index: int) -> None:
        sock.sendall(self._encoder.lease_request(1, client_id=b"parked-%d" % index, request_timeout=b"14m"))


def allow_open_files(count: int) -> None:
    """Raises the limit of open files, as far as the hard limit allows. Child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1_000
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def _read_reply(sock: socket.socket) -> bytes:
    is_whole = is_whole_reply()
    sock.settimeout(_REPLY_SECONDS_MAX)
    reply = b""
    while not is_whole(reply):
        data = sock.recv(65536)
        if not data:
            raise PeerError(f"connection closed after {reply!r}")
        reply += data
    return reply
