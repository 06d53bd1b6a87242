"""The process that sends the requests of one cell. It reads commands from standard input, one per line.

The first line is the cell as JSON. `run` runs the whole cell. `round` runs one round and prints `done`; it may be
repeated. After `run`, or at the end of the input, the process prints the result as JSON.
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
