"""The data of `querator top`: samples of the metrics over time, and the rates between them.

Nothing here knows a terminal or a clock.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, Final, NamedTuple

from querator.cli.lookups.metrics import QueueView

HISTORY_SAMPLES: Final = 120
BARS: Final = "▁▂▃▄▅▆▇█"


class Order(enum.StrEnum):
    NAME = "name"
    READY = "ready"
    LEASED = "leased"
    SCHEDULED = "scheduled"
    IN = "rate_in"
    OUT = "rate_out"
    AGE = "oldest_seconds"


class Row(NamedTuple):
    """One queue in one sample. The first sample has no rates."""

    name: str
    state: str
    ready: int
    leased: int
    scheduled: int
    rate_in: float | None
    rate_out: float | None
    oldest_seconds: float
    waiting: int
    trouble: str
    history: tuple[int, ...]


class Sampler:
    def __init__(self) -> None:
        self._last: dict[str, QueueView] = {}
        self._last_at = 0.0
        self._history: dict[str, deque[int]] = {}
        self.views: dict[str, QueueView] = {}
        self.rows: list[Row] = []

    def take(self, views: dict[str, QueueView], at_seconds: float) -> None:
        """Add a sample. After a restart of the daemon, the counters begin at 0 and the rates are never negative."""
        elapsed = at_seconds - self._last_at
        for gone in self._history.keys() - views.keys():
            del self._history[gone]
        self.rows = [self._row(view, elapsed) for view in views.values()]
        self._last, self._last_at, self.views = views, at_seconds, views

    def _row(self, view: QueueView, elapsed: float) -> Row:
        before = self._last.get(view.name)
        history = self._history.setdefault(view.name, deque(maxlen=HISTORY_SAMPLES))
        history.append(view.ready + view.leased)
        return Row(
            name=view.name,
            state=view.state,
            ready=view.ready,
            leased=view.leased,
            scheduled=view.scheduled,
            rate_in=None if before is None else _rate(before.produced, view.produced, elapsed),
            rate_out=None if before is None else _rate(before.completed, view.completed, elapsed),
            oldest_seconds=view.oldest_seconds,
            waiting=sum(view.waiting.values()),
            trouble=view.trouble,
            history=tuple(history),
        )

    def sorted_rows(self, order: Order) -> list[Row]:
        if order is Order.NAME:
            return sorted(self.rows, key=lambda row: row.name)
        return sorted(self.rows, key=lambda row: (-(getattr(row, order.value) or 0), row.name))


def _rate(before: float, now: float, elapsed: float) -> float:
    return max(0.0, now - before) / elapsed if elapsed > 0 else 0.0


def sparkline(values: tuple[int, ...], width: int) -> str:
    """The last values as bars, relative to the largest of them."""
    shown = values[-width:]
    top = max(shown, default=0)
    if top == 0:
        return BARS[0] * len(shown)
    return "".join(BARS[min(len(BARS) - 1, value * len(BARS) // (top + 1))] for value in shown)


def row_record(row: Row) -> dict[str, Any]:
    """The record of a row, for JSON and tables."""
    return {
        "queue_name": row.name,
        "state": row.state,
        "ready": row.ready,
        "leased": row.leased,
        "scheduled": row.scheduled,
        "rate_in": None if row.rate_in is None else round(row.rate_in, 3),
        "rate_out": None if row.rate_out is None else round(row.rate_out, 3),
        "oldest_seconds": round(row.oldest_seconds, 3),
        "waiting": row.waiting,
        "reason": row.trouble,
    }
