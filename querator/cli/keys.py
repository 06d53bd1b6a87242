"""Single key presses from a terminal, without waiting for Return."""

from __future__ import annotations

import contextlib
import os
import select
import termios
import tty
from collections.abc import Iterator
from typing import Final

ESCAPE_SEQUENCES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "escape",
    b"\x08": "escape",
}


@contextlib.contextmanager
def unbuffered(descriptor: int) -> Iterator[None]:
    """Keys come one by one and are not echoed; the terminal is as before when this ends, however it ends."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_key(descriptor: int, timeout_seconds: float) -> str | None:
    """The name of the next key, or None when there was none in time. An ended terminal is `q`."""
    ready, _, _ = select.select([descriptor], [], [], max(0.0, timeout_seconds))
    if not ready:
        return None
    data = os.read(descriptor, 8)
    if not data:
        return "q"
    return ESCAPE_SEQUENCES.get(data, data[:1].decode(errors="replace"))
