"""The last record of each partition that was trimmed from the journal, so that a file that lost it is noticed.

A record is trimmed once the partition's file, or its kept file, contains it. DuckDB may have the record in the log of
the file only, and an operator can delete or empty that log. A closed partition is forgotten here: its file needs no
log, and may be replaced by an older file.

Records that together change nothing need not be in the file at all. They are skipped: the numbers say from which record
to which, so that the jump is not taken for a loss, and the last sequence that was handed out.

A copy is beside the journal's directory, so that the numbers are still known if the directory or the file is lost.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from querator.daemon.store.files import replace_file

_log = logging.getLogger(__name__)
_HEAD: Final = struct.Struct("<4sI")
_MAGIC: Final = b"QJT2"
_ENTRY: Final = struct.Struct("<16sQQQQ")


class Skip(NamedTuple):
    """Records that change nothing, all in all, in a file whose last record is `applied`."""

    applied: int
    through: int
    """The last of these records."""
    last_seq: int


_NO_SKIP: Final = Skip(0, 0, 0)


class Numbers(NamedTuple):
    """What TRIMMED says."""

    trimmed: dict[bytes, int]
    skips: dict[bytes, Skip]


class Trimmed:
    def __init__(self, path: Path, copy: Path) -> None:
        self._paths = (path, copy)
        self.numbers: dict[bytes, int] = {}
        self.skips: dict[bytes, Skip] = {}
        self._written: Numbers | None = None
        """What both files contain; None if one of them is missing or damaged."""

    def recover(self) -> bool:
        """Reads the numbers, and returns whether the file or its copy has them."""
        found = [_read(path) for path in self._paths]
        readable = [numbers for numbers in found if numbers is not None]
        known = readable[0] if readable else Numbers({}, {})
        self._written = known if found == [known] * 2 else None
        self.numbers, self.skips = dict(known.trimmed), dict(known.skips)
        return bool(readable)

    def forget(self, partition: bytes) -> None:
        self.numbers.pop(partition, None)
        self.skips.pop(partition, None)

    @property
    def is_whole(self) -> bool:
        """Whether the file and its copy are there and agree."""
        return self._written is not None

    def write(self) -> None:
        """Makes the numbers durable. Call this before the records are trimmed."""
        # Other threads may note skips meanwhile. A copy of the dictionaries is made in one step.
        known = Numbers(dict(self.numbers), dict(self.skips))
        if known != self._written:
            self._written = None
            entries = b"".join(
                _ENTRY.pack(partition, known.trimmed.get(partition, 0), *known.skips.get(partition, _NO_SKIP))
                for partition in known.trimmed.keys() | known.skips.keys()
            )
            for path in self._paths:
                replace_file(path, _HEAD.pack(_MAGIC, crc32(entries)) + entries)
            self._written = known


def _read(path: Path) -> Numbers | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    entries = data[_HEAD.size :]
    if data[: _HEAD.size] != _HEAD.pack(_MAGIC, crc32(entries)) or len(entries) % _ENTRY.size:
        _log.error("%s is damaged", path)
        return None
    known = Numbers({}, {})
    for partition, number, *skip in _ENTRY.iter_unpack(entries):
        if number:
            known.trimmed[partition] = number
        if any(skip):
            known.skips[partition] = Skip(*skip)
    return known
