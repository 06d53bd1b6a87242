"""Polls the daemon until something has happened or the time is up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from querator.errors import TimedOut

POLL_SECONDS_MIN: Final = 0.05
POLL_SECONDS_MAX: Final = 1.0


def poll(timeout_seconds: float | None, what: str, hint: str = "") -> Iterator[None]:
    """Yield at once, and then again after growing pauses. Raises TimedOut when the time is up."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = POLL_SECONDS_MIN
    while True:
        yield
        if deadline is not None and time.monotonic() + pause > deadline:
            raise TimedOut(f"{what}: time ran out", hint=hint)
        time.sleep(pause)
        pause = min(pause * 1.5, POLL_SECONDS_MAX)
