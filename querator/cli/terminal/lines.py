"""Reads numbered lines from a stream of any length, without waiting for more than is available."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

READ_BYTES: Final = 1 << 18


class Lines(NamedTuple):
    """Consecutive lines without line ends. `first` is the number of the first line, counted from 1."""

    first: int
    lines: list[bytes]


class TooLong(NamedTuple):
    """A line that is longer than an item may be. Its bytes are dropped."""

    number: int
    bytes: int


def read_lines(stream: BinaryIO, line_bytes_max: int) -> Iterator[Lines | TooLong]:
    """Yield the lines of each read at once, so that a slow pipe has no delay and a fast pipe gives large batches.

    Memory is bounded by READ_BYTES and the longest allowed line.
    """
    read = getattr(stream, "read1", stream.read)
    number, rest, dropped = 1, b"", 0
    while chunk := read(READ_BYTES):
        if dropped:
            end = chunk.find(b"\n")
            if end < 0:
                dropped += len(chunk)
                continue
            yield TooLong(number, dropped + end)
            number, dropped, chunk = number + 1, 0, chunk[end + 1 :]
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        if lines:
            yield from _checked(number, lines, line_bytes_max)
            number += len(lines)
        if len(rest) > line_bytes_max:
            dropped, rest = len(rest), b""
    if dropped:
        yield TooLong(number, dropped)
    elif rest:
        yield Lines(number, [rest])


def _checked(number: int, lines: list[bytes], line_bytes_max: int) -> Iterator[Lines | TooLong]:
    if len(max(lines, key=len)) <= line_bytes_max:
        yield Lines(number, lines)
        return
    start = 0
    for at, line in enumerate(lines):
        if len(line) > line_bytes_max:
            if at > start:
                yield Lines(number + start, lines[start:at])
            yield TooLong(number + at, len(line))
            start = at + 1
    if start < len(lines):
        yield Lines(number + start, lines[start:])
