"""The process that makes the load of one cell, told what to do on stdin, one line at a time.

The first line is the cell as JSON. `run` runs it by itself; `round` runs one round and answers `done`, as often as it
is asked. At the end of its input, or after `run`, it prints the result as JSON.
"""

from __future__ import annotations

import gc
import sys

import msgspec

from bench.compare.cell import CellRunner, run_cell
from bench.compare.phases import CellSpec

READY, ROUND, RUN, DONE = b"ready\n", b"round\n", b"run\n", b"done\n"


def main() -> None:
    gc.disable()
    commands, answers = sys.stdin.buffer, sys.stdout.buffer
    spec = msgspec.json.decode(commands.readline(), type=CellSpec)
    first = commands.readline()
    if first == RUN:
        answers.write(msgspec.json.encode(run_cell(spec)) + b"\n")
        return
    runner = CellRunner(spec)
    answers.write(READY)
    answers.flush()
    while commands.readline() == ROUND:
        runner.round()
        answers.write(DONE)
        answers.flush()
    answers.write(msgspec.json.encode(runner.finish()) + b"\n")


if __name__ == "__main__":
    main()
