"""A progress line on standard error: only on a terminal, a few times a second, and gone when it is done."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from querator.cli.streams import Streams
from querator.texts import visible

REDRAW_SECONDS: Final = 0.1
BAR_COLUMNS: Final = 24


class Progress:
    def __init__(self, streams: Streams, what: str, total: int | None = None) -> None:
        self._streams = streams
        self._what = visible(what)
        self._total = total
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._drawn = False

    def update(self, done: int, total: int | None = None) -> None:
        if not self._streams.progress:
            return
        now = time.monotonic()
        if now - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at = now
        self._drawn = True
        line = progress_line(self._what, done, self._total if total is None else total, now - self._started)
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


def progress_line(what: str, done: int, total: int | None, seconds: float) -> str:
    rate = f"{done / seconds:,.0f}/s" if seconds > 0 else ""
    if not total:
        return f"{what}  {done:,}  {rate}".rstrip()
    share = min(done / total, 1.0)
    filled = int(share * BAR_COLUMNS)
    bar = "█" * filled + "░" * (BAR_COLUMNS - filled)
    return f"{what}  {bar} {share:4.0%}  {done:,} of {total:,}  {rate}".rstrip()
