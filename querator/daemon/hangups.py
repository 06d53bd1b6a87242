"""Whether SIGHUP means that the daemon's terminal was closed.

The kernel sends SIGHUP to the foreground process group of a terminal that closes, and takes the controlling terminal
away before that. Operators and logrotate send SIGHUP too, to have the log file opened again.
"""

from __future__ import annotations

import os
import signal
from typing import Final

TERMINAL: Final = "/dev/tty"


def ends_with_terminal() -> bool:
    """Whether this process is in the foreground of a terminal and should end with it. False under `nohup`, which makes
    the process ignore SIGHUP. Call this before SIGHUP gets a handler.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return False
    try:
        terminal = os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def is_gone() -> bool:
    """Whether the process has lost its terminal."""
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return True
    return False
