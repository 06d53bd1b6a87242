"""Which segments a journal consists of, so that one that disappears is missed, be it the first or the last.

Segments count up by one, so one that is missing in between shows by itself. The file has two places, which are written
in turn and in place: a crash spoils one of them at most, and a full disk none.
"""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from querator.daemon.store.files import replace_file

_MAGIC: Final = b"QJH1"
_PLACE: Final = struct.Struct("<4sIQQQ")
_CRC: Final = struct.Struct("<I")
_PLACE_BYTES: Final = 4096


class Segments(NamedTuple):
    """Numbers, both inclusive; there are none when the last one lies before the first."""

    first: int
    last: int


class Head:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._turn = 0
        self._segments = Segments(1, 0)

    def read(self) -> Segments | None:
        """What was written last; None when there is no such file, or nothing in it."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        places = [_decode(data[at : at + _PLACE.size + _CRC.size]) for at in (0, _PLACE_BYTES)]
        found = max((place for place in places if place is not None), default=None)
        if found is None:
            return None
        self._turn, self._segments = found
        return self._segments

    def begins(self, number: int) -> None:
        """Another segment is there, durably."""
        with self._lock:
            self._write(Segments(min(self._segments.first, number) if self._has_any else number, number))

    def goes(self, number: int) -> None:
        """The oldest segment, and what is older, is about to be deleted."""
        with self._lock:
            if number >= self._segments.first:
                self._write(Segments(number + 1, max(self._segments.last, number)))

    def is_now(self, segments: Segments) -> None:
        """What was missing has been seen to."""
        with self._lock:
            self._write(segments)

    @property
    def _has_any(self) -> bool:
        return self._segments.first <= self._segments.last

    def _write(self, segments: Segments) -> None:
        turn = self._turn + 1
        data = _encode(turn, segments)
        if self._turn == 0:
            replace_file(self._path, data.ljust(_PLACE_BYTES, b"\0") * 2)
        else:
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(fd, data, (turn % 2) * _PLACE_BYTES)
                os.fdatasync(fd)
            finally:
                os.close(fd)
        self._turn, self._segments = turn, segments


def _encode(turn: int, segments: Segments) -> bytes:
    data = _PLACE.pack(_MAGIC, 0, turn, *segments)
    return data + _CRC.pack(crc32(data))


def _decode(data: bytes) -> tuple[int, Segments] | None:
    if len(data) < _PLACE.size + _CRC.size or _CRC.unpack_from(data, _PLACE.size)[0] != crc32(data[: _PLACE.size]):
        return None
    magic, _, turn, first, last = _PLACE.unpack_from(data)
    return (turn, Segments(first, last)) if magic == _MAGIC else None
