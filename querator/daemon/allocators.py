"""Returns free memory to the system, which the allocators would keep otherwise."""

from __future__ import annotations

import ctypes
import os

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Only glibc has this function; other C libraries return memory by themselves."""


def use_one_allocator() -> None:
    """Makes Arrow use the system's allocator, because Arrow's own one keeps free memory. Call it before pyarrow is
    imported."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"


def give_back() -> None:
    """Returns free memory to the system. Blocks for some milliseconds, without the GIL."""
    if _malloc_trim is not None:
        _malloc_trim(0)
