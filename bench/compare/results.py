"""The results of `make bench`, as stored in JSON, and the targets that they are compared with."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from bench.compare.cell import CellResult, Direction


class Cell(msgspec.Struct, kw_only=True):
    """One system in one shape (batch × clients)."""

    system: str
    peer: str
    batch: int
    clients: int
    result: CellResult | None = None
    failure: str = ""

    @property
    def shape(self) -> str:
        return f"{self.batch}×{self.clients}"


class Run(msgspec.Struct, kw_only=True):
    """A whole run. Ratios are always between rounds of the same run."""

    started_at: str
    machine: dict[str, str | int]
    filesystem: str
    fdatasync_us: tuple[int, int]
    load_average: float
    """The load of the machine before the run."""
    rounds: int
    round_seconds: float
    payload_bytes: int
    versions: dict[str, str]
    settings: dict[str, str]
    skipped: list[str]
    counts_fsyncs: bool
    cells: list[Cell]

    def find(self, system: str, shape: str) -> CellResult | None:
        for cell in self.cells:
            if cell.system == system and cell.shape == shape:
                return cell.result
        return None


class Figure(NamedTuple):
    """A target, and the value that this run reached."""

    shape: str
    what: str
    value: float
    bound: float
    spread: tuple[float, float] = (0.0, 0.0)
    """For a ratio: its lowest and highest value in all rounds."""
    is_ceiling: bool = False

    @property
    def is_reached(self) -> bool:
        return self.value <= self.bound if self.is_ceiling else self.value >= self.bound


REACH = {"1×1": (0.8, 1.2), "1×32": (0.8, 1.2), "100×4": (1.2, 0.0), "1000×2": (1.5, 0.0)}
"""By shape, the targets as shares of Redis: in, out, and out with complete and lease in one request (0: no target)."""

AHEAD_OF_ALL = ("1×32", "100×4", "1000×2")
MANY_PARTITIONS_SHARE = 0.8
CPU_US_MAX = 15.0
PRODUCE_P99_MS_MAX = 10.0


def figures(run: Run) -> list[Figure]:
    """Every target for which this run has cells. Unix sockets are compared with Unix sockets, and TCP with TCP."""
    return [*_against_redis(run), *_against_others(run), *_partitions(run), *_absolute(run)]


def _against_redis(run: Run) -> Iterator[Figure]:
    for shape, (share, share_in_one) in REACH.items():
        for transport in ("tcp", "unix"):
            ours, redis = run.find(f"querator {transport}, 1 partition", shape), run.find(f"redis {transport}", shape)
            if ours is None or redis is None:
                continue
            label = f"Redis, {transport}"
            yield _ratio(shape, f"in, of {label}", ours.inward, redis.inward, share)
            yield _ratio(shape, f"out, of {label}", ours.outward, redis.outward, share)
            if share_in_one and ours.in_one is not None:
                what = f"out with complete_ids, of {label}"
                yield _ratio(shape, what, ours.in_one, redis.outward, share_in_one)


def _against_others(run: Run) -> Iterator[Figure]:
    """The ratio to the best of the other peers. They use TCP, so this daemon does too.

    Redis with transactions is one of them. The targets above are for Redis without transactions, its usual form.
    """
    for shape in AHEAD_OF_ALL:
        ours = run.find("querator tcp, 1 partition", shape)
        others = [
            cell
            for cell in run.cells
            if cell.shape == shape
            and cell.result
            and cell.peer != "querator"
            and cell.system not in ("redis tcp", "redis unix")
        ]
        if ours is None or not others:
            continue
        best_in = max(others, key=lambda cell: cell.result.inward.rate if cell.result else 0.0)
        best_out = max(others, key=lambda cell: cell.result.outward.rate if cell.result else 0.0)
        assert best_in.result is not None and best_out.result is not None
        yield _ratio(shape, f"in, of {best_in.system}", ours.inward, best_in.result.inward, 1.0)
        yield _ratio(shape, f"out, of {best_out.system}", ours.outward, best_out.result.outward, 1.0)


def _partitions(run: Run) -> Iterator[Figure]:
    for shape in REACH:
        for transport in ("unix", "tcp"):
            one = run.find(f"querator {transport}, 1 partition", shape)
            many = run.find(f"querator {transport}, 8 partitions", shape)
            if one is None or many is None:
                continue
            label = f"8 partitions, of 1, {transport}"
            yield _ratio(shape, f"in, {label}", many.inward, one.inward, MANY_PARTITIONS_SHARE)
            yield _ratio(shape, f"out, {label}", many.outward, one.outward, MANY_PARTITIONS_SHARE)


def _absolute(run: Run) -> Iterator[Figure]:
    for transport in ("unix", "tcp"):
        system = f"querator {transport}, 1 partition"
        batches, single = run.find(system, "100×4"), run.find(system, "1×32")
        if batches is not None:
            cpu = cpu_us(batches.inward) + cpu_us(batches.outward)
            yield Figure("100×4", f"server CPU, µs per item, in and out, {transport}", cpu, CPU_US_MAX, is_ceiling=True)
        if single is not None and "produce" in single.inward.latencies_us:
            p99 = single.inward.latencies_us["produce"][1] / 1000
            yield Figure("1×32", f"p99 of a produce, ms, {transport}", p99, PRODUCE_P99_MS_MAX, is_ceiling=True)


def cpu_us(direction: Direction) -> float:
    """The CPU time of the server per item."""
    return direction.server_cpu_seconds / direction.items * 1e6 if direction.items else 0.0


def round_ratios(ours: Direction, theirs: Direction) -> list[float]:
    """The ratio of our rate to theirs in each round. Rounds take turns, so other load affects both rates alike.

    A round that consumes in two ways has produced twice, and counts with the mean of both.
    """
    rounds = min(len(ours.rates), len(theirs.rates))
    return [
        our_rate / their_rate
        for our_rate, their_rate in zip(_per_round(ours, rounds), _per_round(theirs, rounds), strict=True)
        if their_rate
    ]


def _per_round(direction: Direction, rounds: int) -> list[float]:
    size = len(direction.rates) // rounds if rounds else 1
    return [statistics.fmean(direction.rates[at * size : (at + 1) * size]) for at in range(rounds)]


def _ratio(shape: str, what: str, ours: Direction, theirs: Direction, bound: float) -> Figure:
    ratios = round_ratios(ours, theirs) or [0.0]
    return Figure(shape, what, statistics.median(ratios), bound, (min(ratios), max(ratios)))
