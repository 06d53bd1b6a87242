"""Starts load processes and reads their results."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time

import msgspec

from bench.compare.cell import CellResult
from bench.compare.load import DONE, READY, ROUND, RUN
from bench.compare.phases import CellSpec

CELL_SECONDS_MAX = 60.0
_COMMAND = (sys.executable, "-m", "bench.compare.load")


class LoadFailed(Exception):
    """The load process ended too early. The message is its last output."""


def run_load(spec: CellSpec, seconds_max: float = CELL_SECONDS_MAX) -> CellResult:
    """Runs one cell alone."""
    words = msgspec.json.encode(spec) + b"\n" + RUN
    done = subprocess.run(_COMMAND, input=words, capture_output=True, timeout=seconds_max, check=False)
    if done.returncode:
        raise LoadFailed(done.stderr.decode(errors="replace").strip()[-2000:])
    return msgspec.json.decode(done.stdout, type=CellResult)


class Load:
    """A load process that waits for a command before each round."""

    def __init__(self, spec: CellSpec, environment: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- it lives as long as the load does
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
        )
        try:
            self._say(msgspec.json.encode(spec) + b"\n\n")
            self._expect(READY)
        except LoadFailed:
            self.close()
            raise

    def round(self) -> None:
        self._say(ROUND)
        self._expect(DONE)

    def finish(self) -> CellResult:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return msgspec.json.decode(self._answer(), type=CellResult)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _say(self, words: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(words)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LoadFailed(self._last_words()) from None

    def _expect(self, words: bytes) -> None:
        if self._answer() != words:
            raise LoadFailed(self._last_words())

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], CELL_SECONDS_MAX)
        if not ready:
            raise LoadFailed(f"a round took more than {CELL_SECONDS_MAX:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise LoadFailed(self._last_words())
        return line

    def _last_words(self) -> str:
        # Wait for the end of the process, so that its output is complete.
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-2000:]
