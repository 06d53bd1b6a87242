"""What an open console costs the daemon: `python -m bench.console [--rounds 12] [--queues 60]`.

A page that somebody looks at is loaded again every five seconds. This loads pages at that pace, by turns: a turn with
no page, one with the overview, one with a queue's page, one with ten overviews, and again from the beginning. So all of
them meet the same machine. The first part reads how much processor time the daemon uses while nothing else happens. The
second part times requests of a client that produces, leases and completes without a pause. A difference against no
page is taken within each round. It is reported as the mean of all rounds, with the interval that contains 95% of the
means of rounds drawn again at random.
"""

from __future__ import annotations

import argparse
import http.client
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from querator import Client
from querator.errors import QueratorError

LIVE_SECONDS = 5.0
LOADS = 100


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


PORT = free_port()


class Looking(NamedTuple):
    """Pages that are open at the same time."""

    name: str
    path: str
    pages: int


KINDS = (
    Looking("no page", "", 0),
    Looking("the overview", "/console/", 1),
    Looking("a queue", "/console/queue?name=q001", 1),
    Looking("ten overviews", "/console/", 10),
)


def cpu_seconds(pid: int) -> float:
    """The processor time of all threads, in the kernel's own resolution."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue  # a thread that has ended
    return total / 1e9


def difference(these: list[float], those: list[float], tell: str) -> str:
    """The mean difference of pairs, and its interval of 95%."""
    pairs = [one - other for one, other in zip(these, those, strict=True)]
    chance = random.Random(1)
    means = sorted(statistics.fmean(chance.choices(pairs, k=len(pairs))) for _ in range(4_000))
    mean, low, high = (f"{value:{tell}}" for value in (statistics.fmean(pairs), means[100], means[3_899]))
    return f"{mean} [{low} to {high}]"


def load(path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body[:200]
    connection.close()


def turn(looking: Looking) -> None:
    """Five seconds, in which each open page is loaded once."""
    begin = time.monotonic()
    for _ in range(looking.pages):
        load(looking.path)
    time.sleep(max(0.0, begin + LIVE_SECONDS - time.monotonic()))


def measure_loads(pid: int) -> None:
    """Processor time is counted while the daemon runs, so that a busy machine changes this figure least."""
    print(f"processor time of one load, and its share of {LIVE_SECONDS:g} seconds:")
    for looking in KINDS[1:3]:
        before = cpu_seconds(pid)
        for _ in range(LOADS):
            load(looking.path)
        each = (cpu_seconds(pid) - before) / LOADS
        print(f"  {looking.name:<14} {each * 1_000:.1f} ms, {each / LIVE_SECONDS:.2%} of a core", flush=True)


def measure_cpu(pid: int, rounds: int) -> None:
    print("processor time of a daemon that is otherwise idle:")
    shares: dict[Looking, list[float]] = {looking: [] for looking in KINDS}
    for _ in range(rounds):
        for looking in KINDS:
            before, begin = cpu_seconds(pid), time.monotonic()
            turn(looking)
            shares[looking].append((cpu_seconds(pid) - before) / (time.monotonic() - begin))
    for looking in KINDS:
        mean = statistics.fmean(shares[looking])
        against = difference(shares[looking], shares[KINDS[0]], "+.2%")
        print(f"  {looking.name:<14} {mean:.2%} of a core, {against} against no page", flush=True)


class Customer(threading.Thread):
    """A client that works without a pause. Notes how long each request took, under what is being looked at."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.client = Client(endpoint, timeout=30)
        self.noted: list[float] = []
        self.seconds: dict[Looking, list[list[float]]] = {looking: [] for looking in KINDS}
        """By what is being looked at, one list per turn."""
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            for call in ("produce", "lease", "complete"):
                noted, begin = self.noted, time.perf_counter()
                if call == "produce":
                    self.client.produce("busy", ["x" * 100])
                elif call == "lease":
                    ids = [item.id for item in self.client.lease("busy", 1).items]
                else:
                    self.client.complete("busy", ids)
                noted.append(time.perf_counter() - begin)

    def begin_turn(self, looking: Looking) -> None:
        self.noted = []
        self.seconds[looking].append(self.noted)


def measure_requests(endpoint: str, rounds: int) -> None:
    print("requests of a client that works without a pause:")
    customer = Customer(endpoint)
    customer.start()
    for _ in range(rounds):
        for looking in KINDS:
            customer.begin_turn(looking)
            turn(looking)
    customer.is_over = True
    customer.join(30)
    turns = {looking: [percentile(some, 0.99) for some in customer.seconds[looking]] for looking in KINDS}
    for looking in KINDS:
        found = [one for some in customer.seconds[looking] for one in some]
        p50, p99, p999 = (percentile(found, share) for share in (0.5, 0.99, 0.999))
        against = difference(turns[looking], turns[KINDS[0]], "+.3f")
        print(
            f"  {looking.name:<14} {len(found):>7,} requests: p50 {p50:.2f}, p99 {p99:.2f}, p99.9 {p999:.2f} ms;",
            end="",
        )
        print(f" p99 of a turn {against} ms against no page", flush=True)


def percentile(seconds: list[float], share: float) -> float:
    """In milliseconds."""
    return sorted(seconds)[int(len(seconds) * share)] * 1_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12, help="each round is four turns of five seconds, twice")
    parser.add_argument("--queues", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "querator.cli.main", "daemon", "run", "--data", f"{directory}/data"),
                *("--http", f"127.0.0.1:{PORT}"),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            endpoint = f"unix:{directory}/data/querator.sock"
            client = Client(endpoint, timeout=30)
            while True:
                try:
                    client.list_queues(timeout=0.5)
                    break
                except QueratorError:
                    assert process.poll() is None
            client.create_queue("busy")
            for number in range(options.queues):
                client.create_queue(f"q{number:03}")
                client.produce(f"q{number:03}", ["x"] * 100)
            for looking in KINDS[1:3]:
                load(looking.path)  # imports the pages
            time.sleep(LIVE_SECONDS)
            measure_loads(process.pid)
            measure_cpu(process.pid, options.rounds)
            measure_requests(endpoint, options.rounds)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


if __name__ == "__main__":
    main()
