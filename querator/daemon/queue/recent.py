"""How much a queue did in the last minute, from samples of its counters that the engine takes every few seconds."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from querator.limits import RATE_WINDOW_US


class ItemTotals(Protocol):
    produced: int
    completed: int


class Done(NamedTuple):
    produced: int
    completed: int


class Recent:
    """Keeps the samples of the window and one from before it."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Done]] = deque()

    def sample(self, now_us: int, counters: ItemTotals) -> None:
        samples = self._samples
        # The queue was loaded a few seconds before its first sample, so all of its work so far is recent.
        done = Done(counters.produced, counters.completed) if samples else Done(0, 0)
        if samples and now_us < samples[-1][0]:  # the clock was set back
            samples.clear()
        samples.append((now_us, done))
        while len(samples) > 1 and samples[1][0] <= now_us - RATE_WINDOW_US:
            samples.popleft()

    def last_minute(self, now_us: int, counters: ItemTotals) -> Done:
        """The work of the last minute, or since the queue was loaded if that is less."""
        if not self._samples:
            return Done(counters.produced, counters.completed)
        then_us, then = self._samples[0]
        # The first sample may lie a little before the window.
        share = RATE_WINDOW_US / max(RATE_WINDOW_US, now_us - then_us)
        produced, completed = counters.produced - then.produced, counters.completed - then.completed
        return Done(round(produced * share), round(completed * share))
