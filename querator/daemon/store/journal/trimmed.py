"""The last record of each partition that was trimmed from the journal, so that a file that lost it is noticed.

A record is trimmed once the partition's file, or its kept file, contains it. DuckDB may have the record in the log of
the file only, and an operator can delete or empty that log. A closed partition is forgotten here: its file needs no
log, and may be replaced by an older file.

A copy is beside the journal's directory, so that the numbers are still known if the directory or the file is lost.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Final
from zlib import crc32

from querator.daemon.store.files import replace_file

_log = logging.getLogger(__name__)
_HEAD: Final = struct.Struct("<4sI")
_MAGIC: Final = b"QJT1"
_ENTRY: Final = struct.Struct("<16sQ")


class Trimmed:
    def __init__(self, path: Path, copy: Path) -> None:
        self._paths = (path, copy)
        self.numbers: dict[bytes, int] = {}
        self._written: dict[bytes, int] | None = None
        """What both files contain; None if one of them is missing or damaged."""

    def recover(self) -> bool:
        """Reads the numbers, and returns whether the file or its copy has them."""
        found = [_read(path) for path in self._paths]
        readable = [numbers for numbers in found if numbers is not None]
        self.numbers = dict(readable[0]) if readable else {}
        self._written = dict(self.numbers) if found == [self.numbers] * 2 else None
        return bool(readable)

    @property
    def is_whole(self) -> bool:
        """Whether the file and its copy are there and agree."""
        return self._written is not None

    def write(self) -> None:
        """Makes the numbers durable. Call this before the records are trimmed."""
        if self.numbers != self._written:
            self._written = None
            numbers = dict(self.numbers)
            entries = b"".join(_ENTRY.pack(*entry) for entry in numbers.items())
            for path in self._paths:
                replace_file(path, _HEAD.pack(_MAGIC, crc32(entries)) + entries)
            self._written = numbers


def _read(path: Path) -> dict[bytes, int] | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    entries = data[_HEAD.size :]
    if data[: _HEAD.size] != _HEAD.pack(_MAGIC, crc32(entries)) or len(entries) % _ENTRY.size:
        _log.error("%s is damaged", path)
        return None
    return dict(_ENTRY.iter_unpack(entries))
