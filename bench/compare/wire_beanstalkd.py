"""beanstalkd: produces with put, and consumes with reserve and delete. A batch is several commands in one write."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import cycle

from bench.compare.drive import Exchange, Phase, Script
from bench.compare.wire import TEMPLATES, Address, Connection, PeerError, connect, payloads

LEASE_SECONDS = 600

_ID = re.compile(rb"RESERVED (\d+) ")


class BeanstalkdConnection(Connection):
    def __init__(self, address: Address, batch: int, *, index: int = 0, payload_bytes: int = 200) -> None:
        self.sock = connect(address)
        self._batch = batch
        requests = []
        for template in range(TEMPLATES):
            items = payloads(batch, payload_bytes, index * TEMPLATES + template)
            puts = [b"put 0 0 %d %d\r\n%s\r\n" % (LEASE_SECONDS, payload_bytes, item) for item in items]
            requests.append(b"".join(puts))
        self._produce_requests = cycle(requests)

    def produce(self, phase: Phase) -> Script:
        samples = phase.samples("produce")
        is_whole = _has_lines(self._batch)
        while phase.claim():
            reply = yield Exchange(next(self._produce_requests), is_whole, samples)
            if reply.count(b"INSERTED") != self._batch:
                raise PeerError(reply[:500])

    def consume(self, phase: Phase) -> Script:
        leases, completes = phase.samples("lease"), phase.samples("complete")
        while count := phase.claim():
            reply = yield Exchange(b"reserve\r\n" * count, _has_lines(2 * count), leases)
            ids = _ID.findall(reply)
            if len(ids) != count:
                raise PeerError(reply[:500])
            request = b"".join([b"delete %s\r\n" % job for job in ids])
            reply = yield Exchange(request, _has_lines(count), completes)
            if reply.count(b"DELETED") != count:
                raise PeerError(reply[:500])


def _has_lines(count: int) -> Callable[[bytes], bool]:
    def is_whole(data: bytes) -> bool:
        return data.count(b"\r\n") >= count

    return is_whole
