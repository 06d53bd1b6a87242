"""The bytes of a journal: how a record is laid out, and what a file of records turns out to hold.

    segment = segment header · record · record · … · tail record · what was in the file before
    record  = magic · payload length · payload CRC · number · partition · kind · header CRC · payload

A file may have been a segment before. Each segment therefore has a magic of its own, so that nothing of an earlier one
can pass for a record of it. The tail record is written with every append, right behind it, and written over by the
next one.

Three things are told apart. A *clean end* is a tail record, or the end of the file. A *torn tail* is what a crash
leaves: bytes that are no whole record, and no sign of this segment after them; they were never acknowledged and are cut
off. Everything else that is not a whole record is *damage*: a record whose payload is wrong concerns the partition in
its header, a header that is wrong may have concerned anybody.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

BATCH: Final = 1
"""The payload is a batch of the partition."""
CLOSED: Final = 2
"""The partition was closed with everything in its file; whatever stands before this is of no concern any more."""
_TAIL: Final = 3
"""Here records end. Its number is the place where it stands."""

_MAGIC_BASE: Final = int.from_bytes(b"QJR2")
_MAGIC_STEP: Final = 0x9E3779B1
"""Odd, so that four billion segments in a row have different magics."""
_HEAD: Final = struct.Struct("<IIIQ16sI")
_CRC: Final = struct.Struct("<I")
RECORD_HEADER_BYTES: Final = _HEAD.size + _CRC.size
_NOBODY: Final = bytes(16)

_SEGMENT_MAGIC: Final = b"QJS2"
_SEGMENT_HEAD: Final = struct.Struct("<4sIQQ")
SEGMENT_HEADER_BYTES: Final = _SEGMENT_HEAD.size + _CRC.size


class Record(NamedTuple):
    kind: int
    number: int
    """Counts up by one per partition, so that a missing record is noticed."""
    partition: bytes
    payload_at: int
    payload_bytes: int

    @property
    def end(self) -> int:
        return self.payload_at + self.payload_bytes


class Damage(NamedTuple):
    """Bytes that were a record once. `partition` is None when it cannot be said whose."""

    offset: int
    partition: bytes | None
    number: int
    reason: str


class Contents(NamedTuple):
    """What a file of records holds, in order."""

    found: list[Record | Damage]
    end: int
    """Where whole records end and a torn tail, or nothing, begins."""
    torn: bool


class SegmentHeader(NamedTuple):
    number: int
    previous_bytes: int
    """Where the records of the segment before end; 0 for the first."""


def magic_of(segment: int) -> int:
    return (_MAGIC_BASE + segment * _MAGIC_STEP) & 0xFFFFFFFF


def encode(magic: int, kind: int, number: int, partition: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """A record in two pieces, to be written one after the other."""
    head = _HEAD.pack(magic, len(payload), crc32(payload), number, partition, kind)
    return head + _CRC.pack(crc32(head)), payload


def encode_tail(magic: int, at: int) -> bytes:
    head = _HEAD.pack(magic, 0, 0, at, _NOBODY, _TAIL)
    return head + _CRC.pack(crc32(head))


def encode_segment_header(number: int, previous_bytes: int) -> bytes:
    head = _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, 0, number, previous_bytes)
    return head + _CRC.pack(crc32(head))


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """None when this is no whole header."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, _, number, previous_bytes = _SEGMENT_HEAD.unpack_from(data)
    if magic != _SEGMENT_MAGIC or _CRC.unpack_from(data, _SEGMENT_HEAD.size)[0] != crc32(data[: _SEGMENT_HEAD.size]):
        return None
    return SegmentHeader(number, previous_bytes)


def read_records(data: bytes, segment: int, start: int, end: int | None = None) -> Contents:
    """Reads the records of a segment from `start`. With `end`, they must end exactly there: there is no torn tail."""
    view = memoryview(data)
    magic = magic_of(segment)
    limit = len(data) if end is None else end
    found: list[Record | Damage] = []
    at = start
    while at < limit:
        head = _header_at(data, at, magic)
        if head is None:
            after = _next_header(data, at + 1, limit, magic)
            if end is None and after == limit:
                return Contents(found, at, torn=True)
            found.append(Damage(at, None, 0, f"the header of a record at byte {at} is damaged"))
            at = after
            continue
        kind, number, partition, payload_bytes, payload_crc = head
        if kind == _TAIL and number == at:
            break
        record = Record(kind, number, partition, at + RECORD_HEADER_BYTES, payload_bytes)
        payload = view[record.payload_at : record.payload_at + payload_bytes]
        whole = record.end <= len(data) and crc32(payload) == payload_crc
        if not whole:
            if end is None and _next_header(data, record.payload_at, limit, magic) == limit:
                return Contents(found, at, torn=True)
            found.append(Damage(at, partition, number, f"record {number} at byte {at} is damaged"))
        else:
            found.append(record)
        at = record.end
    if end is not None and (at != end or len(data) < end):
        found.append(Damage(min(at, end), None, 0, f"the segment does not end at byte {end}, as it did once"))
    return Contents(found, max(start, min(at, limit)), torn=False)


def payload_in(data: bytes, segment: int, number: int) -> bytes | None:
    """The payload of a record, given from its header on; None when this is not that record any more."""
    head = _header_at(data, 0, magic_of(segment))
    payload = data[RECORD_HEADER_BYTES:]
    if head is None or head[1] != number or head[3:] != (len(payload), crc32(payload)):
        return None
    return payload


def _header_at(data: bytes, at: int, magic: int) -> tuple[int, int, bytes, int, int] | None:
    if len(data) - at < RECORD_HEADER_BYTES:
        return None
    found, payload_bytes, payload_crc, number, partition, kind = _HEAD.unpack_from(data, at)
    if found != magic or _CRC.unpack_from(data, at + _HEAD.size)[0] != crc32(data[at : at + _HEAD.size]):
        return None
    return kind, number, partition, payload_bytes, payload_crc


def _next_header(data: bytes, at: int, limit: int, magic: int) -> int:
    """Where the next record with a good header begins, or the limit."""
    first = _CRC.pack(magic)
    while True:
        at = data.find(first, at, limit)
        if at < 0:
            return limit
        if _header_at(data, at, magic) is not None:
            return at
        at += 1
