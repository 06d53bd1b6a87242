"""Writes the objects of an archive that is a directory. They are read, listed and deleted as in any other store.

An object is written under another name, synced, and then gets its own name. So no reader sees a part of an object, and
neither does a crash leave one. A crash leaves an unfinished file, which is deleted when the archive is pruned. Large
objects are synced piece by piece: while a disk flushes many megabytes, every sync of the journal waits, and so does
every request.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from querator import limits
from querator.daemon.archive.objects import log_name, log_number
from querator.daemon.store import sync_directory


def create(root: Path, name: str, data: bytes) -> bool:
    """Creates an object, durably. Returns False and changes nothing if there is one of this name."""
    try:
        _write(root, name, _slices(data), os.link)
    except FileExistsError:
        return False
    return True


def replace(root: Path, name: str, data: bytes) -> None:
    """Creates an object, or replaces it as a whole, durably."""
    _write(root, name, _slices(data), os.replace)


def upload(root: Path, name: str, path: Path) -> None:
    """Copies a file, durably."""
    with path.open("rb", buffering=0) as file:
        _write(root, name, iter(lambda: file.read(limits.ARCHIVE_SYNC_BYTES), b""), os.replace)


def _write(
    root: Path, name: str, pieces: Iterable[bytes | memoryview], give_name: Callable[[Path, Path], None]
) -> None:
    path = root / name
    if log_number(name) is not None and name != log_name(1) and not path.parent.is_dir():
        # An empty mount point must not take objects, for which requests are then acknowledged.
        raise FileNotFoundError(f"{path.parent} is missing: mount the archive's disk or bring its objects back")
    path.parent.mkdir(parents=True, exist_ok=True)
    # obstore lists no file whose name ends like this: it names its own unfinished files so.
    unfinished = path.with_name(f"{path.name}#{random.getrandbits(63)}")
    try:
        with open(unfinished, "xb", buffering=0) as file:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fdatasync(file.fileno())
        give_name(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
    sync_names(root, name)


def sync_names(root: Path, name: str) -> None:
    """Makes the name of an object durable."""
    path = root / name
    while path != root:
        path = path.parent
        sync_directory(path)


def delete_unfinished(root: Path, dry_run: bool = False) -> list[int]:
    """Deletes files that crashed writers have left. Returns their sizes. A writer that was only suspended, and still
    needs its file, gets an error and writes it again."""
    sizes = []
    for path in root.rglob("*#*"):
        if path.name.rpartition("#")[2].isdecimal():
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                if time.time() - stat.st_mtime > limits.ARCHIVE_UNFINISHED_SECONDS:
                    if not dry_run:
                        path.unlink()
                    sizes.append(stat.st_size)
    return sizes


def _slices(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    for at in range(0, len(data), limits.ARCHIVE_SYNC_BYTES):
        yield view[at : at + limits.ARCHIVE_SYNC_BYTES]
