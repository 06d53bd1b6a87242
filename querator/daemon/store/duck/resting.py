"""Files without rows, which stay detached until they are needed, and a note of them that an orderly stop leaves behind.

An attached file takes 0.2 MB of memory and a descriptor, and opening it takes milliseconds. Of many queues most are
empty, so their files rest. The note saves the next start from opening them. It is believed only for a file that nobody
has touched since. It says which journal records the file contains, so the start notices missing records as if it had
read the file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from querator.daemon.store.duck import tables
from querator.daemon.store.duck.partition_file import Meta
from querator.daemon.store.files import replace_file, sync_directory

_log = logging.getLogger(__name__)


class Mark(NamedTuple):
    """How a closed file looks from outside. It differs when somebody has written to the file."""

    device: int
    inode: int
    size: int
    modified_ns: int


def mark_of(path: Path) -> Mark | None:
    """None if the file is missing, or if it has a log, which may contain rows."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if path.with_name(path.name + ".wal").exists():
        return None
    return Mark(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Rest(NamedTuple):
    """A file without rows that was closed."""

    queue: str
    applied: int
    last_seq: int
    mark: Mark


class RestingFiles:
    """The note of one storage."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rests: dict[str, Rest] = {}

    def take_note(self) -> None:
        """Reads the note of the last stop and deletes it: from now on files change."""
        self._rests = {}
        try:
            checksum, _, data = self._path.read_bytes().partition(b"\n")
        except OSError:
            return  # the last daemon was killed, so every file is opened
        try:
            if checksum != _checksum(data):
                raise ValueError("the checksum is wrong")
            self._rests = msgspec.json.decode(data, type=dict[str, Rest])
        except ValueError:
            _log.warning("%s is damaged and is not used: every file is opened", self._path)
        self._path.unlink()
        sync_directory(self._path.parent)

    def take(self, uuid: str, path: Path) -> Meta | None:
        """What the note says of a file; None if it says nothing, or if the file was touched since. Asked once per
        file."""
        rest = self._rests.pop(uuid, None)
        if rest is None or rest.mark != mark_of(path):
            return None
        return Meta(uuid, rest.queue, tables.SCHEMA_VERSION, rest.applied, rest.last_seq)

    def write_note(self, rests: dict[str, Rest]) -> None:
        data = msgspec.json.encode(rests)
        replace_file(self._path, _checksum(data) + b"\n" + data)


def _checksum(data: bytes) -> bytes:
    # Files of another version need not be empty in the same way, so the version is part of what must match.
    return b"%d-%08x" % (tables.SCHEMA_VERSION, crc32(data))
