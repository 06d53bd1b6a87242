"""Memory that was used and is free again goes back to the system, instead of staying with three allocators."""

from __future__ import annotations

import ctypes

import pyarrow as pa

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""What glibc has and others do not need."""


def use_one_allocator() -> None:
    """Arrow has one of its own, which keeps what it got."""
    pa.set_memory_pool(pa.system_memory_pool())


def give_back() -> None:
    """Blocking for some milliseconds, without the GIL."""
    if _malloc_trim is not None:
        _malloc_trim(0)
