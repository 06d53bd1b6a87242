"""`--with-backlog N`: the time of a produce (1×32) on an empty queue, with N waiting items, and during their apply."""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec

from bench.compare import measure
from bench.compare.cell import CellResult
from bench.compare.fsyncs import FsyncCounter
from bench.compare.phases import CellSpec
from bench.compare.querator_server import Querator, fetch_metrics
from bench.compare.running import run_load

APPLY_BURST_ITEMS = 500_000
"""The number of items produced just before a measurement, so that segments are closed and applied during it."""

_FILL_SECONDS_MAX = 600.0
_QUIET_SECONDS_MAX = 120.0
_APPLIES = re.compile(r"^querator_checkpoint_seconds_count\S* (\S+)$", re.MULTILINE)


class Moment(msgspec.Struct, kw_only=True):
    """One measurement: the state of the queue, and the time of a produce."""

    what: str
    waiting: int
    rate: float
    p50_ms: float
    p99_ms: float
    highest_ms: float
    applies: int
    """The number of applies to partition files during the measurement, as counted by the daemon."""
    others_share: float
    """The CPU use of all other processes during the measurement, in cores."""


def measure_backlog(items: int, seconds: float, directory: Path, counter: FsyncCounter) -> list[Moment]:
    moments: list[Moment] = []
    with Querator(directory / "backlog", counter.environment) as server:
        assert isinstance(server, Querator)
        server.create_queue("bench", 1)
        waiting = _note(moments, server, "empty queue", 0, seconds)
        waiting += fill(server, APPLY_BURST_ITEMS)
        waiting = _note(moments, server, "while segments are applied", waiting, seconds)
        waiting += fill(server, max(0, items - waiting))
        waiting = _note(moments, server, "many items wait, segments are applied", waiting, seconds)
        wait_until_quiet(server.pid)
        _note(moments, server, "many items wait", waiting, seconds)
    return moments


def _note(moments: list[Moment], server: Querator, what: str, waiting: int, seconds: float) -> int:
    """Measures and prints one row. Returns how many items wait afterwards."""
    before = count_applies(server)
    result = produce(server, batch=1, clients=32, seconds=seconds)
    p50, p99, highest = (value / 1000 for value in result.inward.latencies_us["produce"])
    moments.append(
        Moment(
            what=what,
            waiting=waiting,
            rate=result.inward.rate,
            p50_ms=p50,
            p99_ms=p99,
            highest_ms=highest,
            applies=count_applies(server) - before,
            others_share=result.inward.others_cpu_seconds / result.inward.seconds,
        )
    )
    print(f"{what}: {waiting:,} wait, {result.inward.rate:,.0f}/s, p50 {p50:.2f} p99 {p99:.2f} max {highest:.2f} ms")
    return waiting + result.inward.items


def fill(server: Querator, items: int, queue: str = "bench") -> int:
    """Produces this many items, in batches of up to 1,000."""
    done = 0
    for batch, clients in ((1000, 2), (100, 1), (1, 1)):
        share = (items - done) // (batch * clients) * (batch * clients)
        if share:
            result = produce(server, batch=batch, clients=clients, items=share, queue=queue)
            done += result.inward.items
    return done


def produce(
    server: Querator, *, batch: int, clients: int, seconds: float = 0.0, items: int = 0, queue: str = "bench"
) -> CellResult:
    address = server.addresses["unix"]
    spec = CellSpec(
        peer="querator",
        batch=batch,
        clients=clients,
        path=address.path,
        server_pid=server.pid,
        queues=(queue,),
        produce_only=True,
        items=items,
        seconds=seconds,
    )
    return run_load(spec, seconds_max=_FILL_SECONDS_MAX)


def count_applies(server: Querator) -> int:
    return int(sum(float(count) for count in _APPLIES.findall(fetch_metrics(server.addresses["unix"]))))


def wait_until_quiet(pid: int) -> None:
    """Waits until the daemon has no background work: until it uses less than 5% of a core for 1.5 seconds."""
    quiet, deadline = 0, time.monotonic() + _QUIET_SECONDS_MAX
    while quiet < 3 and time.monotonic() < deadline:
        before = measure.cpu_seconds([pid])
        time.sleep(0.5)
        quiet = quiet + 1 if measure.cpu_seconds([pid]) - before < 0.025 else 0
