"""What the daemon counts for its metrics.

The event loop's thread counts with plain integers, because it is on the hot path. `exposition` builds Prometheus' own
types from them for a scrape. Figures of queues are not counted here: a scrape asks the service for them.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from querator import limits
from querator.items import Room

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8; escaping=values"
OTHER_PATHS: Final = "(other)"
_SAMPLES_MAX: Final = limits.DURATION_SAMPLES_MAX
SECONDS_BOUNDS: Final[tuple[float, ...]] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


_BOUNDS: Final = 16


class PartitionStatistics(NamedTuple):
    number: int
    state: str
    trouble: str
    """A warning for operators, or empty."""
    ready: int
    leased: int
    scheduled: int


class QueueStatistics(NamedTuple):
    """One queue at the time of a scrape. The totals start at 0 when the daemon starts."""

    produced: int
    leased: int
    completed: int
    retried: int
    expired: int
    """Leases that expired."""
    dead_lettered: Mapping[str, int]
    """By reason: max_attempts, expired, client."""
    waiting: Mapping[str, int]
    """By kind: produce, lease, complete."""
    oldest_created_at: int | None
    """When the oldest of the items that are next to be leased was created (µs), or None if no item waits."""
    partitions: Sequence[PartitionStatistics]


class ArchiveLag(NamedTuple):
    """How far a copy is behind. On a standby: its files behind the owner. On an owner: the archive behind its disk."""

    is_standby: bool
    owner: str
    """On a standby: the daemon that owns the archive."""
    seconds: float
    objects: int
    """Log objects that the standby knows of and has not replayed yet."""
    is_damaged: bool = False
    """Whether the archive lacks what was written to it."""
    promotions: int = 0
    """How often a standby was asked to take over."""

    @property
    def seconds_text(self) -> str:
        return f"{self.seconds:.1f}"


class Durations:
    """Durations of one path's requests: a count, a sum, and the latest ones for the quantiles."""

    __slots__ = ("_latest", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        # An array, because a thousand float objects would be scattered over memory and keep its pages in use.
        self._latest = array("d", bytes(8 * _SAMPLES_MAX))

    def observe(self, seconds: float) -> None:
        self._latest[self.count % _SAMPLES_MAX] = seconds
        self.count += 1
        self.seconds += seconds

    def quantiles(self, *shares: float) -> list[float]:
        ordered = sorted(self._latest[: self.count]) or [float("nan")]
        return [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in shares]


class Histogram:
    """Counts per bucket. Only the event loop's thread observes, so it needs no lock."""

    __slots__ = ("_counts", "help", "name", "seconds")

    def __init__(self, name: str, help: str) -> None:
        self.name, self.help = name, help
        self.seconds = 0.0
        self._counts = [0] * (len(SECONDS_BOUNDS) + 1)

    def observe(self, seconds: float) -> None:
        at = 0
        while at < _BOUNDS and seconds > SECONDS_BOUNDS[at]:  # most passes and writes are in the first few buckets
            at += 1
        self._counts[at] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket that holds this quantile; the largest bound if the quantile is above all of
        them.
        """
        wanted, total = share * self.count, 0
        for bound, count in zip(SECONDS_BOUNDS, self._counts, strict=False):
            total += count
            if total >= wanted:
                return bound
        return SECONDS_BOUNDS[-1]

    def buckets(self) -> list[tuple[str, float]]:
        """The counts, cumulative as a scrape expects them."""
        total, found = 0, []
        for bound, count in zip((*SECONDS_BOUNDS, float("inf")), self._counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found


PASS_SECONDS: Final = Histogram("querator_pass_seconds", "Planning and settling one pass of a queue's loop.")
COMMIT_SECONDS: Final = Histogram("querator_commit_seconds", "Making the batches of one pass durable.")
CHECKPOINT_SECONDS: Final = Histogram("querator_checkpoint_seconds", "Applying the journal to partition files.")


class HttpMetrics:
    """Request durations by path, and the metrics about scrapes themselves."""

    def __init__(self) -> None:
        self._by_path: dict[str, Durations] = {}
        self.scrapes = {"200": 0, "500": 0, "503": 0}
        self.scrapes_in_flight = 0

    def durations(self, path: str) -> Durations:
        """The counters of a path. Beyond a maximum, all further paths share one set of counters."""
        found = self._by_path.get(path)
        if found is None:
            if len(self._by_path) >= limits.DURATION_PATHS_MAX:
                path = OTHER_PATHS
            found = self._by_path.setdefault(path, Durations())
        return found

    def paths(self) -> Iterator[tuple[str, Durations]]:
        yield from self._by_path.items()


class Metrics:
    """What a scrape of `/metrics` shows."""

    def __init__(
        self,
        statistics: Callable[[], Mapping[str, QueueStatistics]],
        now_us: Callable[[], int],
        rooms: Callable[[], Mapping[str, Room]] = dict,
        certificate_expires_at: Callable[[], float] | None = None,
        archive_lag: Callable[[], ArchiveLag | None] = lambda: None,
    ) -> None:
        self.http = HttpMetrics()
        self.statistics = statistics
        self.now_us = now_us
        self.rooms = rooms
        self.certificate_expires_at = certificate_expires_at
        self.archive_lag = archive_lag

    async def scrape(self, is_shown: Callable[[str], bool]) -> bytes:
        """Takes all figures at once. Formatting them, which is most of the work, runs in a thread."""
        # prometheus_client takes long to import, and many daemons are never scraped.
        from querator.daemon import exposition

        self.http.scrapes_in_flight += 1
        try:
            figures = exposition.collect(self, is_shown)
            text = await asyncio.to_thread(exposition.text_of, figures)
            self.http.scrapes["200"] += 1
            return text
        except BaseException:
            self.http.scrapes["500"] += 1
            raise
        finally:
            self.http.scrapes_in_flight -= 1
