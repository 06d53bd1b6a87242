"""The process that makes the load: reads what to do as JSON on stdin, does it, and prints what it measured as JSON.

A cell is a number of rounds. A round produces a number of items and then leases and completes them all, so that the
queue stays short and both directions see the same weather on a machine that others use too.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import msgspec

from bench.compare import drive, measure
from bench.compare.drive import Phase
from bench.compare.fsyncs import read_count
from bench.compare.parking import ParkedLeases
from bench.compare.sqlite_threads import SqliteWorkers
from bench.compare.wire import Address, Connection
from bench.compare.wire_beanstalkd import BeanstalkdConnection
from bench.compare.wire_postgres import PostgresConnection
from bench.compare.wire_querator import QueratorConnection
from bench.compare.wire_rabbitmq import RabbitConnection
from bench.compare.wire_redis import RedisConnection


class CellSpec(msgspec.Struct, kw_only=True):
    """One cell: which peer, where, and how much of what."""

    peer: str
    batch: int
    clients: int
    path: str = ""
    port: int = 0
    server_pid: int = 0
    queues: tuple[str, ...] = ("bench",)
    """For Querator: connection i works on queue i modulo their number; items are shared out evenly."""
    dialect: str = "protobuf"
    transaction: bool = False
    """For Redis: a batch goes in between MULTI and EXEC."""
    with_in_one: bool = False
    """Also measure leases that carry `complete_ids`."""
    produce_only: bool = False
    items: int = 0
    """With `produce_only`: how many; 0 for as many as the seconds allow."""
    parked: int = 0
    """For Querator: leases that wait on the queue `parked` meanwhile."""
    payload_bytes: int = 200
    seconds: float = 2.0
    round_seconds: float = 0.4
    fsync_file: str = ""
    """Where the server's fsyncs are counted; empty if they are not."""


class Direction(msgspec.Struct, kw_only=True):
    """What one direction (in, out, out in one request) came to over all rounds."""

    items: int = 0
    seconds: float = 0.0
    server_cpu_seconds: float = 0.0
    client_cpu_seconds: float = 0.0
    others_cpu_seconds: float = 0.0
    """What everything else on the machine used meanwhile: a cell with much of it says little."""
    fsyncs: int = 0
    rates: list[int] = []
    latencies_us: dict[str, tuple[int, int, int]] = {}
    """operation → p50, p99, highest"""

    @property
    def rate(self) -> float:
        return self.items / self.seconds if self.seconds else 0.0

    @property
    def best_rate(self) -> float:
        """Of the best round: what others do on the machine can only make a round slower."""
        return max(self.rates, default=0)


class CellResult(msgspec.Struct, kw_only=True):
    inward: Direction
    outward: Direction
    in_one: Direction | None = None
    peak_memory_bytes: int = 0
    wake_us: tuple[int, int, int] = (0, 0, 0)
    """p50, p99 and highest from sending a produce to the reply of the parked lease that gets the item."""


FIRST_ROUND_ITEMS = 1_000
WAKE_ROUNDS = 300

RunPhase = Callable[[Phase], float]


def run_cell(spec: CellSpec) -> CellResult:
    parked = ParkedLeases(Address(path=spec.path, port=spec.port), spec.parked) if spec.parked else None
    produce, consume, consume_in_one, close = _open(spec)
    meter = _Meter(spec)
    if spec.produce_only:
        filled = _produce_only(spec, produce, meter)
        close()
        return filled
    step = spec.batch * spec.clients
    warm_up = max(step * 2, min(200, step * 200))
    rate = warm_up / produce(Phase(warm_up, spec.batch))
    consume(Phase(warm_up, spec.batch))
    items = max(step, int(rate * spec.round_seconds) // step * step)
    directions: list[tuple[RunPhase, RunPhase, Direction]] = []
    inward, outward = Direction(), Direction()
    directions.append((produce, consume, outward))
    if consume_in_one is not None:
        consume_in_one(_refilled(produce, step, spec.batch))
        in_one = Direction()
        directions.append((produce, consume_in_one, in_one))
    else:
        in_one = None
    meter.start()
    deadline = time.monotonic() + 4 * spec.seconds * len(directions)
    while time.monotonic() < deadline and min(out.seconds for _, _, out in directions) < spec.seconds:
        for produce_phase, consume_phase, out in directions:
            meter.measure(produce_phase, Phase(items, spec.batch), inward)
            meter.measure(consume_phase, Phase(items, spec.batch), out)
    peak = meter.peak_memory_bytes()
    for direction in (inward, outward, in_one):
        if direction is not None:
            meter.summarise(direction)
    close()
    result = CellResult(inward=inward, outward=outward, in_one=in_one, peak_memory_bytes=peak)
    if parked is not None:
        result.wake_us = parked.wake(WAKE_ROUNDS)
        parked.close()
    return result


def _produce_only(spec: CellSpec, produce: RunPhase, meter: _Meter) -> CellResult:
    step = spec.batch * spec.clients
    inward = Direction()
    meter.start()
    items = max(step, FIRST_ROUND_ITEMS // step * step)
    while inward.items < spec.items if spec.items else inward.seconds < spec.seconds:
        if spec.items:
            items = max(step, min(items, spec.items - inward.items) // step * step)
        meter.measure(produce, Phase(items, spec.batch), inward)
        items = max(step, int(inward.rate * spec.round_seconds) // step * step)
    meter.summarise(inward)
    return CellResult(inward=inward, outward=Direction(), peak_memory_bytes=meter.peak_memory_bytes())


def _refilled(produce: RunPhase, items: int, batch: int) -> Phase:
    produce(Phase(items, batch))
    return Phase(items, batch)


class _Meter:
    """Reads the server's CPU time and fsyncs before and after each phase."""

    def __init__(self, spec: CellSpec) -> None:
        self._pid = spec.server_pid or os.getpid()
        self._has_server = spec.server_pid != 0
        self._fsync_file = Path(spec.fsync_file) if spec.fsync_file else None
        self._samples: dict[int, dict[str, list[int]]] = {}

    def start(self) -> None:
        measure.forget_peak_memory(measure.process_tree(self._pid))

    def measure(self, run: RunPhase, phase: Phase, direction: Direction) -> None:
        fsyncs, server_cpu, client_cpu = self._fsyncs(), self._cpu_seconds(), time.process_time()
        all_cpu = measure.machine_cpu_seconds()
        seconds = run(phase)
        all_cpu = measure.machine_cpu_seconds() - all_cpu
        client_cpu = time.process_time() - client_cpu
        server_cpu = self._cpu_seconds() - server_cpu
        direction.client_cpu_seconds += client_cpu
        direction.server_cpu_seconds += server_cpu
        direction.others_cpu_seconds += max(0.0, all_cpu - client_cpu - (server_cpu if self._has_server else 0.0))
        direction.fsyncs += self._fsyncs() - fsyncs
        direction.items += phase.items
        direction.seconds += seconds
        direction.rates.append(round(phase.items / seconds))
        collected = self._samples.setdefault(id(direction), {})
        for operation, samples in phase.latencies_ns.items():
            collected.setdefault(operation, []).extend(samples)

    def summarise(self, direction: Direction) -> None:
        for operation, samples in self._samples.get(id(direction), {}).items():
            samples.sort()
            p50, p99 = measure.percentile(samples, 0.5), measure.percentile(samples, 0.99)
            direction.latencies_us[operation] = (p50 // 1000, p99 // 1000, samples[-1] // 1000 if samples else 0)

    def peak_memory_bytes(self) -> int:
        return measure.peak_memory_bytes(measure.process_tree(self._pid))

    def _cpu_seconds(self) -> float:
        return measure.cpu_seconds(measure.process_tree(self._pid))

    def _fsyncs(self) -> int:
        return read_count(self._fsync_file) if self._fsync_file else 0


def _open(spec: CellSpec) -> tuple[RunPhase, RunPhase, RunPhase | None, Callable[[], None]]:
    """The phases of this peer, on connections that are set up already."""
    if spec.peer == "sqlite":
        workers = SqliteWorkers(Path(spec.path), spec.batch, spec.clients, spec.payload_bytes)
        return workers.produce, workers.consume, None, workers.close
    connections = [_connect(spec, index) for index in range(spec.clients)]

    def shares(phase: Phase) -> Iterator[Phase]:
        """The phase that each connection takes part in: one per queue."""
        return cycle(phase.split(len(spec.queues))) if len(spec.queues) > 1 else cycle([phase])

    def produce(phase: Phase) -> float:
        pairs = zip(connections, shares(phase), strict=False)
        return drive.run([(each.sock, each.produce(share)) for each, share in pairs], phase)

    def consume(phase: Phase) -> float:
        pairs = zip(connections, shares(phase), strict=False)
        return drive.run([(each.sock, each.consume(share)) for each, share in pairs], phase)

    def consume_in_one(phase: Phase) -> float:
        for each in connections:
            if isinstance(each, QueratorConnection):
                each.in_one = True
        try:
            return consume(phase)
        finally:
            for each in connections:
                if isinstance(each, QueratorConnection):
                    each.in_one = False

    def close() -> None:
        for each in connections:
            each.close()

    return produce, consume, consume_in_one if spec.with_in_one else None, close


def _connect(spec: CellSpec, index: int) -> Connection:
    address = Address(path=spec.path, port=spec.port)
    if spec.peer == "querator":
        return QueratorConnection(
            address,
            spec.queues[index % len(spec.queues)],
            spec.batch,
            index=index,
            payload_bytes=spec.payload_bytes,
            dialect=spec.dialect,
        )
    if spec.peer == "redis":
        return RedisConnection(
            address, spec.batch, index=index, payload_bytes=spec.payload_bytes, transaction=spec.transaction
        )
    kinds: dict[str, type[BeanstalkdConnection | PostgresConnection | RabbitConnection]] = {
        "beanstalkd": BeanstalkdConnection,
        "postgres": PostgresConnection,
        "rabbitmq": RabbitConnection,
    }
    return kinds[spec.peer](address, spec.batch, index=index, payload_bytes=spec.payload_bytes)


def main() -> None:
    gc.disable()
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=CellSpec)
    sys.stdout.buffer.write(msgspec.json.encode(run_cell(spec)))


if __name__ == "__main__":
    main()
