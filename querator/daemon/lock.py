"""The LOCK file of a data directory: it names the daemon that runs there and keeps others out.

The kernel releases the flock when the process ends, in whatever way. The contents of the file (the PID on the first
line, details for `daemon status` on the second) count only while the lock is held. The file is never deleted: one
daemon could hold the lock of the deleted file, and another that of a new file.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from querator import limits
from querator.errors import QueratorError

POLL_SECONDS: Final = 0.02


class Holder(msgspec.Struct, omit_defaults=True):
    """The daemon that holds a data directory."""

    pid: int = 0
    version: str = ""
    started_at: int = 0
    """In µs since 1970."""
    socket: str = ""
    http: list[str] = []
    insecure: bool = False
    """Whether the daemon was started with --insecure."""


class DataLock:
    """Held from `acquire` to `release`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, data: Path) -> DataLock:
        """Raises QueratorError, naming the PID, if another daemon has the directory."""
        path = data / "LOCK"
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise QueratorError(f"data directory {data} cannot be used: {error.strerror}") from None
        # A process that asks for the holder also locks the file, for an instant.
        deadline = time.monotonic() + limits.LOCK_WAIT_SECONDS
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                other = _read(descriptor)
                os.close(descriptor)
                raise QueratorError(
                    f"another daemon, PID {other.pid}, already runs on {data}",
                    hint=f"querator daemon status --data {data}, or querator daemon stop --data {data}",
                )
            time.sleep(POLL_SECONDS)
        lock = cls(path, descriptor)
        lock.describe(Holder(pid=os.getpid()))
        return lock

    def describe(self, holder: Holder) -> None:
        text = f"{holder.pid}\n".encode() + msgspec.json.encode(holder) + b"\n"
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def release(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def holder(data: Path) -> Holder | None:
    """The daemon that runs on a data directory, or None."""
    try:
        descriptor = os.open(data / "LOCK", os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise QueratorError(f"{data / 'LOCK'} cannot be read: {error.strerror}") from None
    try:
        deadline = time.monotonic() + limits.LOCK_WAIT_SECONDS
        while not _try_lock(descriptor, fcntl.LOCK_SH):
            found = _read(descriptor)
            if found.pid or time.monotonic() > deadline:
                return found
            time.sleep(POLL_SECONDS)  # the holder has just started and not yet written its name
        return None
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> Holder:
    lines = os.pread(descriptor, 65_536, 0).splitlines()
    with suppress(msgspec.MsgspecError, IndexError):
        return msgspec.json.decode(lines[1], type=Holder)
    return Holder(pid=int(lines[0])) if lines and lines[0].isdigit() else Holder()
