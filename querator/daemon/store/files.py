"""Small things about files that more than one part of the store needs."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def sync_directory(directory: Path) -> None:
    """Makes names durable: a new file, a renamed one, one that is gone."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """A directory for nobody else to read, and durable: what is in it would be lost with it."""
    if not directory.is_dir():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(directory.parent)


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading. Refuses a link, and what is no file: reading a pipe would never end."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def write_file(path: Path, data: bytes) -> None:
    """A new file, which nobody else may read, durable but for its name. Refuses if something has that name already."""
    with open(path, "xb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """A file with these contents, whole and durable, or as it was before."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    write_file(fresh, data)
    fresh.rename(path)
    sync_directory(path.parent)


def private(path: str, flags: int) -> int:
    """An opener for `open`: what it creates, nobody else may read."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
