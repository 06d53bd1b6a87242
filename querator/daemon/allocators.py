"""Returns free memory to the system, which the allocators would keep otherwise."""

from __future__ import annotations

import ctypes

import pyarrow as pa

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Only glibc has this function; other C libraries return memory by themselves."""


def use_one_allocator() -> None:
    """Makes Arrow use the system's allocator, because Arrow's own one keeps free memory."""
    pa.set_memory_pool(pa.system_memory_pool())


def give_back() -> None:
    """Returns free memory to the system. Blocks for some milliseconds, without the GIL."""
    if _malloc_trim is not None:
        _malloc_trim(0)
