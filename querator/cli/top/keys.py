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


class Keyboard:
    """Keys in the order they were pressed, however many come at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""

    def key(self, timeout_seconds: float) -> str | None:
        """The name of the next key, or None when there was none in time. A terminal that is gone is `q`."""
        if not self._pending:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, timeout_seconds))
            if not ready:
                return None
            self._pending = os.read(self._descriptor, 256)
            if not self._pending:
                return "q"
        name, self._pending = first_key(self._pending)
        return name


def first_key(data: bytes) -> tuple[str, bytes]:
    """The first key, and what is left."""
    for length in (3, 1):
        if data[:length] in ESCAPE_SEQUENCES and len(data[:length]) == length:
            return ESCAPE_SEQUENCES[data[:length]], data[length:]
    return data[:1].decode(errors="replace"), data[1:]
