"""The three standard streams, and which of them are terminals.

Only this module calls `isatty`. Colour, boxes, prompts and progress depend on its answer, and tests can change the
answer with `pretend`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, TextIO

from querator.texts import visible


@dataclass(frozen=True)
class Terminals:
    """Which streams are terminals, and how wide they are."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    columns: int = 80


_pretended: Terminals | None = None


@contextlib.contextmanager
def pretend(terminals: Terminals) -> Iterator[None]:
    """For tests: replace the answer about the streams while this is open."""
    global _pretended
    before, _pretended = _pretended, terminals
    try:
        yield
    finally:
        _pretended = before


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def terminals() -> Terminals:
    if _pretended is not None:
        return _pretended
    found = Terminals(_is_terminal(sys.stdin), _is_terminal(sys.stdout), _is_terminal(sys.stderr))
    if found.stdout or found.stderr:
        found = replace(found, columns=max(shutil.get_terminal_size().columns, 20))
    return found


class Streams:
    """The streams that a command reads and writes."""

    def __init__(self) -> None:
        self.terminals = terminals()

    @property
    def stdout(self) -> TextIO:
        return sys.stdout

    @property
    def stderr(self) -> TextIO:
        return sys.stderr

    @property
    def stdin_bytes(self) -> BinaryIO:
        return sys.stdin.buffer

    @property
    def stdout_bytes(self) -> BinaryIO:
        sys.stdout.flush()
        return sys.stdout.buffer

    @property
    def width(self) -> int:
        return self.terminals.columns

    @property
    def fancy(self) -> bool:
        """Whether a person reads the output, so that boxes and relative times are useful."""
        return self.terminals.stdout

    @property
    def colour(self) -> bool:
        return self.terminals.stdout and _colour_allowed()

    @property
    def error_colour(self) -> bool:
        return self.terminals.stderr and _colour_allowed()

    @property
    def progress(self) -> bool:
        return self.terminals.stderr and not os.environ.get("QUERATOR_NO_PROGRESS")

    @property
    def can_ask(self) -> bool:
        return self.terminals.stdin and self.terminals.stderr

    def note(self, text: str, *, label: str = "") -> None:
        """Print a remark to standard error. The label may have colour.

        Further lines are indented, so that text from a user cannot look like a remark of the command.
        """
        shown = "\n  ".join(visible(line) for line in text.split("\n"))
        self.stderr.write(f"{label}{shown}\n")
        self.stderr.flush()


def _colour_allowed() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def abandon_stdout() -> None:
    """Redirect standard output to /dev/null after a broken pipe, so that flushing it at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
