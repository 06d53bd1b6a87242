"""The last record of each partition that was trimmed from the journal, so that a file that lost it is noticed.

A record is trimmed once the partition's file, or its kept file, contains it. DuckDB may have the record in the log of
the file only, and an operator can delete or empty that log. A closed partition is forgotten here: its file needs no
log, and may be replaced by an older file.
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
    def __init__(self, path: Path) -> None:
        self._path = path
        self.numbers: dict[bytes, int] = {}
        self._written: dict[bytes, int] = {}

    def recover(self) -> None:
        self.numbers = {}
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        entries = data[_HEAD.size :]
        if data[: _HEAD.size] != _HEAD.pack(_MAGIC, crc32(entries)) or len(entries) % _ENTRY.size:
            # No record is lost by this. Only the check for lost logs is.
            _log.error("%s is damaged: a file that lost its log may go unnoticed", self._path)
            return
        self.numbers = dict(_ENTRY.iter_unpack(entries))
        self._written = dict(self.numbers)

    def write(self) -> None:
        """Makes the numbers durable. Call this before the records go."""
        if self.numbers != self._written:
            entries = b"".join(_ENTRY.pack(*entry) for entry in self.numbers.items())
            replace_file(self._path, _HEAD.pack(_MAGIC, crc32(entries)) + entries)
            self._written = dict(self.numbers)
