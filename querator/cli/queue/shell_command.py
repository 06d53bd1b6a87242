"""One run of a shell command: gets a payload, can be ended, and keeps the last lines of its standard error.

The command runs in its own session. So Ctrl-C reaches only the worker, and ending the command also ends all processes
that it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Final

GRACE_SECONDS: Final = 5.0
"""A command that is still running this long after SIGTERM gets SIGKILL."""
KILLED_WAIT_SECONDS: Final = 1.0
"""SIGKILL has ended every process by then. Only zombies that nobody reaps are still in the process group."""
POLL_SECONDS: Final = 0.02
TAIL_BYTES: Final = 1_800
"""Only the last bytes of standard error are kept, so that they fit into the reason of a retry."""
TAIL_WAIT_SECONDS: Final = 1.0
"""After this time we stop reading standard error: a background process may hold it open."""
STDERR: Final = 2


class ShellCommand:
    """Started on creation. `run` belongs to one thread; `end` and `end_if_overdue` may be called from any other."""

    def __init__(
        self, text: str, environment: Mapping[str, str], *, stdout: int | None, timeout: float | None = None
    ) -> None:
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", text],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=writing,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._timeout = timeout
        self._end_at = None if timeout is None else time.monotonic() + timeout
        self._kill_at: float | None = None
        self._timed_out = False
        self._has_ended = False
        self._tail = b""
        self._copier = threading.Thread(target=self._copy_stderr, args=(reading,), daemon=True)
        self._copier.start()

    def run(self, payload: bytes) -> int:
        """The exit status of the shell, negative if a signal ended it. A command that is ended returns only after every
        process that it started has ended too."""
        self._process.communicate(payload)
        while self._kill_at is not None and time.monotonic() < self._kill_at + KILLED_WAIT_SECONDS:
            if not self._signal(0):
                break
            time.sleep(POLL_SECONDS)
        self._has_ended = True
        self._copier.join(TAIL_WAIT_SECONDS)
        return self._process.returncode

    def end(self) -> None:
        """Send SIGTERM. `end_if_overdue` sends SIGKILL if the command is still running after the grace period."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + GRACE_SECONDS
            self._signal(signal.SIGTERM)

    def end_if_overdue(self, now: float) -> None:
        if self._end_at is not None and now >= self._end_at and self._kill_at is None:
            self._timed_out = True
            self.end()
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        """Signal the whole process group, which may outlive its shell. Returns whether the group exists."""
        if self._has_ended:
            return False
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _copy_stderr(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as source:
            while chunk := source.read(65_536):
                self._tail = (self._tail + chunk)[-TAIL_BYTES:]
                with contextlib.suppress(
                    OSError
                ):  # our own standard error may be closed, but the command must keep running
                    os.write(STDERR, chunk)

    @property
    def outcome(self) -> str:
        """How the command ended, such as `exit status 1`."""
        ended = status(self._process.returncode)
        return f"timed out after {self._timeout:g}s, {ended}" if self._timed_out else ended

    @property
    def last_lines(self) -> str:
        """The last lines that the command wrote to standard error. A single long line is cut."""
        tail = self._tail
        if len(tail) == TAIL_BYTES and b"\n" in tail[:-1]:
            tail = tail[tail.index(b"\n") + 1 :]
        return tail.decode(errors="replace").strip()


def status(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
