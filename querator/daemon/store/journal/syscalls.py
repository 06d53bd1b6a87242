"""Writing and syncing without releasing the interpreter's lock.

`os.pwrite` and `os.fdatasync` release the lock, so that other threads can run. This is right in a worker thread. It is
wrong on the loop: a fast disk takes a tenth of a millisecond, but a worker that gets the lock meanwhile keeps it for up
to five milliseconds, or longer if it has to wait for a processor. All requests would wait for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
_pwrite = _LIBC.pwrite
_pwrite.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64]
_pwrite.restype = ctypes.c_ssize_t
_fdatasync = _LIBC.fdatasync
_fdatasync.argtypes = [ctypes.c_int]


def pwrite_holding(fd: int, data: bytes, offset: int) -> int:
    while (written := int(_pwrite(fd, data, len(data), offset))) < 0:
        _raise_unless_interrupted()
    return written


def fdatasync_holding(fd: int) -> None:
    while _fdatasync(fd) < 0:
        _raise_unless_interrupted()


def _raise_unless_interrupted() -> None:
    number = ctypes.get_errno()
    if number != errno.EINTR:
        raise OSError(number, os.strerror(number))
