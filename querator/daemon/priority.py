"""Who goes first when there are fewer processors than threads: the loop, on which everybody waits."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

STEP: Final = 5
"""Not more: a thread that is kept from a processor may hold the interpreter's lock."""


def stand_back() -> None:
    """The calling thread, and those that it starts, let the others go first. Linux only; elsewhere nothing happens."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + STEP)


def standing_back(make: Callable[[], T]) -> T:
    """What `make` returns, which has started threads of its own: these let the others go first."""
    made: list[T] = []

    def run() -> None:
        stand_back()
        made.append(make())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return made[0] if made else make()
