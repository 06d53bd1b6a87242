"""Reads single keys from a terminal, without waiting for Return."""

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
    """While this is open, the terminal delivers keys one by one and does not echo them."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Keyboard:
    """Returns keys in the order in which they were pressed, even if several arrive at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""

    def key(self, timeout_seconds: float) -> str | None:
        """The name of the next key, or None if there was none in time. A closed terminal counts as `q`."""
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
    """The name of the first key, and the remaining bytes."""
    for length in (3, 1):
        if data[:length] in ESCAPE_SEQUENCES and len(data[:length]) == length:
            return ESCAPE_SEQUENCES[data[:length]], data[length:]
    return data[:1].decode(errors="replace"), data[1:]
