"""The file HEAD: which segments a journal has, and how far the last one goes.

A recovery compares HEAD with the segments that it finds, and so notices a segment that was deleted or truncated. HEAD
has two slots, which are written alternately and in place: a crash spoils at most one of them, and a full disk none. A
copy of HEAD is beside the journal's directory, so that the loss of the whole directory is noticed too.
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
    """The numbers of the first and the last segment. There are no segments if the last number is below the first."""

    first: int
    last: int
    end: int
    """Records of the last segment were acknowledged up to this byte."""
    is_closed: bool
    """Whether the last segment ends at `end`."""


NO_SEGMENTS: Final = Segments(1, 0, 0, True)


class Head:
    def __init__(self, path: Path, copy: Path) -> None:
        # The copy is written first, so that it is written even if the journal's directory is gone.
        self._paths = (copy, path)
        self._lock = threading.Lock()
        self._turn = 0
        self._segments = NO_SEGMENTS

    def read(self) -> Segments | None:
        """What was written last; None if neither the file nor its copy has a valid slot."""
        found = max((place for path in self._paths for place in _places(path)), default=None)
        if found is None:
            return None
        self._turn, self._segments = found
        return self._segments

    def begins(self, number: int) -> None:
        """Notes a new segment, which is durable."""
        with self._lock:
            first, last = self._segments[:2]
            first = min(first, number) if first <= last else number
            self._write(Segments(first, number, SEGMENT_HEADER_BYTES, False))

    def reached(self, number: int, end: int) -> None:
        """Notes that the last segment was acknowledged up to this byte. Not synced, because an older note is still
        true.
        """
        with self._lock:
            segments = self._segments
            if number == segments.last and end > segments.end and not segments.is_closed:
                self._write(segments._replace(end=end), sync=False)

    def ends(self, number: int, end: int) -> None:
        """Notes that the last segment ends at this byte."""
        with self._lock:
            if number == self._segments.last:
                self._write(self._segments._replace(end=end, is_closed=True))

    def remove_through(self, number: int) -> None:
        """Notes that the segments up to this one are about to be removed."""
        with self._lock:
            if number >= self._segments.first:
                last = max(self._segments.last, number)
                self._write(self._segments._replace(first=number + 1, last=last))

    def replace(self, segments: Segments) -> None:
        """Replaces the note after a recovery has dealt with missing segments."""
        with self._lock:
            self._write(segments)

    def _write(self, segments: Segments, sync: bool = True) -> None:
        turn = self._turn + 1
        data = _encode(turn, segments)
        for path in self._paths:
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                # The file was never there, or was deleted from outside.
                replace_file(path, data.ljust(_PLACE_BYTES, b"\0") * 2)
                continue
            try:
                os.pwrite(fd, data, (turn % 2) * _PLACE_BYTES)
                # The copy is not synced: it is read only if the file is gone, and an older copy claims less, not more.
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
    places = [_decode(data[at : at + _PLACE.size + _CRC.size]) for at in (0, _PLACE_BYTES)]
    return [place for place in places if place is not None]


def _encode(turn: int, segments: Segments) -> bytes:
    data = _PLACE.pack(_MAGIC, segments.is_closed, turn, *segments[:3])
    return data + _CRC.pack(crc32(data))


def _decode(data: bytes) -> tuple[int, Segments] | None:
    if len(data) < _PLACE.size + _CRC.size or _CRC.unpack_from(data, _PLACE.size)[0] != crc32(data[: _PLACE.size]):
        return None
    magic, is_closed, turn, first, last, end = _PLACE.unpack_from(data)
    return (turn, Segments(first, last, end, bool(is_closed))) if magic == _MAGIC else None
