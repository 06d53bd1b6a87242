"""Waiting for something that the daemon does: ask now and then, until it is so or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from querator.errors import TimedOut

T = TypeVar("T")

POLL_SECONDS_MIN: Final = 0.05
POLL_SECONDS_MAX: Final = 1.0


def poll(timeout_seconds: float | None, what: str, hint: str = "") -> Iterator[None]:
    """Yields once per look, at once and then at growing intervals; raises TimedOut when the time is up."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = POLL_SECONDS_MIN
    while True:
        yield
        if deadline is not None and time.monotonic() + pause > deadline:
            raise TimedOut(f"{what}: time ran out", hint=hint)
        time.sleep(pause)
        pause = min(pause * 1.5, POLL_SECONDS_MAX)


def until(look: Callable[[], T | None], timeout_seconds: float | None, what: str, hint: str = "") -> T:
    """The first thing that `look` finds."""
    for _ in poll(timeout_seconds, what, hint):
        found = look()
        if found is not None:
            return found
    raise AssertionError("poll never ends by itself")
