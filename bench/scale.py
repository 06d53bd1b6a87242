"""`make bench-scale`: how the daemon's speed depends on sizes. Each sweep varies one size and has a chart.

Each point is a cell of `make bench` on the Unix socket: rounds of produce, and then lease and complete. Points of one
sweep can be compared. The load is bounded in count and time.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.compare import measure
from bench.compare.backlog import fill, wait_until_quiet
from bench.compare.cell import CellResult, Direction
from bench.compare.chart import Line, line_chart
from bench.compare.fsyncs import FsyncCounter
from bench.compare.parking import QUEUE as PARKED_QUEUE
from bench.compare.parking import allow_open_files
from bench.compare.phases import CellSpec
from bench.compare.querator_server import Querator, call
from bench.compare.report import PAGE, update_page
from bench.compare.results import cpu_us
from bench.compare.running import LoadFailed, run_load

LENGTHS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PARTITIONS = (1, 2, 4, 8, 16, 32, 64)
QUEUES = (1, 2, 10, 50, 100, 200)
PARKED = (10, 100, 1_000, 10_000)
PAYLOAD_BYTES = (100, 1_000, 10_000, 100_000, 1_000_000)

PRODUCE_BYTES_MAX = 4_000_000
"""The payload bytes of one produce request, below the daemon's limit for a body."""

POINT_SECONDS_MAX = 120.0


class Point(msgspec.Struct, kw_only=True):
    """One measurement of a sweep. Rates are in items per second, and times in milliseconds unless stated otherwise."""

    size: int
    in_rate: float
    out_rate: float
    produce_p99: float
    lease_p99: float
    complete_p99: float
    cpu_us_in: float
    cpu_us_out: float
    fsyncs_in: float
    peak_mb: float
    start_seconds: float = 0.0
    """The time from the start of the process on this data to the first leased item."""
    start_after_kill_seconds: float = 0.0
    wake_p50: float = 0.0
    wake_p99: float = 0.0


class Sweep(msgspec.Struct, kw_only=True):
    name: str
    title: str
    axis: str
    points: list[Point]
    when: str = ""


class Bench:
    """The directory for the daemons, and the time limit of a point."""

    def __init__(self, directory: Path, seconds: float, length_max: int) -> None:
        self.directory = directory
        self.seconds = seconds
        self.length_max = length_max
        self.counter = FsyncCounter(directory)
        self._started = 0

    def daemon(self) -> Querator:
        self._started += 1
        return Querator(self.directory / f"daemon-{self._started}", self.counter.environment)

    def point(
        self,
        server: Querator,
        size: int,
        *,
        batch: int,
        clients: int,
        queues: tuple[str, ...] = ("bench",),
        payload_bytes: int = 200,
        parked: int = 0,
    ) -> Point | None:
        """Measures one point. If that fails, prints why and returns None."""
        address = server.addresses["unix"]
        spec = CellSpec(
            peer="querator",
            batch=batch,
            clients=clients,
            path=address.path,
            server_pid=server.pid,
            queues=queues,
            payload_bytes=payload_bytes,
            parked=parked,
            seconds=self.seconds,
            fsync_file=str(self.counter.file) if self.counter.works else "",
        )
        try:
            point = _point(size, run_load(spec, seconds_max=POINT_SECONDS_MAX))
        except (LoadFailed, subprocess.TimeoutExpired) as error:
            print(f"  {size:>10,}: failed: {str(error).strip().rpartition(chr(10))[2]}", flush=True)
            return None
        print(
            f"  {size:>10,}: in {point.in_rate:10,.0f}/s out {point.out_rate:10,.0f}/s, CPU {point.cpu_us_in:.1f} + "
            f"{point.cpu_us_out:.1f} µs, p99 produce {point.produce_p99:.1f} lease {point.lease_p99:.1f} ms, "
            f"{point.peak_mb:.0f} MB",
            flush=True,
        )
        return point


def sweep_length(bench: Bench) -> Sweep:
    """Each point adds items to the queue, and restarts the daemon on its data."""
    points = []
    with bench.daemon() as server:
        assert isinstance(server, Querator)
        server.create_queue("bench", 1)
        waiting = 0
        for length in LENGTHS:
            if length > bench.length_max:
                break
            waiting += fill(server, length - waiting)
            wait_until_quiet(server.pid)
            point = bench.point(server, length, batch=100, clients=4)
            if point is None:
                break
            wait_until_quiet(server.pid)
            point.start_seconds = _start_seconds(server, signal.SIGTERM)
            fill(server, min(length, 100_000))
            waiting += min(length, 100_000)
            point.start_after_kill_seconds = _start_seconds(server, signal.SIGKILL)
            print(f"  start {point.start_seconds:.2f} s, after kill -9 {point.start_after_kill_seconds:.2f} s")
            points.append(point)
    return Sweep(name="length", title="Items that wait", axis="items waiting (100×4)", points=points)


def sweep_partitions(bench: Bench) -> Sweep:
    def measured() -> Iterator[Point | None]:
        for partitions in PARTITIONS:
            with bench.daemon() as server:
                assert isinstance(server, Querator)
                server.create_queue("bench", partitions)
                yield bench.point(server, partitions, batch=100, clients=4)

    return Sweep(name="partitions", title="Partitions", axis="partitions (100×4)", points=_found(measured()))


def sweep_queues(bench: Bench) -> Sweep:
    """Always uses 200 connections, so that only the number of queues differs."""
    clients = max(QUEUES)

    def measured() -> Iterator[Point | None]:
        for queues in QUEUES:
            with bench.daemon() as server:
                assert isinstance(server, Querator)
                names = tuple(f"bench-{number}" for number in range(queues))
                for name in names:
                    server.create_queue(name, 1)
                yield bench.point(server, queues, batch=1, clients=clients, queues=names)

    axis = f"queues, all active (1×{clients})"
    return Sweep(name="queues", title="Queues", axis=axis, points=_found(measured()))


def sweep_parked(bench: Bench) -> Sweep:
    """Leases wait on one queue while another is in use. Then each of 300 single items wakes one of them."""
    # The daemon inherits the limit of open files.
    allow_open_files(max(PARKED))

    def measured() -> Iterator[Point | None]:
        for parked in PARKED:
            with bench.daemon() as server:
                assert isinstance(server, Querator)
                server.create_queue("bench", 1)
                server.create_queue(PARKED_QUEUE, 1)
                yield bench.point(server, parked, batch=1, clients=32, parked=parked)

    return Sweep(name="parked", title="Parked leases", axis="leases that wait (1×32)", points=_found(measured()))


def sweep_payload(bench: Bench) -> Sweep:
    def measured() -> Iterator[Point | None]:
        for payload_bytes in PAYLOAD_BYTES:
            batch = max(1, min(100, PRODUCE_BYTES_MAX // payload_bytes))
            with bench.daemon() as server:
                assert isinstance(server, Querator)
                server.create_queue("bench", 1)
                yield bench.point(server, payload_bytes, batch=batch, clients=4, payload_bytes=payload_bytes)

    axis = "bytes per item (4 clients, 100 items or 4 MB per request)"
    return Sweep(name="payload", title="Payload", axis=axis, points=_found(measured()))


def _found(points: Iterator[Point | None]) -> list[Point]:
    return [point for point in points if point is not None]


SWEEPS: dict[str, Callable[[Bench], Sweep]] = {
    "length": sweep_length,
    "partitions": sweep_partitions,
    "queues": sweep_queues,
    "parked": sweep_parked,
    "payload": sweep_payload,
}


def charts(sweep: Sweep) -> dict[str, str]:
    """The SVG of each file name."""
    points = sweep.points
    if sweep.name == "payload":
        lines = [
            Line("in", [(point.size, point.in_rate * point.size / 1e6) for point in points]),
            Line("out", [(point.size, point.out_rate * point.size / 1e6) for point in points]),
        ]
        return {"scale-payload.svg": line_chart(sweep.title, sweep.axis, "MB of payload per second", lines)}
    rates = [
        Line("in", [(point.size, point.in_rate) for point in points]),
        Line("out", [(point.size, point.out_rate) for point in points]),
    ]
    made = {f"scale-{sweep.name}.svg": line_chart(sweep.title, sweep.axis, "items per second", rates)}
    if sweep.name == "length":
        starts = [
            Line("after a stop", [(point.size, point.start_seconds) for point in points]),
            Line("after kill -9", [(point.size, point.start_after_kill_seconds) for point in points]),
        ]
        made["scale-start.svg"] = line_chart("Start-up", "items waiting", "seconds to the first lease", starts)
    if sweep.name == "parked":
        wakes = [
            Line("p50", [(point.size, point.wake_p50) for point in points]),
            Line("p99", [(point.size, point.wake_p99) for point in points]),
        ]
        made["scale-wake.svg"] = line_chart("Waking a parked lease", "leases that wait", "ms", wakes)
    return made


def markdown(sweeps: list[Sweep]) -> str:
    parts = ["## As things grow", "Unix socket, JSON, 200-byte payloads unless it says otherwise."]
    for sweep in sweeps:
        parts.append(f"### {sweep.title}\n\nRun of {sweep.when}.")
        parts.extend(f"![{sweep.title}](benchmarks/{name})" for name in charts(sweep))
        parts.append(_table(sweep))
    return "\n\n".join(parts)


def _table(sweep: Sweep) -> str:
    header = [sweep.axis, "in /s", "out /s", "p99 ms produce / lease / complete", "CPU µs/item in + out"]
    header += ["fsyncs/item in", "peak MB"]
    header += {"length": ["start s", "start after kill -9 s"], "parked": ["wake p50 / p99 ms"]}.get(sweep.name, [])
    lines = [header, ["---"] * len(header)]
    for point in sweep.points:
        line = [f"{point.size:,}", f"{point.in_rate:,.0f}", f"{point.out_rate:,.0f}"]
        line.append(f"{point.produce_p99:.1f} / {point.lease_p99:.1f} / {point.complete_p99:.1f}")
        line.append(f"{point.cpu_us_in:.1f} + {point.cpu_us_out:.1f}")
        line += [f"{point.fsyncs_in:.2g}", f"{point.peak_mb:.0f}"]
        if sweep.name == "length":
            line += [f"{point.start_seconds:.2f}", f"{point.start_after_kill_seconds:.2f}"]
        if sweep.name == "parked":
            line.append(f"{point.wake_p50:.2f} / {point.wake_p99:.2f}")
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _point(size: int, result: CellResult) -> Point:
    inward, outward = result.inward, result.outward
    return Point(
        size=size,
        in_rate=inward.rate,
        out_rate=outward.rate,
        produce_p99=_p99_ms(inward, "produce"),
        lease_p99=_p99_ms(outward, "lease"),
        complete_p99=_p99_ms(outward, "complete"),
        cpu_us_in=cpu_us(inward),
        cpu_us_out=cpu_us(outward),
        fsyncs_in=inward.fsyncs / inward.items,
        peak_mb=result.peak_memory_bytes / 1e6,
        wake_p50=result.wake_us[0] / 1000,
        wake_p99=result.wake_us[1] / 1000,
    )


def _p99_ms(direction: Direction, operation: str) -> float:
    return direction.latencies_us.get(operation, (0, 0, 0))[1] / 1000


def _start_seconds(server: Querator, how: signal.Signals) -> float:
    """Restarts the daemon on the same data and leases one item. Returns the seconds since the start of the process."""
    server.stop_process(how)
    began = time.monotonic()
    server.start()
    lease: dict[str, object] = {"queue_name": "bench", "batch_size": 1, "client_id": "start", "request_timeout": "1m"}
    call(server.addresses["unix"], "/v1/queue.lease", lease)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--only", default="", help=f"sweeps, separated by commas: {', '.join(SWEEPS)}")
    parser.add_argument("--seconds", type=float, default=2.0, help="per direction of a point")
    parser.add_argument("--length-max", type=int, default=LENGTHS[-1], help="the longest queue to measure")
    parser.add_argument("--dir", default=None, help="where the daemon keeps its data; not on tmpfs")
    parser.add_argument("--docs", default="", help="write the report below this directory")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(SWEEPS)
    sweeps = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as name:
        if measure.filesystem_type(Path(name)) in ("tmpfs", "ramfs"):
            sys.exit(f"{name} is in memory, where an fsync does nothing; name another place with --dir")
        bench = Bench(Path(name), options.seconds, options.length_max)
        for sweep in wanted:
            print(sweep, flush=True)
            sweeps.append(SWEEPS[sweep](bench))
            sweeps[-1].when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if options.docs:
        write(sweeps, Path(options.docs))


def write(sweeps: list[Sweep], docs: Path) -> None:
    folder = docs / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    # Sweeps that were not run this time keep their last results.
    known = folder / "scale.json"
    before = msgspec.json.decode(known.read_bytes(), type=list[Sweep]) if known.exists() else []
    latest = {sweep.name: sweep for sweep in [*before, *sweeps]}
    sweeps = [latest[name] for name in SWEEPS if name in latest]
    known.write_bytes(msgspec.json.format(msgspec.json.encode(sweeps)) + b"\n")
    for sweep in sweeps:
        for name, svg in charts(sweep).items():
            (folder / name).write_text(svg)
    update_page(docs / PAGE, "scale", markdown(sweeps))


if __name__ == "__main__":
    main()
