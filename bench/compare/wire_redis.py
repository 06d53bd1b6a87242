"""Redis streams: produces with XADD, and consumes with XREADGROUP and then XACK with XDEL.

A batch of XADDs is several commands in one write, and so is XACK with XDEL: one round trip each, as a careful user
would do it. Redis reads such a write in pieces and calls fsync after each. With `transaction` the batch is between
MULTI and EXEC, which makes it all-or-none with one fsync, but with twice the replies. Both are measured. A reply is
complete when it has its number of lines, because no payload contains a line end.
"""

from __future__ import annotations

import re
from itertools import cycle

from bench.compare.drive import Exchange, Phase, Script
from bench.compare.wire import TEMPLATES, Address, Connection, PeerError, connect, payloads

STREAM = b"bench"
GROUP = b"workers"

_ID = re.compile(rb"\r\n(\d+-\d+)\r\n")
_COUNT = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]*\r\n\*(\d+)\r\n")
_LINES_BEFORE_ENTRIES = 5
_LINES_PER_ENTRY = 8


class RedisConnection(Connection):
    def __init__(
        self, address: Address, batch: int, *, index: int = 0, payload_bytes: int = 200, transaction: bool = False
    ) -> None:
        self.sock = connect(address)
        self._reply_start = b"+OK" if transaction else b"$"
        self._reply_lines = 1 + batch + 1 + 2 * batch if transaction else 2 * batch
        self._consumer = b"consumer-%d" % index
        requests = []
        for template in range(TEMPLATES):
            items = payloads(batch, payload_bytes, index * TEMPLATES + template)
            adds = b"".join([command(b"XADD", STREAM, b"*", b"p", item) for item in items])
            requests.append(command(b"MULTI") + adds + command(b"EXEC") if transaction else adds)
        self._produce_requests = cycle(requests)
        self._leases: dict[int, bytes] = {}

    def produce(self, phase: Phase) -> Script:
        samples = phase.samples("produce")
        lines = self._reply_lines

        def is_whole(data: bytes) -> bool:
            return data.count(b"\r\n") >= lines or data.startswith(b"-")

        while phase.claim():
            reply = yield Exchange(next(self._produce_requests), is_whole, samples)
            if not reply.startswith(self._reply_start):
                raise PeerError(reply[:500])

    def consume(self, phase: Phase) -> Script:
        leases, completes = phase.samples("lease"), phase.samples("complete")
        while count := phase.claim():
            reply = yield Exchange(self._lease_request(count), _is_whole_lease, leases)
            if not reply.startswith(b"*"):
                raise PeerError(reply[:500])
            ids = _ID.findall(reply)
            phase.give_back(count - len(ids))
            if not ids:
                continue
            request = command(b"XACK", STREAM, GROUP, *ids) + command(b"XDEL", STREAM, *ids)
            reply = yield Exchange(request, _is_whole_complete, completes)
            if reply != b":%d\r\n:%d\r\n" % (len(ids), len(ids)):
                raise PeerError(reply[:500])

    def _lease_request(self, count: int) -> bytes:
        request = self._leases.get(count)
        if request is None:
            head = (b"XREADGROUP", b"GROUP", GROUP, self._consumer, b"COUNT", b"%d" % count)
            request = self._leases[count] = command(*head, b"STREAMS", STREAM, b">")
        return request


def command(*words: bytes) -> bytes:
    return b"*%d\r\n%s" % (len(words), b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words]))


def create_group(address: Address) -> None:
    sock = connect(address)
    try:
        sock.sendall(command(b"XGROUP", b"CREATE", STREAM, GROUP, b"0", b"MKSTREAM"))
        reply = sock.recv(4096)
        if reply != b"+OK\r\n":
            raise PeerError(reply)
    finally:
        sock.close()


def _is_whole_lease(data: bytes) -> bool:
    match = _COUNT.match(data)
    if match is None:
        return data.endswith(b"*-1\r\n") or data.startswith(b"-")
    return data.count(b"\r\n") >= _LINES_BEFORE_ENTRIES + _LINES_PER_ENTRY * int(match[1])


def _is_whole_complete(data: bytes) -> bool:
    return data.count(b"\r\n") >= 2
