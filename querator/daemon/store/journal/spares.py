"""Old segment files that the journal overwrites instead of creating new files.

To sync blocks that were never written before, a file system must also record that they are in use, in a journal of its
own that all files share. Overwritten blocks do not need this: a sync takes about two thirds of the time, and does not
wait for other files that DuckDB writes.
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
        """Finds the spares that an earlier process left. `last_number` is the number of the last segment."""
        with self._lock:
            self._paths = []
            self._next = 1
            for path in sorted(self._directory.glob("*.spare")):
                if _number_of(path) > last_number:
                    # The journal will use this number again, and old records in this file would look like new ones.
                    path.unlink()
                else:
                    self._paths.append(path)
                    self._next = 1 + int(path.stem)
        self.reduce(limits.SPARES_MAX)

    @property
    def any(self) -> bool:
        return bool(self._paths)

    def take(self) -> Path | None:
        """A file to overwrite. The caller renames it before the first record goes into it."""
        with self._lock:
            return self._paths.pop() if self._paths else None

    def put(self, path: Path) -> None:
        """Takes a file that nobody needs, or deletes it. The caller syncs the directory."""
        # The file may have been deleted from outside. This must not stop later segments from being trimmed.
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
        """Makes a spare of zeros. Makes none if the disk is full, which does no harm."""
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
        """Deletes all but `count` spares."""
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
    """The number of the segment that this file was last, or was about to be; 0 if it never was a segment."""
    with path.open("rb") as file:
        header = decode_segment_header(file.read(SEGMENT_HEADER_BYTES))
    return header.number if header else 0


def _fill(fd: int, size: int) -> None:
    """Fills a file with zeros, in pieces of a measured size. The kernel keeps each write in memory as one piece. With
    pieces of megabytes a small write takes longer to sync, with single pages a large write does. The file is synced in
    steps, so that other files can be synced in between."""
    zeros = bytes(_PIECE_BYTES)
    written = 0
    while written < size:
        written += os.write(fd, zeros[: size - written])
        if written % limits.SEGMENT_ALLOCATION_BYTES < _PIECE_BYTES:
            os.fdatasync(fd)
    os.fsync(fd)
