"""The bytes of a journal: how a record is laid out, and what a file of records turns out to hold.

    segment = segment header · record · record · … · zeros (space set aside in advance)
    record  = magic · payload length · payload CRC · number · partition · kind · header CRC · payload · end mark

Three things are told apart. A *torn tail* is what a crash leaves: the file, or everything but zeros, ends inside a
record; it was never acknowledged and is cut off. A *clean end* is zeros or nothing. Everything else that is not a
whole record is *damage*: a record whose payload is wrong concerns the partition in its header, a header that is wrong
may have concerned anybody. The end mark is never zero, so that a whole record cannot look torn.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

BATCH: Final = 1
"""The payload is a batch of the partition."""
CLOSED: Final = 2
"""The partition was closed with everything in its file; whatever stands before this is of no concern any more."""

_MAGIC: Final = b"QJR1"
_HEAD: Final = struct.Struct("<4sIIQ16sI")
_CRC: Final = struct.Struct("<I")
_HEADER_BYTES: Final = _HEAD.size + _CRC.size
_END: Final = b"\xa5"
OVERHEAD_BYTES: Final = _HEADER_BYTES + len(_END)

_SEGMENT_MAGIC: Final = b"QJS1"
_SEGMENT_HEAD: Final = struct.Struct("<4sIQQ")
SEGMENT_HEADER_BYTES: Final = _SEGMENT_HEAD.size + _CRC.size


class Record(NamedTuple):
    kind: int
    number: int
    """Counts up by one per partition, so that a missing record is noticed."""
    partition: bytes
    offset: int
    payload_at: int
    payload_bytes: int

    @property
    def end(self) -> int:
        return self.payload_at + self.payload_bytes + len(_END)


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


def encode(kind: int, number: int, partition: bytes, payload: bytes) -> tuple[bytes, bytes, bytes]:
    """A record in pieces, to be written one after the other."""
    head = _HEAD.pack(_MAGIC, len(payload), crc32(payload), number, partition, kind)
    return head + _CRC.pack(crc32(head)), payload, _END


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


def read_records(data: bytes, start: int, end: int | None = None) -> Contents:
    """Reads the records of a file from `start`. With `end`, they must end exactly there: there is no torn tail."""
    view = memoryview(data)
    limit = len(data.rstrip(b"\0")) if end is None else end
    found: list[Record | Damage] = []
    at = start
    while at < limit:
        head = _header_at(data, at)
        if head is None:
            if end is None and limit - at < _HEADER_BYTES:
                return Contents(found, at, torn=True)
            found.append(Damage(at, None, 0, f"the header of a record at byte {at} is damaged"))
            at = _next_header(data, at + 1, limit)
            continue
        kind, number, partition, payload_bytes, payload_crc = head
        record = Record(kind, number, partition, at, at + _HEADER_BYTES, payload_bytes)
        payload = view[record.payload_at : record.payload_at + payload_bytes]
        whole = record.end <= len(data) and crc32(payload) == payload_crc
        if not whole:
            if record.end > limit and end is None:
                return Contents(found, at, torn=True)
            found.append(Damage(at, partition, number, f"record {number} at byte {at} is damaged"))
        else:
            found.append(record)
        at = record.end
    if end is not None and (at != end or len(data) < end):
        found.append(Damage(min(at, end), None, 0, f"the segment does not end at byte {end}, as it did once"))
    return Contents(found, min(at, end) if end is not None else at, torn=False)


def _header_at(data: bytes, at: int) -> tuple[int, int, bytes, int, int] | None:
    if len(data) - at < _HEADER_BYTES:
        return None
    magic, payload_bytes, payload_crc, number, partition, kind = _HEAD.unpack_from(data, at)
    if magic != _MAGIC or _CRC.unpack_from(data, at + _HEAD.size)[0] != crc32(data[at : at + _HEAD.size]):
        return None
    return kind, number, partition, payload_bytes, payload_crc


def _next_header(data: bytes, at: int, limit: int) -> int:
    """Where the next record with a good header begins, or the limit."""
    while True:
        at = data.find(_MAGIC, at, limit)
        if at < 0:
            return limit
        if _header_at(data, at) is not None:
            return at
        at += 1
