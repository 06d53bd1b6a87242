"""Finds the end of a chunked body, so that the parser never sees bytes of the next request.

The parser itself validates and decodes the body.
"""

from __future__ import annotations

from querator.limits import HEAD_BYTES_MAX


class TooMuchFraming(Exception):
    """A line between chunks, or the trailer, is longer than HEAD_BYTES_MAX."""


class ChunkedEnd:
    """Follows a chunked body from read to read. Finds no end in a malformed body: the parser refuses it anyway."""

    def __init__(self) -> None:
        self._line = b""
        self._skip = 0
        self._in_trailer = False
        self._trailer_bytes = 0

    def find(self, data: bytes, at: int) -> int:
        """The position after the body's last byte, or -1 if `data` does not contain it. Looks from `at` on."""
        while at < len(data):
            if self._skip:
                skipped = min(self._skip, len(data) - at)
                self._skip -= skipped
                at += skipped
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at : at + HEAD_BYTES_MAX]
                if len(self._line) + self._trailer_bytes > HEAD_BYTES_MAX:
                    raise TooMuchFraming
                return -1
            line = self._line + data[at:end]
            self._line = b""
            at = end + 1
            if self._in_trailer:
                self._trailer_bytes += len(line)
                if line == b"\r":
                    return at
            elif not self._begin_chunk(line):
                return -1
        return -1

    def _begin_chunk(self, line: bytes) -> bool:
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            return False
        self._in_trailer = size == 0
        self._skip = size + 2 if size > 0 else 0
        return size >= 0
