"""The daemon's metrics: what it counts for them, and how a scrape of `/metrics` reads them.

The event loop's thread counts with plain integers, because it is on the hot path. A scrape builds Prometheus' own types
from them. Figures of queues are not counted here: a scrape asks the service for them.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from querator import limits
from querator.items import Room, State
from querator.texts import escaped, visible

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8; escaping=values"
OLDEST_HELP: Final = (
    f"Age of the oldest among the {limits.OLDEST_AMONG_ITEMS_MAX:,} items of each partition that are next to be leased."
    " Leased and scheduled items do not count."
)
QUANTILES: Final = (0.5, 0.99)
OTHER_PATHS: Final = "(other)"
SECONDS_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


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


class Durations:
    """Durations of one path's requests: a count, a sum, and the latest ones for the quantiles."""

    __slots__ = ("_latest", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        # An array, because a thousand float objects would be scattered over memory and keep its pages in use.
        self._latest = array("d", bytes(8 * limits.DURATION_SAMPLES_MAX))

    def observe(self, seconds: float) -> None:
        self._latest[self.count % limits.DURATION_SAMPLES_MAX] = seconds
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
        self._counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    def quantile(self, share: float) -> float:
        """The bound below which this share of all observations lies; the largest bound if it lies beyond."""
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

    def collect(self) -> Iterator[Metric]:
        summary = SummaryMetricFamily(
            "http_handler_duration", "The timings of http requests handled by the service", labels=["path"]
        )
        for path, durations in self._by_path.items():
            for share, seconds in zip(QUANTILES, durations.quantiles(*QUANTILES), strict=True):
                summary.add_sample("http_handler_duration", {"path": path, "quantile": str(share)}, seconds)
            summary.add_metric([path], durations.count, durations.seconds)
        yield summary
        total = CounterMetricFamily(
            "promhttp_metric_handler_requests_total", "Total number of scrapes by HTTP status code.", labels=["code"]
        )
        for code, count in self.scrapes.items():
            total.add_metric([code], count)
        yield total
        yield GaugeMetricFamily(
            "promhttp_metric_handler_requests_in_flight",
            "Current number of scrapes being served.",
            value=self.scrapes_in_flight,
        )


class QueueMetrics:
    """The `querator_*` series, read from the service at the time of a scrape."""

    TOTALS: Final = {
        "produced": "Items that were produced.",
        "leased": "Leases that were given out.",
        "completed": "Items that were completed.",
        "retried": "Items that clients gave back.",
        "expired": "Leases that ran out.",
    }

    def __init__(
        self,
        statistics: Callable[[], Mapping[str, QueueStatistics]],
        now_us: Callable[[], int],
        rooms: Callable[[], Mapping[str, Room]],
    ) -> None:
        self._statistics = statistics
        self._now_us = now_us
        self._rooms = rooms

    def collect(self, is_shown: Callable[[str], bool]) -> Iterator[Metric]:
        """The figures of the queues that are shown, and of the daemon as a whole."""
        # People read scrapes in terminals, so control characters in labels are escaped.
        queues = {escaped(name): figures for name, figures in self._statistics().items() if is_shown(name)}
        for name, text in self.TOTALS.items():
            total = CounterMetricFamily(f"querator_{name}_total", text, labels=["queue"])
            for queue, figures in queues.items():
                total.add_metric([queue], getattr(figures, name))
            yield total
        yield self._dead_lettered(queues)
        yield self._oldest(queues)
        waiting = GaugeMetricFamily("querator_waiting", "Requests that wait.", labels=["queue", "kind"])
        for queue, figures in queues.items():
            for kind, count in figures.waiting.items():
                waiting.add_metric([queue, kind], count)
        yield waiting
        yield from self._partitions(queues)
        yield from self._storages()
        for histogram in (PASS_SECONDS, COMMIT_SECONDS, CHECKPOINT_SECONDS):
            yield HistogramMetricFamily(
                histogram.name, histogram.help, buckets=histogram.buckets(), sum_value=histogram.seconds
            )

    @staticmethod
    def _dead_lettered(queues: Mapping[str, QueueStatistics]) -> Metric:
        total = CounterMetricFamily(
            "querator_dead_lettered_total", "Items that died, by reason.", labels=["queue", "reason"]
        )
        for queue, figures in queues.items():
            for reason, count in figures.dead_lettered.items():
                total.add_metric([queue, reason], count)
        return total

    def _oldest(self, queues: Mapping[str, QueueStatistics]) -> Metric:
        age = GaugeMetricFamily("querator_oldest_item_age_seconds", OLDEST_HELP, labels=["queue"])
        now = self._now_us()
        for queue, figures in queues.items():
            created = figures.oldest_created_at
            age.add_metric([queue], 0.0 if created is None else max(0, now - created) / limits.US_PER_SECOND)
        return age

    @staticmethod
    def _partitions(queues: Mapping[str, QueueStatistics]) -> Iterator[Metric]:
        items = GaugeMetricFamily("querator_items", "Items by state.", labels=["queue", "partition", "state"])
        states = GaugeMetricFamily(
            "querator_partition_state", "1 for the state a partition is in.", labels=["queue", "partition", "state"]
        )
        troubles = GaugeMetricFamily(
            "querator_partition_trouble",
            "1 for a partition that takes no items, or may soon not take any, with the reason.",
            labels=["queue", "partition", "reason"],
        )
        for queue, figures in queues.items():
            for partition in figures.partitions:
                number = str(partition.number)
                items.add_metric([queue, number, "ready"], partition.ready)
                items.add_metric([queue, number, "leased"], partition.leased)
                items.add_metric([queue, number, "scheduled"], partition.scheduled)
                for state in State:
                    states.add_metric([queue, number, state.value], 1.0 if state.value == partition.state else 0.0)
                if partition.trouble:
                    troubles.add_metric([queue, number, visible(partition.trouble)], 1.0)
        yield items
        yield states
        yield troubles

    def _storages(self) -> Iterator[Metric]:
        free = GaugeMetricFamily("querator_storage_free_bytes", "Free bytes of a storage.", labels=["storage"])
        size = GaugeMetricFamily("querator_storage_size_bytes", "Size of its file system.", labels=["storage"])
        for name, room in self._rooms().items():
            free.add_metric([name], room.free_bytes)
            size.add_metric([name], room.size_bytes)
        yield free
        yield size


class CertificateMetrics:
    """When the TLS certificate in use expires."""

    def __init__(self, expires_at: Callable[[], float]) -> None:
        self._expires_at = expires_at

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "querator_tls_certificate_expires_timestamp_seconds",
            "When the TLS certificate expires, in seconds since 1970.",
            value=self._expires_at(),
        )


class Metrics:
    """Everything a scrape shows."""

    def __init__(
        self,
        statistics: Callable[[], Mapping[str, QueueStatistics]],
        now_us: Callable[[], int],
        rooms: Callable[[], Mapping[str, Room]] = dict,
        certificate_expires_at: Callable[[], float] | None = None,
    ) -> None:
        self.http = HttpMetrics()
        self._registry = CollectorRegistry()
        self._registry.register(self.http)
        if certificate_expires_at is not None:
            self._registry.register(CertificateMetrics(certificate_expires_at))
        self._queues = QueueMetrics(statistics, now_us, rooms)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def scrape(self, is_shown: Callable[[str], bool]) -> bytes:
        """Takes all figures at once. Formatting them, which is most of the work, runs in a thread."""
        self.http.scrapes_in_flight += 1
        try:
            text = await asyncio.to_thread(
                generate_latest, _Collected([*self._registry.collect(), *self._queues.collect(is_shown)])
            )
            self.http.scrapes["200"] += 1
            return text
        except BaseException:
            self.http.scrapes["500"] += 1
            raise
        finally:
            self.http.scrapes_in_flight -= 1


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
