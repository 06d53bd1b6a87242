"""Feeds a journal to the archive: gives its records in order, and holds segments until they are copied.

A *position* is a byte of a segment. Everything before the position is copied. Segments from the position on are held:
they are neither trimmed nor overwritten. An archive that falls too far behind loses its hold, and must start over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from querator.daemon.store.journal.books import Books
from querator.daemon.store.journal.records import CLOSED, SEGMENT_HEADER_BYTES, Damage, Record, read_records


class Position(NamedTuple):
    segment: int
    offset: int


class FeedChunk(NamedTuple):
    """Records of one segment that were not copied yet. Everything in it is durable."""

    segment: int
    begin: int
    end: int
    path: Path

    def read(self) -> bytes:
        """Blocking. Raises OSError if the file is gone or was overwritten."""
        with self.path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), self.end - self.begin, self.begin)
            while len(data) < self.end - self.begin:
                more = os.pread(file.fileno(), self.end - self.begin - len(data), self.begin + len(data))
                if not more:
                    raise OSError(f"{self.path.name} is shorter than {self.end} bytes")
                data += more
        return data


class Opening(NamedTuple):
    """A partition whose file was opened. Its records from now on build on what the file contains."""

    uuid: str
    queue: str
    applied: int
    """The last record in the file."""
    is_new: bool
    """Whether the file was created just now, and is empty."""


class News(NamedTuple):
    """Everything that was appended to a journal after a position, and the partitions that were opened since. Records
    that a partition gets after its opening are in the same news or in later ones.
    """

    chunks: list[FeedChunk]
    openings: list[Opening]


class HoldLost(Exception):
    """Segments after the position are gone."""


class Feed:
    def __init__(self, books: Books) -> None:
        self._books = books
        self._openings: list[Opening] = []
        self._is_wanted = False

    def hold_everything(self) -> None:
        """Holds every existing segment until `hold` is called. Called before a recovery."""
        self._is_wanted = True
        self._books.hold_from(0)

    def hold(self, position: Position) -> None:
        """Holds every segment from this position on. Called again as copying advances."""
        self._books.hold_from(position.segment)

    def opened(self, opening: Opening) -> None:
        if self._is_wanted:
            with self._books.lock:
                self._openings.append(opening)

    def end(self) -> Position:
        """The position after everything that is durable now."""
        with self._books.lock:
            if not self._books.segments:
                return Position(self._books.last_number + 1, SEGMENT_HEADER_BYTES)
            last = self._books.segments[-1]
            return Position(last.number, last.bytes)

    def take(self, position: Position) -> News:
        """Everything durable after a position. Each opening is reported once. Raises HoldLost."""
        with self._books.lock:
            return self._take(position)

    def _take(self, position: Position) -> News:
        later = [segment for segment in self._books.segments if segment.number >= position.segment]
        is_there = position.segment > self._books.last_number or any(
            one.number == position.segment and one.bytes >= position.offset for one in later
        )
        if not is_there:
            raise HoldLost(f"segment {position.segment} is gone")
        chunks = []
        for one in later:
            begin = position.offset if one.number == position.segment else SEGMENT_HEADER_BYTES
            if one.bytes > begin:
                chunks.append(FeedChunk(one.number, begin, one.bytes, one.path))
        openings, self._openings = self._openings, []
        return News(chunks, openings)


def take_together(feeds: Mapping[str, tuple[Feed, Position]]) -> dict[str, News | HoldLost]:
    """What `take` finds in several journals, all at one moment.

    An item that moves between storages is produced in one journal, and then removed in another. If the moments
    differed, a copy could have the removal and not the item.
    """
    found: dict[str, News | HoldLost] = {}
    with ExitStack() as locks:
        for name in sorted(feeds):
            locks.enter_context(feeds[name][0]._books.lock)
        for name, (feed, position) in feeds.items():
            try:
                found[name] = feed._take(position)
            except HoldLost as lost:
                found[name] = lost
    return found


def records_of(segment: int, data: bytes) -> list[tuple[Record, bytes]]:
    """The records of a copied chunk, each with its payload. Raises ValueError if the bytes are damaged."""
    whole = bytes(SEGMENT_HEADER_BYTES) + data
    return [(record, whole[record.payload_at : record.end]) for record in _records(segment, whole)]


class Survey(NamedTuple):
    """What a chunk contains, without payloads."""

    numbers: dict[bytes, int]
    """The last record of each partition."""
    first: dict[bytes, int]
    """The first record of each partition."""
    closed: set[bytes]
    """Partitions whose last record notes that they were closed."""


def survey(segment: int, data: bytes) -> Survey:
    """Raises ValueError if the bytes are damaged."""
    numbers: dict[bytes, int] = {}
    first: dict[bytes, int] = {}
    closed: set[bytes] = set()
    for record in _records(segment, bytes(SEGMENT_HEADER_BYTES) + data):
        if record.kind == CLOSED:
            closed.add(record.partition)
        else:
            numbers[record.partition] = record.number
            first.setdefault(record.partition, record.number)
            closed.discard(record.partition)
    return Survey(numbers, first, closed)


def _records(segment: int, whole: bytes) -> Iterator[Record]:
    for one in read_records(whole, segment, end=len(whole)).found:
        if isinstance(one, Damage):
            raise ValueError(one.reason)
        yield one


def records_left(directory: Path, position: Position | None) -> Iterator[tuple[Record, bytes]]:
    """The records after a position in the journal of a storage that nobody uses. Changes nothing.

    Stops at the first byte that is no record: a crash may have torn the last append.
    """
    begin = position or Position(0, 0)
    for path in sorted(directory.glob("*.seg")):
        segment = int(path.stem)
        if segment < begin.segment:
            continue
        data = path.read_bytes()
        for one in read_records(data, segment).found:
            if isinstance(one, Damage):
                break
            if segment > begin.segment or one.payload_at > begin.offset:
                yield one, data[one.payload_at : one.end]
