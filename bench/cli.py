"""How fast commands start: `python bench/cli.py [--json FILE]`. Starts a daemon in a temporary directory.

The time of a command is the best of several runs. Commands take turns, so that a busy machine slows all of them alike.
Compare ratios to `python -c 'import typer'` of the same run, not times.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from querator import Client

RUNS = 15
LINES = 1_000_000
QUERATOR = [sys.executable, "-m", "querator.cli.main"]
BASE = "import typer"
TARGETS = {
    "querator --help": ("at most 2 × import typer", 2.0, None),
    "completion of a queue": ("at most 2 × import typer", 2.0, None),
    "completion of a word (bash)": ("at most 2 × import typer", 2.0, None),
    "queues list": ("below 350 ms", None, 0.350),
    "queue produce, one item": ("below 350 ms", None, 0.350),
}


class Took(NamedTuple):
    seconds: float
    cpu_seconds: float


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def best_times(commands: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> dict[str, Took]:
    best: dict[str, Took] = {}
    for _ in range(RUNS):
        for name, command in commands.items():
            cpu, started = cpu_seconds(), time.perf_counter()
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
            took = Took(time.perf_counter() - started, cpu_seconds() - cpu)
            best[name] = Took(*map(min, took, best.get(name, took)))
    return best


def lines_per_second(environment: Mapping[str, str], queue: str, *options: str) -> float:
    """Seconds of `seq 1000000 | querator queue produce q --lines`, including the start-up."""
    started = time.perf_counter()
    numbers = subprocess.Popen(["seq", str(LINES)], stdout=subprocess.PIPE)
    command = [*QUERATOR, "queue", "produce", queue, "--lines", "-q", *options]
    subprocess.run(command, env=environment, stdin=numbers.stdout, check=True)
    numbers.wait()
    return LINES / (time.perf_counter() - started)


def measure(directory: Path) -> tuple[dict[str, Took], dict[str, float]]:
    socket = directory / "querator.sock"
    log = open(directory.with_suffix(".log"), "wb")  # noqa: SIM115 - lives as long as the daemon
    daemon = subprocess.Popen([*QUERATOR, "daemon", "run", "--data", str(directory)], stdout=log, stderr=log)
    environment = os.environ | {"QUERATOR_SOCKET": str(socket), "HOME": str(directory.parent)}
    # The first run compiles the modules, as an installation does.
    environment["PYTHONPYCACHEPREFIX"] = str(directory.parent / "pycache")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        with Client(f"unix:{socket}") as client:
            for name in ("q", "mail", "other"):
                client.create_queue(name)
        completions = Path(__file__).parent.parent / "completions" / "querator.bash"
        word = (
            f"source {completions}; COMP_LINE='querator que'; COMP_POINT=12; _querator; [[ ${{#COMPREPLY[@]}} == 2 ]]"
        )
        commands = {
            BASE: [sys.executable, "-c", "import typer"],
            "querator --help": [*QUERATOR, "--help"],
            "completion of a queue": [*QUERATOR, "__complete", "queues", "ma", "", "querator", "queues", "show"],
            "completion of a word (bash)": ["bash", "--norc", "-c", word],
            "queues list": [*QUERATOR, "queues", "list"],
            "queue produce, one item": [*QUERATOR, "queue", "produce", "mail", "hello"],
        }
        times = best_times(commands, environment)
        rates = {
            "produce --lines": lines_per_second(environment, "q"),
            "produce --lines --request-id": lines_per_second(environment, "other", "--request-id", "bench"),
        }
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
        log.close()
    return times, rates


def report(times: Mapping[str, Took], rates: Mapping[str, float]) -> bool:
    reached = True
    print(f"{'':36}{'ms':>8}{'CPU ms':>8}{'× typer':>9}   wanted")
    for name, (seconds, cpu) in times.items():
        text, ratio_max, seconds_max = TARGETS.get(name, ("", None, None))
        ratio = seconds / times[BASE].seconds
        ok = (ratio_max is None or ratio <= ratio_max) and (seconds_max is None or seconds <= seconds_max)
        reached &= ok
        print(f"{name:36}{seconds * 1000:8.0f}{cpu * 1000:8.0f}{ratio:9.2f}   {text}{'' if ok else '  MISSED'}")
    print(f"\n{'':36}{'lines/s':>8}")
    for name, rate in rates.items():
        ok = rate >= 40_000
        reached &= ok
        print(f"{name:36}{rate:8,.0f}            40,000 or more{'' if ok else '  MISSED'}")
    return reached


def main() -> int:
    parser = argparse.ArgumentParser(description="How quick the command line is.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="querator-bench-") as directory:
        times, rates = measure(Path(directory) / "data")
    if options.json:
        figures = {"commands": {name: took._asdict() for name, took in times.items()}, "lines_per_second": rates}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if report(times, rates) else 1


if __name__ == "__main__":
    raise SystemExit(main())
