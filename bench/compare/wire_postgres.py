"""PostgreSQL: binary prepared statements over protocol 3. Each request is one transaction and one round trip.

A lease is an UPDATE of rows found with FOR UPDATE SKIP LOCKED. So it survives a crash, as in the other peers.
"""

from __future__ import annotations

import socket
import struct
from itertools import cycle

from bench.compare.drive import Exchange, Phase, Script
from bench.compare.wire import TEMPLATES, Address, Connection, PeerError, connect, payloads

SCHEMA = """
create table items (
    id bigint generated always as identity primary key, payload bytea not null, leased_until timestamptz)
    with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000);
create index items_waiting on items (id) where leased_until is null
"""
PRODUCE = "insert into items (payload) select unnest($1::bytea[])"
LEASE = """
update items set leased_until = now() + interval '10 minutes'
where id = any(array(
    select id from items where leased_until is null order by id limit $1 for update skip locked))
returning id, payload
"""
COMPLETE = "delete from items where id = any($1::bigint[])"

_BYTEA, _BIGINT = 17, 20
_READY = b"Z\x00\x00\x00\x05I"


class PostgresConnection(Connection):
    def __init__(self, address: Address, batch: int, *, index: int = 0, payload_bytes: int = 200) -> None:
        self.sock = open_session(address)
        self._row_bytes = 1 + 4 + 2 + (4 + 8) + (4 + payload_bytes)
        statements = ((b"produce", PRODUCE), (b"lease", LEASE), (b"complete", COMPLETE))
        messages = [_message(b"P", name + b"\0" + text.encode() + b"\0" + b"\0\0") for name, text in statements]
        _round_trip(self.sock, b"".join(messages) + _message(b"S"))
        requests = []
        for template in range(TEMPLATES):
            items = payloads(batch, payload_bytes, index * TEMPLATES + template)
            elements = b"".join([struct.pack("!i", len(item)) + item for item in items])
            requests.append(_execute(b"produce", _array(_BYTEA, batch, elements)))
        self._produce_requests = cycle(requests)

    def produce(self, phase: Phase) -> Script:
        samples = phase.samples("produce")
        while phase.claim():
            reply = yield Exchange(next(self._produce_requests), _is_whole, samples)
            if not reply.startswith(b"2"):
                raise PeerError(reply[:500])

    def consume(self, phase: Phase) -> Script:
        leases, completes = phase.samples("lease"), phase.samples("complete")
        row_bytes = self._row_bytes
        while count := phase.claim():
            reply = yield Exchange(_execute(b"lease", struct.pack("!q", count)), _is_whole, leases)
            if not reply.startswith(b"2"):
                raise PeerError(reply[:500])
            # Rows start after BindComplete (5 bytes) and have the same size. The 12 bytes cut out of each are an id
            # with its length in front, which is also the format of an array element in the next request.
            rows = (len(reply) - 5) // row_bytes
            ids = [reply[at : at + 12] for at in range(5 + 7, 5 + 7 + rows * row_bytes, row_bytes)]
            phase.give_back(count - rows)
            if not ids:
                continue
            request = _execute(b"complete", _array(_BIGINT, rows, b"".join(ids)))
            reply = yield Exchange(request, _is_whole, completes)
            if b"DELETE %d\0" % rows not in reply:
                raise PeerError(reply[:500])


def open_session(address: Address) -> socket.socket:
    sock = connect(address)
    body = struct.pack("!i", 196608) + b"user\0bench\0database\0postgres\0\0"
    _round_trip(sock, struct.pack("!i", len(body) + 4) + body)
    return sock


def execute_simple(address: Address, sql: str) -> None:
    sock = open_session(address)
    try:
        _round_trip(sock, _message(b"Q", sql.encode() + b"\0"))
    finally:
        sock.close()


def _round_trip(sock: socket.socket, request: bytes) -> None:
    sock.sendall(request)
    reply = b""
    while not reply.endswith(_READY):
        data = sock.recv(65536)
        if not data:
            raise PeerError(reply[:500])
        reply += data
    if reply.startswith(b"E"):
        raise PeerError(reply[:500])


def _message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _array(element_type: int, count: int, elements: bytes) -> bytes:
    """A one-dimensional array in the binary format, without nulls."""
    return struct.pack("!iiiii", 1, 0, element_type, count, 1) + elements


def _execute(statement: bytes, parameter: bytes) -> bytes:
    """Bind, Execute and Sync, with one parameter and all results in binary."""
    formats = b"\0\1\0\1"
    value = b"\0\1" + struct.pack("!i", len(parameter)) + parameter
    bind = b"\0" + statement + b"\0" + formats + value + b"\0\1\0\1"
    return _message(b"B", bind) + _message(b"E", b"\0\0\0\0\0") + _message(b"S")


def _is_whole(data: bytes) -> bool:
    return data.endswith(_READY)
