"""The instructions that the daemon executes for one request, counted by callgrind.

    python -m bench.instructions [--rounds 6] [SHAPE ...]        shapes as in bench.hotpath: 1x1 1x200x200

The number hardly depends on how busy the machine is. In a checkout with compiled modules both builds are counted. The
work is that of bench.hotpath, in a process under valgrind, which takes a minute or two for each build.

The result is the cheapest of some rounds, since now and then a round contains work of another kind.

callgrind writes what it has counted to a file, and starts again at zero, whenever the process calls getppid(). The
process does that before and after each step, so every other file holds the cost of one step.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from bench import hotpath
from querator import build

STEPS = hotpath.STEPS
Costs = dict[str, dict[str, float]]
"""Instructions per request, by shape and step."""


def valgrind() -> str | None:
    return shutil.which("valgrind")


def count(shapes: list[str], rounds: int, *, pure: bool) -> Costs:
    with tempfile.TemporaryDirectory(prefix="querator-callgrind-") as scratch:
        command = [
            valgrind() or "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--dump-before=getppid",
            "--quiet",
        ]
        command += [f"--callgrind-out-file={scratch}/out", sys.executable, "-m", "bench.instructions", "--inside"]
        done = subprocess.run(
            [*command, "--rounds", str(rounds), *shapes],
            env=os.environ | {"QUERATOR_PURE": str(int(pure))},
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        labels = [line.split("\t") for line in done.stdout.splitlines()]
        costs: dict[tuple[str, str], list[int]] = {}
        for number, (shape, step) in enumerate(labels):
            counted = _total(Path(scratch, f"out.{2 * number + 2}"))
            costs.setdefault((shape, step), []).append(counted)
    clients = {shape: hotpath.parse_shape(shape)[1] for shape in shapes}
    return {shape: {step: min(costs[shape, step]) / clients[shape] for step in STEPS} for shape in shapes}


def _total(path: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", path.read_text(), re.MULTILINE)
    assert found is not None, path
    return int(found[1])


class _Marks(hotpath.Meter):
    """Calls getppid() before and after each step, and prints which step it was."""

    counts = False
    """Whether callgrind counts already."""

    def __init__(self, shape: str) -> None:
        super().__init__(lambda: 0.0)
        self._shape = shape

    async def measure(self, name: str, step: Any) -> Any:
        self._start_counting()
        os.getppid()
        result = await step
        os.getppid()
        print(self._shape, name, sep="\t", flush=True)
        return result

    def _start_counting(self) -> None:
        """Counting makes everything fifty times slower, so it starts with the first step."""
        if not _Marks.counts:
            subprocess.run(["callgrind_control", "--instr=on", str(os.getpid())], stdout=subprocess.DEVNULL, check=True)
            _Marks.counts = True


def _run_inside(shapes: list[str], rounds: int) -> None:
    for shape in shapes:
        batch, clients, queues, partitions = hotpath.parse_shape(shape)
        settings = {"queues": queues, "partitions": partitions}
        with hotpath.in_memory() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(hotpath.measured(scratch, batch, clients, rounds, _Marks(shape), **settings))
    sys.stdout.flush()
    os._exit(0)  # clearing up would take minutes under valgrind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["1x1", "1x32"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        _run_inside(options.shapes, options.rounds)
    builds = [build.COMPILED, build.PLAIN] if build.name() == build.COMPILED else [build.PLAIN]
    for name in builds:
        costs = count(options.shapes, options.rounds, pure=name == build.PLAIN)
        print(f"instructions per request, {name} build, Python {platform.python_version()}")
        print(" " * 10, *(f"{step:>10}" for step in STEPS))
        for shape, of_steps in costs.items():
            print(f"{shape:10}", *(f"{of_steps[step]:10,.0f}" for step in STEPS), flush=True)


if __name__ == "__main__":
    main()
