"""How fast a daemon starts on empty data, and how much memory it holds while it is idle: `python -m bench.start`.

The time is that from starting the process to its first answer. Figures to reach: 0.4 s and 120 MB.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.compare import measure
from bench.compare.querator_server import call
from bench.compare.servers import python_program
from bench.compare.wire import Address
from querator import build

IDLE_SECONDS = 8.0
"""After the start, before the memory is read. The first rounds of upkeep are over by then."""
ANSWER_SECONDS_MAX = 30.0


class Started(NamedTuple):
    seconds: float
    cpu_seconds: float
    idle_mb: float


def start_once(directory: Path, idle_seconds: float) -> Started:
    socket = directory / "d.sock"
    command = [python_program("querator"), "daemon", "run", "--data", str(directory / "data"), "--socket", str(socket)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for_an_answer(process, Address(path=str(socket)))
        seconds, cpu_seconds = time.perf_counter() - began, measure.cpu_seconds([process.pid])
        time.sleep(idle_seconds)
        return Started(seconds, cpu_seconds, measure.resident_memory_bytes([process.pid]) / 1e6)
    finally:
        process.terminate()
        process.wait()


def _wait_for_an_answer(process: subprocess.Popen[bytes], address: Address) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        try:
            call(address, "/v1/queues.list", {})
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
        time.sleep(0.002)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--idle-seconds", type=float, default=IDLE_SECONDS, help="before the memory of the last start")
    options = parser.parse_args()
    started: list[Started] = []
    for number in range(options.starts):
        is_last = number == options.starts - 1
        with tempfile.TemporaryDirectory(prefix="querator-start-") as scratch:
            started.append(start_once(Path(scratch), options.idle_seconds if is_last else 0.0))
    seconds = [one.seconds for one in started]
    cpu_seconds = statistics.median([one.cpu_seconds for one in started])
    print(f"{build.name()}, {options.starts} starts on empty data")
    print(f"first answer   {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}); 0.4 wanted")
    print(f"processor      {cpu_seconds:.2f} s")
    print(f"idle memory    {started[-1].idle_mb:.0f} MB after {options.idle_seconds:g} s; 120 wanted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
