"""Writing and syncing without letting go of the interpreter's lock.

`os.pwrite` and `os.fdatasync` let other threads run Python meanwhile. That is right in a thread of one's own. On the
loop it is not: a worker that is given the lock for the tenth of a millisecond that a fast disk takes keeps it for up to
five, or for as long as it is kept from a processor, and everybody waits.
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
