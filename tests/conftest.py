"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A job that a shell started in the background ignores Ctrl-C, and so would every command that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
