"""`--with-backlog N`: what a produce takes (1×32) on an empty queue, while N items wait, and while they are applied."""

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
"""Produced just before a measurement, so that segments are closed and applied while it runs."""

_FILL_SECONDS_MAX = 600.0
_QUIET_SECONDS_MAX = 120.0
_APPLIES = re.compile(r"^querator_checkpoint_seconds_count\S* (\S+)$", re.MULTILINE)


class Moment(msgspec.Struct, kw_only=True):
    """One measurement: what the queue was like, and what a produce took."""

    what: str
    waiting: int
    rate: float
    p50_ms: float
    p99_ms: float
    highest_ms: float
    applies: int
    """How many times something was applied to a partition file meanwhile, by the daemon's own count."""
    others_share: float
    """What the rest of the machine used meanwhile, in shares of a core."""


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
    """Measure and print one moment; how many items wait afterwards."""
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
    """Produce that many, in batches of 1,000 or as few as it takes."""
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
    """Until the daemon has nothing more to do in the background: less than 5% of a core for a second and a half."""
    quiet, deadline = 0, time.monotonic() + _QUIET_SECONDS_MAX
    while quiet < 3 and time.monotonic() < deadline:
        before = measure.cpu_seconds([pid])
        time.sleep(0.5)
        quiet = quiet + 1 if measure.cpu_seconds([pid]) - before < 0.025 else 0
