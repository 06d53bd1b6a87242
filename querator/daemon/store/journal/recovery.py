"""Reads a journal back at a start: finds its records, and reports segments that are missing or damaged."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from querator.daemon.store.journal.books import Books, Segment, segment_path
from querator.daemon.store.journal.head import NO_SEGMENTS, Head
from querator.daemon.store.journal.history import History
from querator.daemon.store.journal.records import (
    SEGMENT_HEADER_BYTES,
    Record,
    SegmentContents,
    SegmentHeader,
    decode_segment_header,
    read_records,
)

_log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    history: History
    last_number: int
    """The number of the last segment."""
    is_new: bool
    """Whether nothing tells which segments there were before."""


def recover(directory: Path, books: Books, head_file: Head) -> Recovered:
    """Reads every segment. A torn append at the end is left out: it was never acknowledged."""
    known = head_file.read()
    head = known or NO_SEGMENTS
    history = books.recover(has_trimmed=head.first > 1)
    numbers = sorted(int(path.stem) for path in directory.glob("*.seg") if path.stem.isdigit())
    while numbers and numbers[0] < head.first:
        # Nobody needed this segment. A crash undid its renaming, and it may be overwritten already.
        segment_path(directory, numbers.pop(0)).unlink()
    if numbers and numbers[-1] > head.last and _is_unborn(segment_path(directory, numbers[-1]), numbers[-1]):
        segment_path(directory, numbers.pop()).unlink()
    first_there = numbers[0] if numbers else head.last + 1
    if head.first < first_there and head.first <= head.last:
        history.wound(f"segments {head.first} to {min(head.last, first_there - 1)} are missing", None)
    headers = [_header(segment_path(directory, number), number) for number in numbers]
    for at, number in enumerate(numbers):
        if at and number != numbers[at - 1] + 1:
            history.wound(f"segments {numbers[at - 1] + 1} to {number - 1} are missing", None)
        after = headers[at + 1] if numbers[at + 1 : at + 2] == [number + 1] else None
        end = after.previous_bytes if after else head.end if number == head.last and head.is_closed else None
        acknowledged = head.end if number == head.last else 0
        path = segment_path(directory, number)
        blank_from = header.blank_from if (header := headers[at]) else None
        contents = read_records(path.read_bytes(), number, end, acknowledged, blank_from)
        _note(books, history, Segment(number, path, contents.end), contents)
        if number == numbers[-1] and end is None:
            _check_open(path, header, history, contents)
        elif contents.torn:
            history.wound(f"a record at byte {contents.end} is cut off", path)
    if numbers and numbers[-1] < head.last:
        history.wound(f"segments {numbers[-1] + 1} to {head.last} are missing", None)
    return Recovered(history, numbers[-1] if numbers else head.last, known is None)


def _header(path: Path, number: int) -> SegmentHeader | None:
    with path.open("rb") as file:
        header = decode_segment_header(file.read(SEGMENT_HEADER_BYTES))
    return header if header and header.number == number else None


def _is_unborn(path: Path, number: int) -> bool:
    """Whether a crash left this segment before its header was durable, and so before it had a record."""
    has_records = path.read_bytes()[SEGMENT_HEADER_BYTES:].strip(b"\0")
    return _header(path, number) is None and not has_records


def _note(books: Books, history: History, segment: Segment, contents: SegmentContents) -> None:
    books.segments.append(segment)
    for found in contents.found:
        history.add(segment.path, found)
        if isinstance(found, Record):
            books.note(segment, found)


def _check_open(path: Path, header: SegmentHeader | None, history: History, contents: SegmentContents) -> None:
    """Reports damage of the segment that was in use at a crash. A torn append is not damage."""
    size = path.stat().st_size
    if header is None and not contents.found:
        # A header is durable before there are records.
        history.wound("this is not a segment", path)
    elif header and size < header.room:
        history.wound(f"the file has {size} bytes and had {header.room}", path)
    elif contents.torn:
        _log.warning("%s: cut off at byte %d, inside an append that was never acknowledged", path, contents.end)
