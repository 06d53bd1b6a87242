"""The entry point of `make bench`: starts each peer anew for each shape, runs the load and writes the report."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.compare import measure, report
from bench.compare.backlog import measure_backlog
from bench.compare.fsyncs import FsyncCounter
from bench.compare.phases import CellSpec
from bench.compare.querator_server import Querator
from bench.compare.results import Cell, Run, figures
from bench.compare.running import Load, LoadFailed
from bench.compare.servers import Beanstalkd, Postgres, RabbitMq, Redis, Server, Sqlite
from bench.compare.wire import PeerError

SHAPES = ((1, 1), (1, 32), (100, 4), (1000, 2))
PAYLOAD_BYTES = 200
SHAPE_SECONDS_MAX = 90.0
"""After this time no new round of a shape begins, so that a run ends in time on a busy machine."""
BACKLOG_SECONDS = 4.0


class System(NamedTuple):
    """A row of the tables: a peer and its settings."""

    name: str
    server: type[Server]
    transport: str
    partitions: int = 1
    dialect: str = "json"
    transaction: bool = False
    is_asyncio: bool = False
    is_plain: bool = False
    """For Querator: run plain Python, even if there are compiled modules."""


# Systems that are compared run one after another, so that the machine is equally busy for both.
SYSTEMS = (
    System("querator tcp, 1 partition", Querator, "tcp"),
    System("redis tcp", Redis, "tcp"),
    System("querator unix, 1 partition", Querator, "unix"),
    System("redis unix", Redis, "unix"),
    System("querator unix, asyncio client", Querator, "unix", is_asyncio=True),
    System("redis unix, asyncio client", Redis, "unix", is_asyncio=True),
    System("querator unix, asyncio client, plain build", Querator, "unix", is_asyncio=True, is_plain=True),
    System("querator unix, 8 partitions", Querator, "unix", partitions=8),
    System("querator tcp, 8 partitions", Querator, "tcp", partitions=8),
    System("querator unix, 1 partition, protobuf", Querator, "unix", dialect="protobuf"),
    System("querator unix, 1 partition, plain build", Querator, "unix", is_plain=True),
    System("redis tcp, MULTI", Redis, "tcp", transaction=True),
    System("postgres", Postgres, "tcp"),
    System("rabbitmq", RabbitMq, "tcp"),
    System("beanstalkd", Beanstalkd, "tcp"),
    System("sqlite", Sqlite, "file"),
)


def main() -> None:
    options = _parse()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as name:
        directory = Path(name)
        # Peers that run as another user must reach their own directory below this one.
        directory.chmod(0o711)
        filesystem = measure.filesystem_type(directory)
        if filesystem in ("tmpfs", "ramfs"):
            sys.exit(f"{directory} is on {filesystem}, where an fsync does nothing; name another place with --dir")
        counter = FsyncCounter(directory)
        run = _measure(options, directory, filesystem, counter)
        moments = []
        if options.with_backlog:
            moments = measure_backlog(options.with_backlog, BACKLOG_SECONDS, directory, counter)
    for figure in figures(run):
        low, high = figure.spread
        spread = f"({low:.2f} to {high:.2f})" if high else ""
        verdict = "" if figure.is_reached else "NOT REACHED"
        print(f"{figure.shape:7} {figure.what:50} {figure.value:8.2f} {spread:16} {verdict}")
    if options.docs and run.cells:
        report.write(run, Path(options.docs))
    if options.docs and moments:
        report.write_backlog(moments, run.started_at, Path(options.docs))


def _measure(options: argparse.Namespace, directory: Path, filesystem: str, counter: FsyncCounter) -> Run:
    wanted = [system for system in SYSTEMS if not options.only or system.server.peer in options.only.split(",")]
    versions = {system.server.peer: system.server.version() for system in wanted}
    run = Run(
        started_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=measure.machine(),
        filesystem=filesystem,
        fdatasync_us=measure.fsync_us(directory),
        load_average=os.getloadavg()[0],
        rounds=options.rounds,
        round_seconds=options.round_seconds,
        payload_bytes=PAYLOAD_BYTES,
        versions={peer: version for peer, version in versions.items() if version},
        settings={system.server.peer: system.server.settings for system in wanted},
        skipped=[peer for peer, version in versions.items() if not version],
        counts_fsyncs=counter.works,
        cells=[],
    )
    for skipped in run.skipped:
        print(f"{skipped}: not installed, skipped")
    for batch, clients in SHAPES:
        if options.shapes and f"{batch}x{clients}" not in options.shapes.split(","):
            continue
        systems = [each for each in wanted if versions[each.server.peer] and not (each.transaction and batch == 1)]
        for cell in measure_shape(systems, batch, clients, options, directory, counter):
            run.cells.append(cell)
            _print(cell)
    return run


class Contender:
    """A system while a shape is measured: its load and its server, which is paused outside its own rounds."""

    def __init__(self, system: System, cell: Cell) -> None:
        self.system = system
        self.cell = cell
        self.server: Server | None = None
        self.load: Load | None = None

    def start(self, directory: Path, counter: FsyncCounter, round_seconds: float) -> None:
        system = self.system
        environment = counter.environment | ({"QUERATOR_PURE": "1"} if system.is_plain else {})
        self.server = system.server(directory, environment)
        self.server.__enter__()
        if isinstance(self.server, Querator):
            self.server.create_queue("bench", system.partitions)
        address = self.server.addresses[system.transport]
        spec = CellSpec(
            peer=system.server.peer,
            batch=self.cell.batch,
            clients=self.cell.clients,
            path=address.path,
            port=address.port,
            server_pid=self.server.pid,
            dialect=system.dialect,
            transaction=system.transaction,
            is_asyncio=system.is_asyncio,
            with_in_one=isinstance(self.server, Querator) and not system.is_asyncio,
            payload_bytes=PAYLOAD_BYTES,
            round_seconds=round_seconds,
            fsync_file=str(counter.file) if counter.works else "",
        )
        # Without a server, the load process itself calls fsync.
        self.load = Load(spec, {} if self.server.pid else counter.environment)
        self.server.pause()

    def round(self) -> None:
        if self.server is not None and self.load is not None:
            self.server.resume()
            self.load.round()
            self.server.pause()

    def finish(self) -> None:
        if self.server is not None and self.load is not None:
            self.server.resume()
            self.cell.result = self.load.finish()

    def close(self) -> None:
        if self.load is not None:
            self.load.close()
        if self.server is not None:
            self.server.stop()
        self.load = self.server = None

    def attempt(self, step: Callable[[], None]) -> None:
        """Drops a system that fails from this shape and reports the reason. The others continue."""
        try:
            step()
        except (LoadFailed, PeerError, OSError, subprocess.SubprocessError) as error:
            self.cell.failure = str(error).strip().rpartition("\n")[2][:200]
            print(f"{self.cell.shape} {self.system.name}: {error}", file=sys.stderr)
            self.close()


def measure_shape(
    systems: list[System], batch: int, clients: int, options: argparse.Namespace, directory: Path, counter: FsyncCounter
) -> list[Cell]:
    """Measures all systems in one shape. They take turns round by round, so that other load hits all of them alike."""
    contenders = [
        Contender(system, Cell(system=system.name, peer=system.server.peer, batch=batch, clients=clients))
        for system in systems
    ]
    deadline = time.monotonic() + SHAPE_SECONDS_MAX
    try:
        for number, contender in enumerate(contenders):
            home = directory / f"{batch}x{clients}-{number}"
            contender.attempt(lambda: contender.start(home, counter, options.round_seconds))  # noqa: B023
        for _ in range(options.rounds):
            # Flush the disk first, so that no round pays for the writes of an earlier one.
            os.sync()
            for contender in contenders:
                contender.attempt(contender.round)
            if time.monotonic() > deadline:
                break
        for contender in contenders:
            contender.attempt(contender.finish)
    finally:
        for contender in contenders:
            contender.close()
    return [contender.cell for contender in contenders]


def _print(cell: Cell) -> None:
    if cell.result is None:
        print(f"{cell.shape:7} {cell.system:34} failed: {cell.failure}")
        return
    inward, outward, one = cell.result.inward, cell.result.outward, cell.result.in_one
    in_one = f" in one {one.rate:9,.0f}" if one else ""
    now = time.strftime("%H:%M:%S")
    print(f"{now} {cell.shape:7} {cell.system:34} in {inward.rate:9,.0f} out {outward.rate:9,.0f}{in_one}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--only", default="", help="peers, separated by commas")
    parser.add_argument("--shapes", default="", help="for example 1x32,100x4; none for no comparison")
    parser.add_argument("--rounds", type=int, default=4, help="per system and shape")
    parser.add_argument("--round-seconds", type=float, default=0.8, help="for producing and consuming")
    parser.add_argument(
        "--with-backlog", type=int, default=0, metavar="N", help="also time produces while N items wait"
    )
    parser.add_argument("--dir", default=None, help="where the peers keep their data; not on tmpfs")
    parser.add_argument("--docs", default="", help="write the report below this directory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
