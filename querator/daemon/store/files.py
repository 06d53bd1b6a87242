"""Durable changes of files and directories."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable, after a file was created, renamed or deleted."""
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
    """Makes a directory that only its owner can read, durably: its files would be lost with it."""
    if not directory.is_dir():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(directory.parent)


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading. Refuses a link, and anything but a regular file: reading a pipe might never end."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file that only its owner can read. Syncs the file, but not its name. Raises if the file exists."""
    with open(path, "xb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file as a whole, durably: after a crash it has either the old or the new contents."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    write_file(fresh, data)
    fresh.rename(path)
    sync_directory(path.parent)


def private(path: str, flags: int) -> int:
    """An opener for `open`: only the owner can read a file that it creates."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
