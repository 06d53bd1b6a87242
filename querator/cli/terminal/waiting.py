"""Commands that wait for the daemon, and commands that repeat with --watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from querator.cli.terminal.render import Format
from querator.cli.terminal.session import Session, duration
from querator.errors import TimedOut

T = TypeVar("T")

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


def repeat(session: Session, watch: bool, interval: str, ask: Callable[[], T], show: Callable[[T], None]) -> None:
    """Ask the daemon and show the answer: once, or with --watch until interrupted."""
    pause = duration(interval, "--interval")
    if watch and session.output.form is Format.JSON:
        session.output.form = Format.NDJSON  # a JSON array would never be closed
    while True:
        answer = ask()
        if watch and session.streams.fancy and session.output.form is Format.TABLE:
            session.streams.stdout.write("\x1b[H\x1b[2J")
        show(answer)
        if not watch:
            return
        session.streams.stdout.flush()
        time.sleep(pause)
