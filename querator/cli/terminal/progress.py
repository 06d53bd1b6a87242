"""A progress line on standard error. It is drawn only on a terminal, and removed at the end."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Final, Self

from querator.cli.terminal.streams import Streams
from querator.texts import visible

REDRAW_SECONDS: Final = 0.1
BAR_COLUMNS: Final = 24
LEFT_AFTER_SECONDS: Final = 2
"""The time left is shown only after this time, because an earlier estimate is too rough."""


class Progress:
    def __init__(self, streams: Streams, what: str) -> None:
        self._streams = streams
        self._what = visible(what)
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._drawn = False

    def update(
        self, done: int, total: int | None = None, *, share: float | None = None, unit: str = "", note: str = ""
    ) -> None:
        """Redraw the line. `share` is the fraction that is done, if it is not `done` divided by `total`."""
        if self._is_time():
            seconds = time.monotonic() - self._started
            self._draw(progress_line(self._what, done, total, seconds, share=share, unit=unit, note=note))

    def say(self, text: str) -> None:
        """Show a text instead of numbers."""
        if self._is_time():
            self._draw(f"{self._what}  {text}")

    def restart(self) -> None:
        """Measure rates and the time left from now on."""
        self._started = time.monotonic()

    def _is_time(self) -> bool:
        return self._streams.progress and time.monotonic() - self._drawn_at >= REDRAW_SECONDS

    def _draw(self, line: str) -> None:
        self._drawn_at = time.monotonic()
        self._drawn = True
        self._streams.stderr.write("\r\x1b[K" + line[: self._streams.width - 1])
        self._streams.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            self._streams.stderr.write("\r\x1b[K")
            self._streams.stderr.flush()
            self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


def progress_line(
    what: str,
    done: int,
    total: int | None,
    seconds: float,
    *,
    share: float | None = None,
    unit: str = "",
    note: str = "",
) -> str:
    if share is None and total:
        share = done / total
    parts = [what]
    if share is not None:
        share = min(share, 1.0)
        filled = int(share * BAR_COLUMNS)
        parts.append("█" * filled + "░" * (BAR_COLUMNS - filled) + f" {share:4.0%}")
    parts.append(f"{done:,} of {total:,} {unit}".rstrip() if total else f"{done:,} {unit}".rstrip())
    if seconds > 0 and done >= seconds:
        parts.append(f"{done / seconds:,.0f}/s")
    if note:
        parts.append(note)
    if share and seconds >= LEFT_AFTER_SECONDS:
        parts.append(f"{time_text(seconds * (1 - share) / share)} left")
    return "  ".join(parts)


def time_text(seconds: float) -> str:
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m {whole % 60:02}s" if whole < 3_600 else f"{whole // 3_600}h {whole % 3_600 // 60:02}m"
