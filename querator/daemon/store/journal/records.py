"""The bytes of a journal: the layout of a record, and how a file of records is read.

    segment = segment header · record · record · … · tail record · older bytes of the file
    record  = magic · payload length · payload CRC · number · partition · kind · append · header CRC · payload

A file may have been another segment before. Each segment therefore has a magic of its own, so that a record of an
earlier segment cannot be mistaken for one of this segment. Every append ends with a tail record, which the next append
overwrites. Each record says where its append begins. An append is written only after the one before it is durable, so a
record of a later append proves that everything before that append was acknowledged.

Reading tells three cases apart. A *clean end* is a tail record. A *torn append* is left by a crash: some sectors of the
last append were not written. It was never acknowledged, and is cut off. Anything else that is not a whole record is
*damage*. A damaged payload concerns the partition that its header names. A damaged header may concern any partition.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from isal.isal_zlib import crc32

BATCH: Final = 1
"""The payload is a batch of the partition."""
CLOSED: Final = 2
"""The partition was closed with every record in its file. Earlier records of the partition no longer matter."""
_TAIL: Final = 3
"""The records end here. The number of this record is its own offset."""

_MAGIC_BASE: Final = int.from_bytes(b"QJR3")
_MAGIC_STEP: Final = 0x9E3779B1
"""Odd, so that four billion segments in a row have different magics."""
_HEAD: Final = struct.Struct("<IIIQ16sII")
_CRC: Final = struct.Struct("<I")
_pack_head: Final[Callable[..., bytes]] = _HEAD.pack
_pack_crc: Final[Callable[..., bytes]] = _CRC.pack
_crc32: Final[Callable[[bytes], Any]] = crc32
_crc32_on: Final[Callable[[bytes, Any], Any]] = crc32
RECORD_HEADER_BYTES: Final = _HEAD.size + _CRC.size
_NOBODY: Final = bytes(16)
_SECTOR_BYTES: Final = 512
"""A disk writes a sector as a whole or not at all."""

_SEGMENT_MAGIC: Final = b"QJS3"
_SEGMENT_HEAD: Final = struct.Struct("<4sIQQQQ")
SEGMENT_HEADER_BYTES: Final = _SEGMENT_HEAD.size + _CRC.size


class NewRecord:
    """A record that is about to be appended."""

    __slots__ = ("following", "kind", "number", "partition", "payload")

    def __init__(self, kind: int, number: int, partition: bytes, payload: bytes) -> None:
        self.kind = kind
        self.number = number
        self.partition = partition
        self.payload = payload
        self.following: list[bytes] | None = None
        """Large pieces of the payload behind the first one, which are not joined."""


def size_of(record: NewRecord) -> int:
    """The bytes of the payload, in all pieces."""
    size = len(record.payload)
    if record.following is not None:
        size += sum([len(piece) for piece in record.following])
    return size


class Record(NamedTuple):
    kind: int
    number: int
    """Rises by one per partition, so that a missing record shows as a gap."""
    partition: bytes
    payload_at: int
    payload_bytes: int

    @property
    def end(self) -> int:
        return self.payload_at + self.payload_bytes

    @property
    def is_batch(self) -> bool:
        return self.kind == BATCH


class Damage(NamedTuple):
    """Bytes that were a record once. `partition` is None if nothing tells whose record it was."""

    offset: int
    partition: bytes | None
    number: int
    reason: str


class SegmentContents(NamedTuple):
    """The records and the damage in a file, in order."""

    found: list[Record | Damage]
    end: int
    """Where the whole records end."""
    torn: bool


class SegmentHeader(NamedTuple):
    number: int
    previous_bytes: int
    """Where the records of the previous segment end; 0 for the first segment."""
    room: int = 0
    """The size of the file while the segment is in use. A shorter file was truncated from outside."""
    blank_from: int = 0
    """From this byte on, the file was all zeros when the segment began."""


class _Head(NamedTuple):
    kind: int
    number: int
    partition: bytes
    payload_bytes: int
    payload_crc: int
    append: int


def magic_of(segment: int) -> int:
    return (_MAGIC_BASE + segment * _MAGIC_STEP) & 0xFFFFFFFF


def encode(magic: int, append: int, records: Iterable[NewRecord]) -> list[bytes]:
    """Records in pieces, to be written one after the other. `append` is the offset of their append."""
    # Any: an integer of unknown type stays an object, which a compiled module need not make again for each record.
    same_magic: Any = magic
    same_append: Any = append
    pieces: list[bytes] = []
    for record in records:
        payload = record.payload
        crc = _crc32(payload)
        size = len(payload)
        following = record.following
        if following is not None:
            for piece in following:
                crc = _crc32_on(piece, crc)
                size += len(piece)
        head = _pack_head(same_magic, size, crc, record.number, record.partition, record.kind, same_append)
        pieces.append(head)
        pieces.append(_pack_crc(_crc32(head)))
        pieces.append(payload)
        if following is not None:
            pieces += following
    return pieces


def encode_tail(magic: int, append: int, at: int) -> bytes:
    head = _pack_head(magic, 0, 0, at, _NOBODY, _TAIL, append)
    return head + _pack_crc(_crc32(head))


def encode_segment_header(header: SegmentHeader) -> bytes:
    head = _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, 0, *header)
    return head + _CRC.pack(crc32(head))


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """The header, or None if these bytes are not a whole header."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, _, *fields = _SEGMENT_HEAD.unpack_from(data)
    if magic != _SEGMENT_MAGIC or _CRC.unpack_from(data, _SEGMENT_HEAD.size)[0] != crc32(data[: _SEGMENT_HEAD.size]):
        return None
    return SegmentHeader(*fields)


def read_records(
    data: bytes, segment: int, end: int | None = None, acknowledged: int = 0, blank_from: int | None = None
) -> SegmentContents:
    """Reads the records of a segment. With `end`, they must end exactly there, and no append can be torn.

    Everything up to the byte `acknowledged` is known to have been acknowledged. `blank_from` comes from the segment's
    header; None if the header is not known.
    """
    view = memoryview(data)
    magic = magic_of(segment)
    limit = len(data) if end is None else end
    blank_from = len(data) if blank_from is None else blank_from
    found: list[Record | Damage] = []
    at = SEGMENT_HEADER_BYTES
    previous = -1
    while at < limit:
        may_be_torn = end is None and at >= acknowledged
        head = _header_at(data, at, magic)
        if head is None:
            if may_be_torn and _is_torn(data, at, RECORD_HEADER_BYTES, magic, blank_from, previous):
                return SegmentContents(found, at, torn=True)
            found.append(Damage(at, None, 0, f"the header of a record at byte {at} is damaged"))
            at = next((after for after, _ in _headers(data, at + 1, limit, magic)), limit)
            continue
        if head.kind == _TAIL and head.number == at:
            later = next((after for after, one in _headers(data, at, limit, magic) if one.append > at), None)
            if later is None:
                break
            found.append(Damage(at, None, 0, f"records between byte {at} and byte {later} are missing"))
            at = later
            continue
        record = Record(head.kind, head.number, head.partition, at + RECORD_HEADER_BYTES, head.payload_bytes)
        payload = view[record.payload_at : record.end]
        if record.end <= len(data) and crc32(payload) == head.payload_crc:
            found.append(record)
            previous = at
        elif may_be_torn and _is_torn(data, at, record.end - at, magic, blank_from, previous):
            return SegmentContents(found, at, torn=True)
        else:
            reason = f"record {head.number} ({head.payload_bytes} bytes) at byte {at} is damaged"
            found.append(Damage(at, head.partition, head.number, reason))
        at = record.end
    if end is not None and (at != end or len(data) < end):
        found.append(Damage(min(at, end), None, 0, f"the segment does not end at byte {end}, as it did once"))
    elif at < acknowledged:
        found.append(Damage(at, None, 0, f"records end at byte {at}, and were acknowledged up to byte {acknowledged}"))
    return SegmentContents(found, max(SEGMENT_HEADER_BYTES, min(at, limit)), torn=False)


def _is_torn(data: bytes, at: int, size: int, magic: int, blank_from: int, previous: int) -> bool:
    """Whether a crash during the last append can have left these bytes in the place of a record.

    A crash leaves some sectors of the append as they were before. So the bytes must touch a sector that may be old. A
    sector is new if it contains a whole header of this append, or if it was blank before and is not blank now.

    `previous` is the offset of the header of the previous record.
    """
    written: set[int] = set()
    is_start, is_inside = at == SEGMENT_HEADER_BYTES, False
    for where, head in _headers(data, at, len(data), magic):
        if head.append > at:
            return False
        is_start = is_start or head.append == at
        is_inside = is_inside or head.append < at
        written.update((where // _SECTOR_BYTES, (where + RECORD_HEADER_BYTES - 1) // _SECTOR_BYTES))
    begin = at - at % _SECTOR_BYTES
    is_one_sector = at + RECORD_HEADER_BYTES <= begin + _SECTOR_BYTES
    follows_new = previous >= begin or (begin >= blank_from and any(data[begin:at]))
    # An old sector has a whole tail record where the append begins.
    if (is_one_sector and (is_start or follows_new)) or (is_inside and follows_new):
        written.add(at // _SECTOR_BYTES)
    for sector in range(at // _SECTOR_BYTES, (min(at + size, len(data)) - 1) // _SECTOR_BYTES + 1):
        # An old tail record may extend a little into the sectors of the append.
        end = (sector + 1) * _SECTOR_BYTES
        begin = min(max(sector * _SECTOR_BYTES, at + RECORD_HEADER_BYTES), end)
        is_changed = begin >= blank_from and any(data[begin:end])
        if sector not in written and not is_changed:
            return True
    return False


def payload_in(data: bytes, segment: int, number: int) -> memoryview | None:
    """The payload of the record with this number, given its bytes; None if the bytes belong to another record."""
    head = _header_at(data, 0, magic_of(segment))
    payload = memoryview(data)[RECORD_HEADER_BYTES:]
    if head is None or (head.number, head.payload_bytes, head.payload_crc) != (number, len(payload), crc32(payload)):
        return None
    return payload


def _header_at(data: bytes, at: int, magic: int) -> _Head | None:
    if len(data) - at < RECORD_HEADER_BYTES:
        return None
    found, payload_bytes, payload_crc, number, partition, kind, append = _HEAD.unpack_from(data, at)
    if found != magic or _CRC.unpack_from(data, at + _HEAD.size)[0] != crc32(data[at : at + _HEAD.size]):
        return None
    return _Head(kind, number, partition, payload_bytes, payload_crc, append)


def _headers(data: bytes, at: int, limit: int, magic: int) -> Iterator[tuple[int, _Head]]:
    """Every whole header from a byte on, with its offset."""
    first = _CRC.pack(magic)
    while (at := data.find(first, at, limit)) >= 0:
        if (head := _header_at(data, at, magic)) is not None:
            yield at, head
        at += 1
