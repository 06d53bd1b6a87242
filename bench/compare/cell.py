"""One cell: each round produces a number of items, and then leases and completes all of them.

So the queue stays short, and other load on the machine affects both directions alike.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from bench.compare import measure
from bench.compare.drive import Phase
from bench.compare.fsyncs import read_count
from bench.compare.parking import ParkedLeases
from bench.compare.phases import CellSpec, RunPhase, open_phases
from bench.compare.wire import Address

FIRST_ROUND_ITEMS = 1_000
WAKE_ROUNDS = 300


class Direction(msgspec.Struct, kw_only=True):
    """The result of one direction (in, out, out in one request) over all rounds."""

    items: int = 0
    seconds: float = 0.0
    server_cpu_seconds: float = 0.0
    client_cpu_seconds: float = 0.0
    others_cpu_seconds: float = 0.0
    """The CPU use of all other processes. A high value makes the result of the cell unreliable."""
    fsyncs: int = 0
    rates: list[float] = []
    """The rate of each round."""
    latencies_us: dict[str, tuple[int, int, int]] = {}
    """operation → p50, p99, highest"""

    @property
    def rate(self) -> float:
        return self.items / self.seconds if self.seconds else 0.0


class CellResult(msgspec.Struct, kw_only=True):
    inward: Direction
    outward: Direction
    in_one: Direction | None = None
    peak_memory_bytes: int = 0
    wake_us: tuple[int, int, int] = (0, 0, 0)
    """The time from a produce to the answer of the parked lease that gets the item: p50, p99 and highest."""


class CellRunner:
    """A warmed-up cell that runs one round at a time, so that the cells of several peers can take turns."""

    def __init__(self, spec: CellSpec) -> None:
        self._spec = spec
        self._parked = ParkedLeases(Address(path=spec.path, port=spec.port), spec.parked) if spec.parked else None
        self._phases = open_phases(spec)
        self._meter = _Meter(spec)
        in_one = Direction() if self._phases.consume_in_one else None
        self.result = CellResult(inward=Direction(), outward=Direction(), in_one=in_one)
        self._items = self._warm_up()
        self._meter.start()

    def round(self) -> None:
        self._round(self._phases.consume, self.result.outward)
        if self._phases.consume_in_one is not None and self.result.in_one is not None:
            self._round(self._phases.consume_in_one, self.result.in_one)

    def finish(self) -> CellResult:
        result = self.result
        result.peak_memory_bytes = self._meter.peak_memory_bytes()
        for direction in (result.inward, result.outward, result.in_one):
            if direction is not None:
                self._meter.summarise(direction)
        self._phases.close()
        if self._parked is not None:
            result.wake_us = self._parked.wake(WAKE_ROUNDS)
            self._parked.close()
        return result

    def _round(self, consume: RunPhase, outward: Direction) -> None:
        batch = self._spec.batch
        self._meter.measure(self._phases.produce, Phase(self._items, batch), self.result.inward)
        self._meter.measure(consume, Phase(self._items, batch), outward)

    def _warm_up(self) -> int:
        """The number of items for a round of the wanted duration, estimated from a small round."""
        spec = self._spec
        step = spec.batch * spec.clients
        items = max(step * 2, min(200, step * 200))
        seconds = self._phases.produce(Phase(items, spec.batch)) + self._phases.consume(Phase(items, spec.batch))
        if self._phases.consume_in_one is not None:
            self._phases.produce(Phase(items, spec.batch))
            self._phases.consume_in_one(Phase(items, spec.batch))
        return max(step, int(items / seconds * spec.round_seconds) // step * step)


def run_cell(spec: CellSpec) -> CellResult:
    """A cell that runs alone, until every direction has run for its number of seconds."""
    if spec.produce_only:
        return _produce_only(spec)
    runner = CellRunner(spec)
    outs = [direction for direction in (runner.result.outward, runner.result.in_one) if direction is not None]
    deadline = time.monotonic() + 3 * spec.seconds * len(outs)
    while time.monotonic() < deadline and min(out.seconds for out in outs) < spec.seconds:
        runner.round()
    return runner.finish()


def _produce_only(spec: CellSpec) -> CellResult:
    phases, meter = open_phases(spec), _Meter(spec)
    step = spec.batch * spec.clients
    inward = Direction()
    meter.start()
    items = max(step, FIRST_ROUND_ITEMS // step * step)
    while inward.items < spec.items if spec.items else inward.seconds < spec.seconds:
        if spec.items:
            items = max(step, min(items, spec.items - inward.items) // step * step)
        meter.measure(phases.produce, Phase(items, spec.batch), inward)
        items = max(step, int(inward.rate * spec.round_seconds) // step * step)
    meter.summarise(inward)
    phases.close()
    return CellResult(inward=inward, outward=Direction(), peak_memory_bytes=meter.peak_memory_bytes())


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
        direction.rates.append(phase.items / seconds)
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
