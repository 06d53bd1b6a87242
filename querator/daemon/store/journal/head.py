"""Which segments a journal consists of, and how far the last one goes: a segment that is deleted or cut off is missed.

Segments count up by one, so one that is missing in between shows by itself. The file has two places, which are written
in turn and in place: a crash spoils one of them at most, and a full disk none. A copy lies beside the journal's
directory, so that a directory that is deleted is missed, too.
"""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from querator.daemon.store.files import replace_file
from querator.daemon.store.journal.records import SEGMENT_HEADER_BYTES

_MAGIC: Final = b"QJH2"
_PLACE: Final = struct.Struct("<4sIQQQQ")
_CRC: Final = struct.Struct("<I")
_PLACE_BYTES: Final = 4096


class Segments(NamedTuple):
    """Numbers, both inclusive; there are none when the last one lies before the first."""

    first: int
    last: int
    end: int
    """Records of the last segment were acknowledged up to this byte."""
    is_closed: bool
    """Whether the last segment ends there."""


NO_SEGMENTS: Final = Segments(1, 0, 0, True)


class Head:
    def __init__(self, path: Path, copy: Path) -> None:
        # The copy comes first: where the journal's directory is gone, it still gets to know what is not needed.
        self._paths = (copy, path)
        self._lock = threading.Lock()
        self._turn = 0
        self._segments = NO_SEGMENTS

    def read(self) -> Segments | None:
        """What was written last; None when there is neither the file nor its copy, or nothing in them."""
        found = max((place for path in self._paths for place in _places(path)), default=None)
        if found is None:
            return None
        self._turn, self._segments = found
        return self._segments

    def begins(self, number: int) -> None:
        """Another segment is there, durably."""
        with self._lock:
            first, last = self._segments[:2]
            first = min(first, number) if first <= last else number
            self._write(Segments(first, number, SEGMENT_HEADER_BYTES, False))

    def reached(self, number: int, end: int) -> None:
        """So much of the last segment was acknowledged. Not synced: an older note is no wrong one."""
        with self._lock:
            segments = self._segments
            if number == segments.last and end > segments.end and not segments.is_closed:
                self._write(segments._replace(end=end), sync=False)

    def ends(self, number: int, end: int) -> None:
        """Nothing more is appended to the last segment."""
        with self._lock:
            if number == self._segments.last:
                self._write(self._segments._replace(end=end, is_closed=True))

    def goes(self, number: int) -> None:
        """The oldest segment, and what is older, is about to be deleted."""
        with self._lock:
            if number >= self._segments.first:
                last = max(self._segments.last, number)
                self._write(self._segments._replace(first=number + 1, last=last))

    def is_now(self, segments: Segments) -> None:
        """What was missing has been seen to."""
        with self._lock:
            self._write(segments)

    def _write(self, segments: Segments, sync: bool = True) -> None:
        turn = self._turn + 1
        data = _encode(turn, segments)
        for path in self._paths:
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                # It was never there, or somebody deleted it.
                replace_file(path, data.ljust(_PLACE_BYTES, b"\0") * 2)
                continue
            try:
                os.pwrite(fd, data, (turn % 2) * _PLACE_BYTES)
                # The copy is read only when the file is gone, and an older copy claims less, not more.
                if sync and path is self._paths[1]:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
        self._turn, self._segments = turn, segments


def _places(path: Path) -> list[tuple[int, Segments]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    places = (_decode(data[at : at + _PLACE.size + _CRC.size]) for at in (0, _PLACE_BYTES))
    return [place for place in places if place is not None]


def _encode(turn: int, segments: Segments) -> bytes:
    data = _PLACE.pack(_MAGIC, segments.is_closed, turn, *segments[:3])
    return data + _CRC.pack(crc32(data))


def _decode(data: bytes) -> tuple[int, Segments] | None:
    if len(data) < _PLACE.size + _CRC.size or _CRC.unpack_from(data, _PLACE.size)[0] != crc32(data[: _PLACE.size]):
        return None
    magic, is_closed, turn, first, last, end = _PLACE.unpack_from(data)
    return (turn, Segments(first, last, end, bool(is_closed))) if magic == _MAGIC else None
