"""The entry point of `make bench`: starts each peer afresh for each shape, runs the load, writes the report."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.compare import measure, report
from bench.compare.backlog import measure_backlog
from bench.compare.fsyncs import FsyncCounter
from bench.compare.load import CellSpec
from bench.compare.querator_server import Querator
from bench.compare.results import Cell, Run, figures
from bench.compare.running import run_load
from bench.compare.servers import Beanstalkd, Postgres, RabbitMq, Redis, Server, Sqlite

SHAPES = ((1, 1), (1, 32), (100, 4), (1000, 2))
PAYLOAD_BYTES = 200


class System(NamedTuple):
    """A row of the tables: a peer, and how it is used."""

    name: str
    server: type[Server]
    transport: str
    partitions: int = 1
    dialect: str = "protobuf"
    transaction: bool = False


# Those that are held against each other run one after the other, so that they share the machine's weather.
SYSTEMS = (
    System("querator tcp, 1 partition", Querator, "tcp"),
    System("redis tcp", Redis, "tcp"),
    System("querator unix, 1 partition", Querator, "unix"),
    System("redis unix", Redis, "unix"),
    System("querator unix, 8 partitions", Querator, "unix", partitions=8),
    System("querator tcp, 8 partitions", Querator, "tcp", partitions=8),
    System("querator unix, 1 partition, JSON", Querator, "unix", dialect="json"),
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
        # Peers that run as another user have to get at their own directory below it.
        directory.chmod(0o711)
        filesystem = measure.filesystem_type(directory)
        if filesystem in ("tmpfs", "ramfs"):
            sys.exit(f"{directory} is on {filesystem}, where an fsync does nothing; name another place with --dir")
        run = _measure(options, directory, filesystem)
    for figure in figures(run):
        best = f"(best rounds {figure.best:.2f})" if figure.best else ""
        verdict = "" if figure.is_reached else "NOT REACHED"
        print(f"{figure.shape:7} {figure.what:50} {figure.value:8.2f} {best:20} {verdict}")
    if options.docs:
        report.write(run, Path(options.docs))
        print(f"written: {options.docs}/{report.PAGE}")


def _measure(options: argparse.Namespace, directory: Path, filesystem: str) -> Run:
    counter = FsyncCounter(directory)
    wanted = [system for system in SYSTEMS if not options.only or system.server.peer in options.only.split(",")]
    versions = {system.server.peer: system.server.version() for system in wanted}
    run = Run(
        started_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=measure.machine(),
        filesystem=filesystem,
        fdatasync_us=measure.fsync_us(directory),
        load_average=os.getloadavg()[0],
        seconds_per_direction=options.seconds,
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
        for system in wanted:
            if versions[system.server.peer] and not (system.transaction and batch == 1):
                cell = _measure_cell(system, batch, clients, options.seconds, directory, counter)
                run.cells.append(cell)
                _print(cell)
    if options.with_backlog:
        run.moments = measure_backlog(options.with_backlog, options.seconds * 2, directory, counter)
    return run


def _measure_cell(
    system: System, batch: int, clients: int, seconds: float, directory: Path, counter: FsyncCounter
) -> Cell:
    cell = Cell(system=system.name, peer=system.server.peer, batch=batch, clients=clients)
    # What the cell before left for the disk to do is not this one's to pay.
    os.sync()
    with tempfile.TemporaryDirectory(prefix="data-", dir=directory) as name:
        Path(name).chmod(0o711)
        try:
            with system.server(Path(name) / "d", counter.environment) as server:
                if isinstance(server, Querator):
                    server.create_queue("bench", system.partitions)
                address = server.addresses[system.transport]
                spec = CellSpec(
                    peer=system.server.peer,
                    batch=batch,
                    clients=clients,
                    path=address.path,
                    port=address.port,
                    server_pid=server.pid,
                    dialect=system.dialect,
                    transaction=system.transaction,
                    with_in_one=isinstance(server, Querator),
                    payload_bytes=PAYLOAD_BYTES,
                    seconds=seconds,
                    fsync_file=str(counter.file) if counter.works else "",
                )
                # Without a server the fsyncs are the load's own.
                cell.result = run_load(spec, {} if server.pid else counter.environment)
        except Exception as error:
            cell.failure = str(error).strip().rpartition("\n")[2][:200]
            print(error, file=sys.stderr)
    return cell


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
    parser.add_argument("--seconds", type=float, default=2.0, help="per direction of a cell")
    parser.add_argument(
        "--with-backlog", type=int, default=0, metavar="N", help="also time produces while N items wait"
    )
    parser.add_argument("--dir", default=None, help="where the peers keep their data; not on tmpfs")
    parser.add_argument("--docs", default="", help="write the report below this directory")
    return parser.parse_args()


if __name__ == "__main__":
    main()
