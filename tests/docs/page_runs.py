"""Runs a page: its shell and Python blocks run in order in one bash, and their output is compared with the page."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.daemons import clean_environment
from tests.docs.pages import INDENTED, Block

SHELL = ("sh", "bash", "console", INDENTED)
PAGE_SECONDS_MAX = 240


class Command(NamedTuple):
    block: Block
    text: str
    expected: list[str] | None
    """The lines of output on the page, or None if the page shows none."""

    @property
    def may_fail(self) -> bool:
        return any(line.startswith("error:") for line in self.expected or ())


def commands(block: Block) -> Iterator[Command]:
    if block.language == "python":
        yield Command(block, f"python - <<'END OF SNIPPET'\n{block.text}\nEND OF SNIPPET", None)
    elif block.language == "console":
        yield from _console(block)
    else:
        yield Command(block, block.text, None)


def _console(block: Block) -> Iterator[Command]:
    """Lines that start with `$ ` are typed, and so are lines with `> ` below them. The other lines are output."""
    typed: list[str] = []
    shown: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if typed:
                yield Command(block, "\n".join(typed), shown)
            typed, shown = [line[2:]], []
        elif (line.startswith("> ") and not shown) or (typed and not shown and typed[-1].endswith("\\")):
            typed.append(line.removeprefix("> "))
        else:
            shown.append(line)
    if typed:
        yield Command(block, "\n".join(typed), shown)


class Ran(NamedTuple):
    command: Command
    exit_code: int | None
    """None if the page ended before this command."""
    output: str


def run(wanted: list[Command], directory: Path, environment: Mapping[str, str]) -> list[Ran]:
    script = ["set -uo pipefail"]
    for number, command in enumerate(wanted):
        strict = command.block.language != "console"
        script += [
            f"printf '\\036%s\\n' {number}",
            "set -e" if strict else "set +e",
            command.text,
            f"printf '\\037%s %s\\n' {number} $?",
        ]
        if "daemon run" in command.text and command.text.rstrip().endswith("&"):
            script.append("until querator daemon status -q >/dev/null 2>&1; do kill -0 $! || exit 1; done")
    path = directory / "page.sh"
    path.write_text("\n".join(script) + "\n")
    output = directory / "page.out"
    with open(output, "wb") as file:
        process = subprocess.Popen(
            ["bash", str(path)],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(PAGE_SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):  # ends what the page left running in the background
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)
    said = output.read_text(errors="replace")
    return [_result(said, number, command) for number, command in enumerate(wanted)]


def _result(said: str, number: int, command: Command) -> Ran:
    begun = re.search(rf"\x1e{number}\n(.*?)(?:\x1f{number} (\d+)\n|\Z)", said, re.DOTALL)
    if begun is None:
        return Ran(command, None, "")
    return Ran(command, int(begun[2]) if begun[2] else None, begun[1])


def environment(home: Path, **more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return clean_environment(home) | {"PATH": path, "LC_ALL": "C.UTF-8", **more}


# What differs from run to run

_CHANGING = (
    (re.compile(r"PID \d+"), "PID"),
    (re.compile(r"\b[0-9A-Za-z]{27}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b(\d+h)?(\d+m)?\d+\.\d+(s|ms|µs)"), "DURATION"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "JOB"),
    (re.compile(r"\b\d{5,}\b"), "NUMBER"),
    (re.compile(r"\b\d+ ms\b"), "DURATION"),
)


def _still(line: str) -> str:
    for pattern, name in _CHANGING:
        line = pattern.sub(name, line)
    return " ".join(line.split())


def same(expected: list[str], output: str) -> bool:
    """Whether the output is the one on the page, except for ids and times. A line with `…` stands for any lines."""
    wanted = [_still(line) for line in expected if line.strip()]
    found = "\n".join(_still(line) for line in output.splitlines() if line.strip())
    pattern = "\n".join(r"(?:.*)" if line in ("…", "...") else re.escape(line) for line in wanted)
    return re.fullmatch(pattern, found, re.DOTALL) is not None


def free_address(http: str, text: str) -> str:
    """Replaces the usual address, which pages use, with the address of the test daemon."""
    return text.replace("localhost:2319", http)
