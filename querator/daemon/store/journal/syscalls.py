"""Writing and syncing without releasing the interpreter's lock.

`os.pwrite` and `os.fdatasync` release the lock, so that other threads can run. This is right in a worker thread. It is
wrong on the loop: a fast disk takes a tenth of a millisecond, but a worker that gets the lock meanwhile keeps it for up
to five milliseconds, or longer if it has to wait for a processor. All requests would wait for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any, Final

# Without `argtypes`: converting the arguments by them would cost more than the calls. The file is passed as an int.
_pwrite: Final[Callable[..., int]] = ctypes.PyDLL(None).pwrite
_pwrite.restype = ctypes.c_ssize_t  # type: ignore[attr-defined]
_fdatasync: Final[Callable[[int], int]] = ctypes.PyDLL(None, use_errno=True).fdatasync
_size: Final[Any] = ctypes.c_size_t()
_offset: Final[Any] = ctypes.c_int64()
"""Arguments of 64 bits. There is one pair, because only the loop's thread makes these calls."""


def pwrite_holding(fd: int, data: bytes, offset: int) -> int:
    _size.value = len(data)
    _offset.value = offset
    written = _pwrite(fd, data, _size, _offset)
    # A write that fails is tried again in the ordinary way, which knows the error.
    return written if written >= 0 else os.pwrite(fd, data, offset)


def fdatasync_holding(fd: int) -> None:
    while _fdatasync(fd) < 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
