"""What an archive costs, and how long a take-over and a restore take.

    python -m bench.archive
    python -m bench.archive --parts wait,takeover --items 100000 --rounds 2

shipping   a daemon without an archive, one that copies to a directory, and one that copies to an S3 server on loopback
           (moto), with the load of `make bench`. They take turns round by round; a ratio is the median of the ratios of
           single rounds.
wait       `wait = true`, with a store whose puts take 5 ms.
takeover   from the signal of `daemon promote` to the first lease, with items that wait and a standby that has them.
restore    `querator archive restore` of the same items.
catchup    a new standby reads a long log: from a directory, from a store whose gets take 20 ms, and from moto.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from bench.catchup import GET_MS, catching_up
from bench.compare.__main__ import SHAPES, System, measure_shape
from bench.compare.cell import Direction
from bench.compare.fsyncs import FsyncCounter
from bench.compare.querator_server import Querator
from bench.compare.results import Cell, round_ratios
from bench.compare.servers import free_port
from querator import Client
from querator.errors import QueratorError
from tests.daemons import Daemon, querator

PARTS = ("shipping", "wait", "takeover", "restore", "catchup")
KEYS = 'access_key_id = "bench"\nsecret_access_key = "bench"\nregion = "us-east-1"\n'
PAYLOAD_BYTES = 200
"""Of random bytes, which cannot be compressed."""
BATCH = 1_000
PUT_MS = 5.0
SETTLE_SECONDS = 1.5
"""After a round of a daemon, the rest of it is copied before the next daemon has its round."""
START_SECONDS_MAX = 60.0
PROMOTE_SECONDS_MAX = 120.0


class Line(NamedTuple):
    """A figure, its goal, and whether the figure must not exceed the goal."""

    what: str
    value: float
    unit: str
    goal: float
    is_ceiling: bool
    note: str = ""

    def __str__(self) -> str:
        is_reached = self.value <= self.goal if self.is_ceiling else self.value >= self.goal
        sign = "≤" if self.is_ceiling else "≥"
        goal = f"{sign} {self.goal:,.10g} {self.unit}"
        verdict = "" if is_reached else "NOT REACHED"
        return f"{self.what:58} {self.value:>12,.2f} {goal:22} {verdict} {self.note}".rstrip()


# -- daemons


class Unpaused(Querator):
    """A daemon that is not suspended between its rounds: it would ask the archive for its owner after that."""

    def pause(self) -> None:
        time.sleep(SETTLE_SECONDS)

    def resume(self) -> None:
        pass


class ToDirectory(Unpaused):
    def options(self) -> list[str]:
        return self.configured(f'url = "file://{self.directory / "archive"}"\n')

    def configured(self, settings: str) -> list[str]:
        config = self.directory / "querator.toml"
        config.write_text(f"[archive]\n{settings}")
        return ["--config", str(config)]


class ToS3(ToDirectory):
    endpoint: ClassVar[str] = ""
    more: ClassVar[str] = ""

    def options(self) -> list[str]:
        settings = f'url = "s3://bench/{self.directory.name}"\n{self.more}'
        return self.configured(f'{settings}[archive.options]\nendpoint = "{self.endpoint}"\n{KEYS}')


class Waiting(ToS3):
    more = "wait = true\n"


# -- object stores


def started(words: list[str], port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process
        except OSError:
            if time.monotonic() > end or process.poll() is not None:
                process.kill()
                raise
            time.sleep(0.05)


def moto(port: int) -> subprocess.Popen[bytes]:
    import boto3

    process = started(["moto.server", "-H", "127.0.0.1", "-p", str(port)], port)
    keys = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys).create_bucket(Bucket="bench")
    return process


# -- parts


def shipping(directory: Path, options: argparse.Namespace) -> Iterator[Line]:
    port = free_port()
    store = moto(port)
    if options.idle_store:
        os.sched_setscheduler(store.pid, os.SCHED_IDLE, os.sched_param(0))
    ToS3.endpoint = f"http://127.0.0.1:{port}"
    cpu_before = _cpu_seconds(store.pid)
    systems = [
        System("none", Unpaused, "unix"),
        System("directory", ToDirectory, "unix"),
        System("s3", ToS3, "unix"),
    ]
    try:
        for batch, clients in SHAPES:
            if options.shapes and f"{batch}x{clients}" not in options.shapes.split(","):
                continue
            cells = {
                cell.system: cell
                for cell in measure_shape(systems, batch, clients, options, directory, FsyncCounter(directory))
            }
            for kind in ("directory", "s3"):
                yield from _shipping_lines(cells[kind], cells["none"])
            used = _cpu_seconds(store.pid) - cpu_before
            print(f"{cells['s3'].shape}: the S3 server itself used {used:.1f} s of CPU on these cores", flush=True)
            cpu_before += used
    finally:
        _end(store)


def _shipping_lines(shipped: Cell, plain: Cell) -> Iterator[Line]:
    if shipped.result is None or plain.result is None:
        sys.exit(f"{shipped.shape}: {shipped.failure or plain.failure}")
    for way, ours, theirs in (
        ("in", shipped.result.inward, plain.result.inward),
        ("out", shipped.result.outward, plain.result.outward),
    ):
        what = f"{shipped.shape} {way}, copying to {shipped.system}, of none"
        ratios = sorted(round_ratios(ours, theirs))
        note = f"({ratios[0]:.2f} to {ratios[-1]:.2f} in single rounds)"
        yield Line(f"{what}: rate", statistics.median(ratios), "", 0.95, False, note)
        yield Line(f"{what}: p99", _p99(ours) / _p99(theirs), "", 1.2, True)


def _cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _p99(direction: Direction) -> float:
    """The worst p99 among the kinds of requests, in µs."""
    return max(quantiles[1] for quantiles in direction.latencies_us.values())


def wait(directory: Path, options: argparse.Namespace) -> Iterator[Line]:
    port = free_port()
    store = started(["bench.slow_store", "--port", str(port), "--put-ms", str(PUT_MS)], port)
    Waiting.endpoint = f"http://127.0.0.1:{port}"
    goals = {(1, 32): 4_000, (100, 4): 60_000}
    try:
        for (batch, clients), goal in goals.items():
            if options.shapes and f"{batch}x{clients}" not in options.shapes.split(","):
                continue
            (cell,) = measure_shape(
                [System("wait", Waiting, "unix")], batch, clients, options, directory, FsyncCounter(directory)
            )
            if cell.result is None:
                sys.exit(f"{cell.shape}: {cell.failure}")
            what = f"{cell.shape} in, wait = true, a put of {PUT_MS:g} ms"
            yield Line(what, cell.result.inward.rate, "items/s", goal, False)
    finally:
        _end(store)


def losing_a_machine(directory: Path, options: argparse.Namespace, parts: list[str]) -> Iterator[Line]:
    """Produces many items, and then promotes a standby and restores the archive."""
    config = directory / "querator.toml"
    config.write_text(f'[archive]\nurl = "file://{directory / "archive"}"\nheartbeat = "1s"\n')
    (directory / "owner").mkdir()
    (directory / "standby").mkdir()
    with Daemon(directory / "owner", "--config", str(config)) as owner:
        owner.client.create_queue("bench")
        for _ in range(0, options.items, BATCH):
            owner.client.produce("bench", [os.urandom(PAYLOAD_BYTES) for _ in range(BATCH)])
        if "takeover" in parts:
            with Daemon(directory / "standby", "--config", str(config), "--standby") as standby:
                _until_warm(standby.client, options.items)
                yield Line(
                    f"take-over with {options.items:,} items, promote to first lease", _take_over(standby), "s", 5, True
                )
                owner.process.wait(PROMOTE_SECONDS_MAX)
    if "restore" in parts:
        begun = time.monotonic()
        restored = str(directory / "restored")
        url = f"file://{directory / 'archive'}"
        done = querator(directory, "archive", "restore", "--archive", url, "--to", restored, "--timeout", "10m")
        if done.returncode:
            sys.exit(done.stderr)
        yield Line(f"restore of {options.items:,} items", time.monotonic() - begun, "s", 60, True)


def catchup(directory: Path, options: argparse.Namespace) -> Iterator[Line]:
    def slow(port: int) -> subprocess.Popen[bytes]:
        return started(["bench.slow_store", "--port", str(port), "--put-ms", "0", "--get-ms", str(GET_MS)], port)

    keys = {"access_key_id": "bench", "secret_access_key": "bench", "region": "us-east-1"}
    stores = {f"a store of {GET_MS:g} ms": slow, "moto": moto}
    for figure in catching_up(directory, options.objects, free_port, stores, keys):
        yield Line(*figure)


def _until_warm(client: Client, items: int) -> None:
    end = time.monotonic() + PROMOTE_SECONDS_MAX
    while True:
        total = sum(one.total for one in client.list_partitions())
        if total == items and "compared" not in client.health()["archive"][0]:
            return
        if time.monotonic() > end:
            sys.exit(f"the standby has {total:,} items: {client.health()['archive']}")
        time.sleep(0.2)


def _take_over(standby: Daemon) -> float:
    """The seconds from the signal to the first lease."""
    begun = time.monotonic()
    os.kill(standby.process.pid, signal.SIGUSR1)
    while True:
        try:
            if standby.client.lease("bench", 1, timeout=1).items:
                return time.monotonic() - begun
        except QueratorError:
            if time.monotonic() - begun > PROMOTE_SECONDS_MAX:
                raise
        time.sleep(0.005)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(START_SECONDS_MAX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts to measure, separated by commas")
    parser.add_argument("--shapes", default="", help="only these of shipping and wait, such as 1x1,100x4")
    parser.add_argument(
        "--idle-store",
        action="store_true",
        help="let the S3 server run only on idle processors: nearly as if it were elsewhere",
    )
    parser.add_argument("--rounds", type=int, default=8, help="per system and shape")
    parser.add_argument("--round-seconds", type=float, default=3.0, help="for producing and consuming")
    parser.add_argument("--items", type=int, default=1_000_000, help="that wait at a take-over and are restored")
    parser.add_argument("--objects", type=int, default=4_000, help="that a new standby reads, at least")
    parser.add_argument("--dir", default=None, help="where the data is kept; not on tmpfs")
    options = parser.parse_args()
    parts = options.parts.split(",")
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as name:
        directory = Path(name)
        for part, measure in (("shipping", shipping), ("wait", wait), ("catchup", catchup)):
            if part in parts:
                for line in measure(directory, options):
                    lines.append(line)
                    print(line, flush=True)
        if {"takeover", "restore"} & set(parts):
            for line in losing_a_machine(directory, options, parts):
                lines.append(line)
                print(line, flush=True)
    print(f"\n{sum('NOT REACHED' not in str(line) for line in lines)} of {len(lines)} goals reached")


if __name__ == "__main__":
    main()
