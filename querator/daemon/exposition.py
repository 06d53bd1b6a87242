"""The text of a scrape: the daemon's figures as Prometheus' own types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

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
from querator.daemon.metrics import (
    CHECKPOINT_SECONDS,
    COMMIT_SECONDS,
    PASS_SECONDS,
    ArchiveLag,
    HttpMetrics,
    Metrics,
    QueueStatistics,
)
from querator.items import Room, State
from querator.texts import escaped, visible

OLDEST_HELP: Final = (
    f"Age of the oldest among the {limits.OLDEST_AMONG_ITEMS_MAX:,} items of each partition that are next to be leased."
    " Leased and scheduled items do not count."
)
QUANTILES: Final = (0.5, 0.99)
TOTALS: Final = {
    "produced": "Items that were produced.",
    "leased": "Leases that were given out.",
    "completed": "Items that were completed.",
    "retried": "Items that clients gave back.",
    "expired": "Leases that ran out.",
}

_process = CollectorRegistry()
"""The figures of the process, which prometheus_client knows."""
ProcessCollector(registry=_process)
PlatformCollector(registry=_process)
GCCollector(registry=_process)


def collect(metrics: Metrics, is_shown: Callable[[str], bool]) -> list[Metric]:
    """All figures of this moment: those of the daemon, and those of the queues that are shown."""
    expires_at = metrics.certificate_expires_at
    return [
        *_process.collect(),
        *_http(metrics.http),
        *(() if expires_at is None else _certificate(expires_at())),
        *_archive(metrics.archive_lag()),
        *_queues(metrics, is_shown),
    ]


def text_of(figures: list[Metric]) -> bytes:
    return generate_latest(_Collected(figures))


def _http(http: HttpMetrics) -> Iterator[Metric]:
    """Request durations by path, and the metrics about scrapes themselves."""
    summary = SummaryMetricFamily(
        "http_handler_duration", "The timings of http requests handled by the service", labels=["path"]
    )
    for path, durations in http.paths():
        for share, seconds in zip(QUANTILES, durations.quantiles(*QUANTILES), strict=True):
            summary.add_sample("http_handler_duration", {"path": path, "quantile": str(share)}, seconds)
        summary.add_metric([path], durations.count, durations.seconds)
    yield summary
    total = CounterMetricFamily(
        "promhttp_metric_handler_requests_total", "Total number of scrapes by HTTP status code.", labels=["code"]
    )
    for code, count in http.scrapes.items():
        total.add_metric([code], count)
    yield total
    yield GaugeMetricFamily(
        "promhttp_metric_handler_requests_in_flight",
        "Current number of scrapes being served.",
        value=http.scrapes_in_flight,
    )


def _certificate(expires_at: float) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "querator_tls_certificate_expires_timestamp_seconds",
        "When the TLS certificate expires, in seconds since 1970.",
        value=expires_at,
    )


def _archive(lag: ArchiveLag | None) -> Iterator[Metric]:
    if lag is None:
        return
    if not lag.is_standby:
        yield GaugeMetricFamily(
            "querator_archive_lag_seconds",
            "Time since the moment up to which the archive has everything.",
            value=lag.seconds,
        )
        return
    yield GaugeMetricFamily(
        "querator_standby_lag_seconds",
        "Time since the moment up to which this standby has everything.",
        value=lag.seconds,
    )
    yield GaugeMetricFamily(
        "querator_standby_lag_objects",
        "Objects of the archive that this standby has not replayed yet.",
        value=lag.objects,
    )


def _queues(metrics: Metrics, is_shown: Callable[[str], bool]) -> Iterator[Metric]:
    """The figures of the queues that are shown, and of the daemon as a whole."""
    # People read scrapes in terminals, so control characters in labels are escaped.
    queues = {escaped(name): figures for name, figures in metrics.statistics().items() if is_shown(name)}
    for name, text in TOTALS.items():
        total = CounterMetricFamily(f"querator_{name}_total", text, labels=["queue"])
        for queue, figures in queues.items():
            total.add_metric([queue], getattr(figures, name))
        yield total
    yield _dead_lettered(queues)
    yield _oldest(queues, metrics.now_us())
    waiting = GaugeMetricFamily("querator_waiting", "Requests that wait.", labels=["queue", "kind"])
    for queue, figures in queues.items():
        for kind, count in figures.waiting.items():
            waiting.add_metric([queue, kind], count)
    yield waiting
    yield from _partitions(queues)
    yield from _storages(metrics.rooms())
    for histogram in (PASS_SECONDS, COMMIT_SECONDS, CHECKPOINT_SECONDS):
        yield HistogramMetricFamily(
            histogram.name, histogram.help, buckets=histogram.buckets(), sum_value=histogram.seconds
        )


def _dead_lettered(queues: Mapping[str, QueueStatistics]) -> Metric:
    total = CounterMetricFamily(
        "querator_dead_lettered_total", "Items that died, by reason.", labels=["queue", "reason"]
    )
    for queue, figures in queues.items():
        for reason, count in figures.dead_lettered.items():
            total.add_metric([queue, reason], count)
    return total


def _oldest(queues: Mapping[str, QueueStatistics], now: int) -> Metric:
    age = GaugeMetricFamily("querator_oldest_item_age_seconds", OLDEST_HELP, labels=["queue"])
    for queue, figures in queues.items():
        created = figures.oldest_created_at
        age.add_metric([queue], 0.0 if created is None else max(0, now - created) / limits.US_PER_SECOND)
    return age


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


def _storages(rooms: Mapping[str, Room]) -> Iterator[Metric]:
    free = GaugeMetricFamily("querator_storage_free_bytes", "Free bytes of a storage.", labels=["storage"])
    size = GaugeMetricFamily("querator_storage_size_bytes", "Size of its file system.", labels=["storage"])
    for name, room in rooms.items():
        free.add_metric([name], room.free_bytes)
        size.add_metric([name], room.size_bytes)
    yield free
    yield size


class _Collected(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
