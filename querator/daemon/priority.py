"""Lower priority for worker threads, so that the event loop goes first when there are fewer processors than threads."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

STEP: Final = 5
"""How much nicer a worker thread is. A larger step would starve threads that hold the interpreter's lock."""


LOWEST: Final = 19


def lower() -> None:
    """Lowers the priority of the calling thread and of threads it starts later. Does nothing except on Linux."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + STEP)


def lowest() -> None:
    """Gives the calling process the lowest priority: it runs when a processor is idle, and hardly otherwise.

    On Linux, a thread of another process that wakes up takes the processor at once. Nice alone lets it wait for the end
    of a time slice.
    """
    with contextlib.suppress(OSError):
        os.nice(LOWEST)
        if sys.platform == "linux":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def at_low_priority(make: Callable[[], T]) -> T:
    """Returns what `make` returns. Threads that `make` starts have a lower priority."""
    made: list[T] = []

    def run() -> None:
        lower()
        made.append(make())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return made[0] if made else make()
