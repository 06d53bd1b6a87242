"""This daemon's HTTP. Requests are encoded once, and one expression cuts the ids out of a reply.

The protobuf form also asks for protobuf replies. The JSON form sends payloads as `utf8` and gets base64 back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import cycle

from bench.compare.drive import Exchange, Phase, Script
from bench.compare.wire import TEMPLATES, Address, Connection, PeerError, connect, payloads

REQUEST_TIMEOUT = b"30s"

_JSON_ID = re.compile(rb'"id":\s?"([0-9A-Za-z]{27})"')
_PROTOBUF_ID = re.compile(rb"\x22\x1b([0-9A-Za-z]{27})")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_JSON_PARTITION = re.compile(rb'"partition":\s?(\d+)')
_PARTITION_WITHIN_BYTES = 500
_OK = b"HTTP/1.1 200"


class QueratorConnection(Connection):
    def __init__(
        self,
        address: Address,
        queue: str,
        batch: int,
        *,
        index: int = 0,
        payload_bytes: int = 200,
        dialect: str = "json",
        in_one: bool = False,
    ) -> None:
        self.sock = connect(address)
        self.in_one = in_one
        self._encoding: type[_Json] | type[_Protobuf] = _Json if dialect == "json" else _Protobuf
        self._queue = queue.encode()
        self._client_id = b"bench-%d" % index
        self._whole = is_whole_reply()
        bodies = [
            self._encoding.produce(self._queue, payloads(batch, payload_bytes, index * TEMPLATES + template))
            for template in range(TEMPLATES)
        ]
        self.produce_requests = cycle([self._request(b"/v1/queue.produce", body) for body in bodies])

    def produce(self, phase: Phase) -> Script:
        samples = phase.samples("produce")
        whole = self._whole
        while phase.claim():
            reply = yield Exchange(next(self.produce_requests), whole, samples)
            if not reply.startswith(_OK):
                raise PeerError(reply[:500])

    def consume(self, phase: Phase) -> Script:
        return self._consume_in_one(phase) if self.in_one else self._consume(phase)

    def _consume(self, phase: Phase) -> Script:
        leases, completes = phase.samples("lease"), phase.samples("complete")
        whole = is_whole_reply()
        while count := phase.claim():
            reply = yield Exchange(self.lease_request(count), whole, leases)
            ids = self.ids_of(reply)
            phase.give_back(count - len(ids))
            if not ids:
                continue
            request = self.complete_request(ids, self._encoding.partition(reply))
            reply = yield Exchange(request, self._whole, completes)
            if not reply.startswith(_OK):
                raise PeerError(reply[:500])

    def _consume_in_one(self, phase: Phase) -> Script:
        """Each lease completes the batch before it. The last batch needs a separate request."""
        leases, completes = phase.samples("lease"), phase.samples("complete")
        whole = is_whole_reply()
        ids: list[bytes] = []
        reply = b""
        while count := phase.claim():
            reply = yield Exchange(self.lease_request(count, ids), whole, leases)
            ids = self.ids_of(reply)
            phase.give_back(count - len(ids))
        if ids:
            request = self.complete_request(ids, self._encoding.partition(reply))
            reply = yield Exchange(request, self._whole, completes)
            if not reply.startswith(_OK):
                raise PeerError(reply[:500])

    def lease_request(
        self,
        count: int,
        complete_ids: list[bytes] | None = None,
        *,
        client_id: bytes = b"",
        request_timeout: bytes = REQUEST_TIMEOUT,
    ) -> bytes:
        client_id = client_id or self._client_id
        body = self._encoding.lease(self._queue, count, client_id, request_timeout, complete_ids or [])
        return self._request(b"/v1/queue.lease", body)

    def complete_request(self, ids: list[bytes], partition: int = 0) -> bytes:
        return self._request(b"/v1/queue.complete", self._encoding.complete(self._queue, partition, ids))

    def ids_of(self, reply: bytes) -> list[bytes]:
        if not reply.startswith(_OK):
            raise PeerError(reply[:500])
        ids: list[bytes] = self._encoding.ID.findall(reply)
        return ids

    def _request(self, path: bytes, body: bytes) -> bytes:
        return b"POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s" % (
            path,
            self._encoding.HEADERS,
            len(body),
            body,
        )


def is_whole_reply() -> Callable[[bytes], bool]:
    """A test for a complete reply. It remembers the last length, because replies of one kind have similar lengths."""
    known_length = 0

    def is_whole(data: bytes) -> bool:
        nonlocal known_length
        if len(data) == known_length and data.startswith(_OK):
            return True
        head_length = data.find(b"\r\n\r\n") + 4
        if head_length < 4:
            return False
        match = _CONTENT_LENGTH.search(data, 0, head_length)
        length = head_length + (int(match[1]) if match else 0)
        if len(data) < length:
            return False
        known_length = length
        return True

    return is_whole


class _Json:
    HEADERS = b"Content-Type: application/json\r\n"
    ID = _JSON_ID

    @staticmethod
    def produce(queue: bytes, items: list[bytes]) -> bytes:
        listed = b",".join([b'{"utf8":"%s"}' % item for item in items])
        return b'{"queue_name":"%s","request_timeout":"%s","items":[%s]}' % (queue, REQUEST_TIMEOUT, listed)

    @staticmethod
    def lease(queue: bytes, count: int, client_id: bytes, timeout: bytes, complete_ids: list[bytes]) -> bytes:
        more = b',"complete_ids":["%s"]' % b'","'.join(complete_ids) if complete_ids else b""
        return b'{"queue_name":"%s","batch_size":%d,"client_id":"%s","request_timeout":"%s"%s}' % (
            queue,
            count,
            client_id,
            timeout,
            more,
        )

    @staticmethod
    def complete(queue: bytes, partition: int, ids: list[bytes]) -> bytes:
        listed = b'","'.join(ids)
        return b'{"queue_name":"%s","partition":%d,"request_timeout":"%s","ids":["%s"]}' % (
            queue,
            partition,
            REQUEST_TIMEOUT,
            listed,
        )

    @staticmethod
    def partition(reply: bytes) -> int:
        match = _JSON_PARTITION.search(reply, 0, _PARTITION_WITHIN_BYTES)
        return int(match[1]) if match else 0


class _Protobuf:
    HEADERS = b"Content-Type: application/protobuf\r\nAccept: application/protobuf\r\n"
    ID = _PROTOBUF_ID

    @staticmethod
    def produce(queue: bytes, items: list[bytes]) -> bytes:
        listed = [_field(3, _field(5, item)) for item in items]
        return _field(1, queue) + _field(2, REQUEST_TIMEOUT) + b"".join(listed)

    @staticmethod
    def lease(queue: bytes, count: int, client_id: bytes, timeout: bytes, complete_ids: list[bytes]) -> bytes:
        head = _field(1, queue) + b"\x10" + _varint(count) + _field(3, client_id) + _field(4, timeout)
        return head + b"\x7a\x1b" + b"\x7a\x1b".join(complete_ids) if complete_ids else head

    @staticmethod
    def complete(queue: bytes, partition: int, ids: list[bytes]) -> bytes:
        head = _field(1, queue) + b"\x10" + _varint(partition)
        return head + _field(3, REQUEST_TIMEOUT) + b"\x22\x1b" + b"\x22\x1b".join(ids)

    @staticmethod
    def partition(reply: bytes) -> int:
        """Field 2, which follows the queue's name. The partition numbers of the benchmarks fit into one byte."""
        body = reply.find(b"\r\n\r\n") + 4
        at = body + 2 + reply[body + 1]
        return reply[at + 1] if reply[at] == 0x10 else 0


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
