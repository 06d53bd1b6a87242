"""Files that a journal is done with, and writes over instead of beginning new ones.

To sync bytes in blocks that were never written before, a file system must also record that they are in use now, in a
journal of its own that all files share. Blocks that are written over need nothing of the kind: a sync takes about two
thirds of the time, and does not wait for what DuckDB writes next door.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

from querator import limits
from querator.daemon.store.files import sync_directory
from querator.daemon.store.journal.records import SEGMENT_HEADER_BYTES, decode_segment_header

_PIECE_BYTES: Final = 65_536


class Spares:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._paths: list[Path] = []
        self._next = 1

    def find(self, last_number: int) -> None:
        """What an earlier process left. `last_number` is that of the last segment."""
        with self._lock:
            self._paths = []
            self._next = 1
            for path in sorted(self._directory.glob("*.spare")):
                if _number_of(path) > last_number:
                    # The journal counts from an earlier number on: what is in here would pass for records to come.
                    path.unlink()
                else:
                    self._paths.append(path)
                    self._next = 1 + int(path.stem)
        self.reduce(limits.SPARES_MAX)

    @property
    def any(self) -> bool:
        return bool(self._paths)

    def take(self) -> Path | None:
        """One to be written over, and to be renamed before anything that counts is in it."""
        with self._lock:
            return self._paths.pop() if self._paths else None

    def put(self, path: Path) -> None:
        """Nobody needs this file any more. The caller syncs the directory."""
        # Somebody may have deleted it, which must not keep what comes after it from going.
        with self._lock, contextlib.suppress(FileNotFoundError):
            if (
                len(self._paths) < limits.SPARES_MAX
                and path.stat().st_size >= limits.SEGMENT_BYTES_MAX // 2
                and self._has_room()
            ):
                self._paths.append(path.rename(self._new_path()))
            else:
                path.unlink()

    def make(self) -> None:
        """A file of zeros. A disk that is full has no room for it, which does no harm."""
        fresh = self._directory / "spare.new"
        try:
            if not self._has_room():
                return
            with open(fresh, "wb", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                _fill(file.fileno(), limits.SEGMENT_BYTES_MAX)
            with self._lock:
                self._paths.append(fresh.rename(self._new_path()))
            sync_directory(self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()

    def reduce(self, count: int) -> None:
        """Gives the room of all but so many back."""
        with self._lock:
            while len(self._paths) > count:
                with contextlib.suppress(OSError):
                    self._paths.pop().unlink()

    def _has_room(self) -> bool:
        there = os.statvfs(self._directory)
        return there.f_bavail * there.f_frsize > limits.SPARES_ROOM_BYTES_MIN

    def _new_path(self) -> Path:
        number, self._next = self._next, self._next + 1
        return self._directory / f"{number:012d}.spare"


def _number_of(path: Path) -> int:
    """Of the segment that this was last, or was about to be; 0 if it never was one."""
    with path.open("rb") as file:
        header = decode_segment_header(file.read(SEGMENT_HEADER_BYTES))
    return header.number if header else 0


def _fill(fd: int, size: int) -> None:
    """With zeros, in pieces of a size that pays. What is written at once stays in memory as one piece: with pieces of
    megabytes a small write takes longer to sync, with single pages a large one. Synced in steps, because others want
    the disk, too."""
    zeros = bytes(_PIECE_BYTES)
    written = 0
    while written < size:
        written += os.write(fd, zeros[: size - written])
        if written % limits.SEGMENT_ALLOCATION_BYTES < _PIECE_BYTES:
            os.fdatasync(fd)
    os.fsync(fd)
