"""RabbitMQ (AMQP 0-9-1): produces with persistent, confirmed publishes. Deliveries are pushed and acked in batches.

A consumer's prefetch is its batch, and it acknowledges when the batch is full. AMQP does not confirm an ack. Only the
next delivery shows that it arrived, so "complete" here is the time from an ack to the next full batch.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from itertools import cycle

from bench.compare.drive import Exchange, Phase, Script
from bench.compare.wire import TEMPLATES, Address, Connection, PeerError, connect, payloads

QUEUE = b"bench"

_METHOD, _HEADER, _BODY = 1, 2, 3
_CHANNEL_MAX, _FRAME_BYTES_MAX = 16, 131072
_START_OK, _TUNE_OK, _OPEN = (10, 11), (10, 31), (10, 40)
_CHANNEL_OPEN, _QUEUE_DECLARE, _CONFIRM_SELECT, _QOS = (20, 10), (50, 10), (85, 10), (60, 10)
_CONSUME, _CANCEL, _PUBLISH, _ACK = (60, 20), (60, 30), (60, 40), (60, 80)
_CONSUMER_TAG = b"c"
_CANCEL_OK = struct.pack("!BHIHH", _METHOD, 1, 4 + 1 + len(_CONSUMER_TAG), 60, 31)
_ACK_FRAME = struct.Struct("!BHIHHQBB")
_DELIVERY_TAG_OFFSET = 7 + 4 + 1 + len(_CONSUMER_TAG)


class RabbitConnection(Connection):
    def __init__(self, address: Address, batch: int, *, index: int = 0, payload_bytes: int = 200) -> None:
        self.sock = open_session(address)
        _call(self.sock, _method(1, _CHANNEL_OPEN, b"\0"))
        _call(self.sock, _method(1, _QOS, struct.pack("!IHB", 0, batch, 0)))
        _call(self.sock, _method(1, _CONFIRM_SELECT, b"\0"))
        self._batch = batch
        self._published = 0
        self._delivery_bytes = 0
        requests = []
        for template in range(TEMPLATES):
            items = payloads(batch, payload_bytes, index * TEMPLATES + template)
            requests.append(b"".join([_publish(item) for item in items]))
        self._produce_requests = cycle(requests)

    def produce(self, phase: Phase) -> Script:
        samples = phase.samples("produce")
        while phase.claim():
            last = self._published + self._batch
            confirms = _Confirms(self._published + 1, last)
            self._published = last
            yield Exchange(next(self._produce_requests), confirms.is_whole, samples)

    def consume(self, phase: Phase) -> Script:
        leases, completes = phase.samples("lease"), phase.samples("complete")
        deliveries = _Deliveries(phase, self._batch)
        flags = b"\0"
        consume = struct.pack("!H", 0) + _short(QUEUE) + _short(_CONSUMER_TAG) + flags + struct.pack("!I", 0)
        reply = yield Exchange(_method(1, _CONSUME, consume), deliveries.is_whole, leases)
        while True:
            tag = deliveries.last_tag(reply)
            ack = _method(1, _ACK, struct.pack("!QB", tag, 1)) if tag else b""
            if phase.is_drained:
                break
            deliveries.next_batch()
            reply = yield Exchange(ack, deliveries.is_whole, completes)
        cancel = _method(1, _CANCEL, _short(_CONSUMER_TAG) + b"\0")
        yield Exchange(ack + cancel, lambda data: _CANCEL_OK in data, [])


class _Confirms:
    """The publishes from `first` to `last` that are not confirmed yet."""

    def __init__(self, first: int, last: int) -> None:
        self._waiting = set(range(first, last + 1))
        self._read = 0

    def is_whole(self, data: bytes) -> bool:
        while len(data) - self._read >= _ACK_FRAME.size:
            _, _, _, class_id, method_id, tag, flags, _ = _ACK_FRAME.unpack_from(data, self._read)
            if (class_id, method_id) != _ACK:
                raise PeerError(data[self._read :][:500])
            self._read += _ACK_FRAME.size
            if flags & 1:
                self._waiting = {waiting for waiting in self._waiting if waiting > tag}
            else:
                self._waiting.discard(tag)
        return not self._waiting


class _Deliveries:
    """Counts deliveries by their size, because all deliveries of one consumer have the same length."""

    def __init__(self, phase: Phase, batch: int) -> None:
        self._phase = phase
        self._batch = batch
        self._size = 0
        self._seen = 0
        self._skip = -1

    def next_batch(self) -> None:
        self._seen = 0
        self._skip = 0

    def is_whole(self, data: bytes) -> bool:
        if not self._size and not self._learn(data):
            return self._phase.is_drained
        count = (len(data) - self._skip) // self._size
        if count > self._seen:
            self._phase.arrived += count - self._seen
            self._seen = count
            if self._phase.arrived >= self._phase.items:
                self._phase.is_drained = True
        return count >= self._batch or self._phase.is_drained

    def last_tag(self, data: bytes) -> int:
        """The delivery tag of the newest delivery, or 0 if nothing was delivered."""
        if not self._seen:
            return 0
        at = self._skip + (self._seen - 1) * self._size + _DELIVERY_TAG_OFFSET
        tag: int = struct.unpack_from("!Q", data, at)[0]
        return tag

    def _learn(self, data: bytes) -> bool:
        """Skips consume-ok and measures the first delivery: a method frame, a header frame and a body frame."""
        ends = list(_frame_ends(data))
        if len(ends) < 4:
            return False
        self._skip = ends[0]
        self._size = ends[3] - ends[0]
        return True


def open_session(address: Address) -> socket.socket:
    """The handshake up to connection.open, as user `guest`, without heartbeats."""
    sock = connect(address)
    sock.sendall(b"AMQP\0\0\x09\x01")
    _read_frame(sock)
    start_ok = struct.pack("!I", 0) + _short(b"PLAIN") + _long(b"\0guest\0guest") + _short(b"en_US")
    _call(sock, _method(0, _START_OK, start_ok))
    sock.sendall(_method(0, _TUNE_OK, struct.pack("!HIH", _CHANNEL_MAX, _FRAME_BYTES_MAX, 0)))
    _call(sock, _method(0, _OPEN, _short(b"/") + b"\0\0"))
    return sock


def declare_quorum_queue(address: Address) -> None:
    sock = open_session(address)
    try:
        _call(sock, _method(1, _CHANNEL_OPEN, b"\0"))
        arguments = _short(b"x-queue-type") + b"S" + _long(b"quorum")
        durable = b"\2"
        _call(sock, _method(1, _QUEUE_DECLARE, b"\0\0" + _short(QUEUE) + durable + _long(arguments)))
    finally:
        sock.close()


def _publish(payload: bytes) -> bytes:
    """A publish to the default exchange, with delivery mode 2 (persistent) as the only property."""
    method = _method(1, _PUBLISH, b"\0\0" + _short(b"") + _short(QUEUE) + b"\0")
    header = _frame(_HEADER, 1, struct.pack("!HHQHB", 60, 0, len(payload), 0x1000, 2))
    return method + header + _frame(_BODY, 1, payload)


def _call(sock: socket.socket, request: bytes) -> None:
    sock.sendall(request)
    frame = _read_frame(sock)
    if frame[7:11] in (struct.pack("!HH", 10, 50), struct.pack("!HH", 20, 40)):
        raise PeerError(frame)


def _read_frame(sock: socket.socket) -> bytes:
    data = _read_exactly(sock, 7)
    size: int = struct.unpack("!BHI", data)[2]
    return data + _read_exactly(sock, size + 1)


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise PeerError(b"connection closed")
        data += more
    return data


def _frame_ends(data: bytes) -> Iterator[int]:
    at = 0
    while at + 7 <= len(data):
        at += 8 + int(struct.unpack_from("!I", data, at + 3)[0])
        if at <= len(data):
            yield at


def _method(channel: int, method: tuple[int, int], arguments: bytes) -> bytes:
    return _frame(_METHOD, channel, struct.pack("!HH", *method) + arguments)


def _frame(kind: int, channel: int, body: bytes) -> bytes:
    return struct.pack("!BHI", kind, channel, len(body)) + body + b"\xce"


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long(text: bytes) -> bytes:
    return struct.pack("!I", len(text)) + text
