"""Records that were copied out of a segment that has to go, because their partition is slow to apply them.

Each partition has a file of its own, so that damage concerns this partition only. The file states its length, so that a
truncated file is noticed. A record that is both here and in its segment, after a crash in between, counts once.
"""

from __future__ import annotations

from pathlib import Path

from querator.daemon.store.files import replace_file, sync_directory
from querator.daemon.store.journal.history import History
from querator.daemon.store.journal.records import (
    SEGMENT_HEADER_BYTES,
    Damage,
    NewRecord,
    Record,
    SegmentHeader,
    decode_segment_header,
    encode,
    encode_segment_header,
    magic_of,
    read_records,
)

KEPT_SEGMENT = 0
"""Records carry the magic of their segment. These files use the magic of a segment number that is never used."""


class Kept:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.numbers: dict[bytes, int] = {}
        """The last record number in the file of each partition."""

    def recover(self, history: History) -> None:
        self.numbers = {}
        for path in self._directory.glob("*.new"):
            path.unlink()
        for path in sorted(self._directory.glob("*.kept")):
            partition = bytes.fromhex(path.stem)
            header = decode_segment_header(path.read_bytes())
            self.numbers[partition] = header.number if header else 0
        self.read(history)

    def read(self, history: History) -> None:
        for partition in self.numbers:
            path = self._path(partition)
            data = path.read_bytes()
            header = decode_segment_header(data)
            if header is None:
                history.wound("the header is damaged", path, partition)
            end = header.previous_bytes if header else None
            for found in read_records(data, KEPT_SEGMENT, end).found:
                history.add(path, found._replace(partition=partition) if isinstance(found, Damage) else found)

    def add(self, partition: bytes, segment: bytes, records: list[Record]) -> None:
        """Adds records, given by their offsets in the bytes of a segment; durable on return."""
        path = self._path(partition)
        old = path.read_bytes()[SEGMENT_HEADER_BYTES:] if partition in self.numbers else b""
        copies = [
            NewRecord(record.kind, record.number, partition, segment[record.payload_at : record.end])
            for record in records
        ]
        data = old + b"".join(encode(magic_of(KEPT_SEGMENT), 0, copies))
        number = records[-1].number
        replace_file(path, encode_segment_header(SegmentHeader(number, SEGMENT_HEADER_BYTES + len(data))) + data)
        self.numbers[partition] = number

    def drop(self, partition: bytes) -> None:
        self._path(partition).unlink(missing_ok=True)
        sync_directory(self._directory)
        self.numbers.pop(partition, None)

    def _path(self, partition: bytes) -> Path:
        return self._directory / f"{partition.hex()}.kept"
