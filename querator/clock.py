"""The clock of the queues: microseconds since 1970, UTC. Deadlines and schedules use it, and tests set it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# Final, so that compiled code need not look them up in `time` with every call.
monotonic_ns: Final[Callable[[], int]] = time.monotonic_ns
perf_counter: Final[Callable[[], float]] = time.perf_counter
_time_ns: Final[Callable[[], int]] = time.time_ns


class Clock:
    def now_us(self) -> int:
        raise NotImplementedError


class SystemClock(Clock):
    def now_us(self) -> int:
        return _time_ns() // 1_000


class SetBackClock(Clock):
    """The system's clock, set back by an amount that grows when a daemon takes over from another one."""

    def __init__(self, behind_us: int = 0) -> None:
        self.behind_us = behind_us

    def now_us(self) -> int:
        return _time_ns() // 1_000 - self.behind_us


class ManualClock(Clock):
    """A clock that stands still until a test moves it. It starts at the present by default."""

    def __init__(self, now_us: int | None = None) -> None:
        self._now_us = _time_ns() // 1_000 if now_us is None else now_us

    def now_us(self) -> int:
        return self._now_us

    def set(self, now_us: int) -> None:
        self._now_us = now_us
