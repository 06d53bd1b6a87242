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


class Reach(NamedTuple):
    """Targets of a shape, as shares of Redis. 0: no target."""

    inward: float
    outward: float
    in_one: float = 0.0
    """Out, with the complete on the next lease."""
    asyncio: float = 0.0
    """In and out, with asyncio clients for both."""


REACH = {
    "1×1": Reach(0.9, 0.9, in_one=1.5),
    "1×32": Reach(1.2, 1.0, in_one=1.7, asyncio=0.9),
    "100×4": Reach(1.8, 1.8, asyncio=1.3),
    "1000×2": Reach(2.0, 2.0, asyncio=1.5),
}
AHEAD_OF_ALL = ("1×32", "100×4", "1000×2")
MANY_PARTITIONS_SHARE = 0.85
PRODUCE_P99_MS_MAX = 10.0
PRODUCE_P99_OF_REDIS_MAX = 1.5


def figures(run: Run) -> list[Figure]:
    """Every target for which this run has cells. Unix sockets are compared with Unix sockets, and TCP with TCP."""
    return [*_against_redis(run), *_with_asyncio(run), *_against_others(run), *_partitions(run), *_costs(run)]


def _against_redis(run: Run) -> Iterator[Figure]:
    for shape, reach in REACH.items():
        for transport in ("tcp", "unix"):
            ours, redis = run.find(f"querator {transport}, 1 partition", shape), run.find(f"redis {transport}", shape)
            if ours is None or redis is None:
                continue
            label = f"Redis, {transport}"
            yield _ratio(shape, f"in, of {label}", ours.inward, redis.inward, reach.inward)
            yield _ratio(shape, f"out, of {label}", ours.outward, redis.outward, reach.outward)
            if reach.in_one and ours.in_one is not None:
                yield _ratio(shape, f"out with complete_ids, of {label}", ours.in_one, redis.outward, reach.in_one)


def _with_asyncio(run: Run) -> Iterator[Figure]:
    for shape, reach in REACH.items():
        ours = run.find("querator unix, asyncio client", shape)
        redis = run.find("redis unix, asyncio client", shape)
        if ours is not None and redis is not None and reach.asyncio:
            yield _ratio(shape, "in, of Redis, asyncio clients", ours.inward, redis.inward, reach.asyncio)
            yield _ratio(shape, "out, of Redis, asyncio clients", ours.outward, redis.outward, reach.asyncio)


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
            and cell.system not in ("redis tcp", "redis unix", "redis unix, asyncio client")
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


def _costs(run: Run) -> Iterator[Figure]:
    """The CPU time per item and the p99 of a produce, as shares of those of Redis."""
    for transport in ("unix", "tcp"):
        ours, redis = f"querator {transport}, 1 partition", f"redis {transport}"
        our_batches, their_batches = run.find(ours, "100×4"), run.find(redis, "100×4")
        if our_batches is not None and their_batches is not None:
            share = _life_cpu_us(our_batches) / _life_cpu_us(their_batches)
            yield Figure("100×4", f"server CPU per item, of Redis, {transport}", share, 1.0, is_ceiling=True)
        our_single, their_single = run.find(ours, "1×32"), run.find(redis, "1×32")
        if our_single is not None and their_single is not None:
            share = our_single.inward.latencies_us["produce"][1] / their_single.inward.latencies_us["produce"][1]
            what = f"p99 of a produce, of Redis, {transport}"
            yield Figure("1×32", what, share, PRODUCE_P99_OF_REDIS_MAX, is_ceiling=True)


def _life_cpu_us(result: CellResult) -> float:
    return cpu_us(result.inward) + cpu_us(result.outward)


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
