"""The metrics that `/metrics` shows."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

from querator import limits
from querator.cli.lookups import metrics as cli_metrics
from querator.daemon.metrics import Durations, Histogram, HttpMetrics, Metrics
from querator.items import Room


def series(metrics: Metrics) -> dict[str, float]:
    lines = [
        line
        for line in asyncio.run(metrics.scrape(lambda queue: True)).decode().splitlines()
        if not line.startswith("#")
    ]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def queue(**more: object) -> SimpleNamespace:
    figures = {
        "produced": 1,
        "leased": 2,
        "completed": 3,
        "retried": 4,
        "expired": 5,
        "dead_lettered": {"max_attempts": 6, "client": 7},
        "waiting": {"produce": 0, "lease": 8, "complete": 0},
        "oldest_created_at": 1_000_000,
        "partitions": [
            SimpleNamespace(number=0, state="available", ready=10, leased=11, scheduled=12, trouble=""),
            SimpleNamespace(number=1, state="paused", ready=0, leased=0, scheduled=0, trouble='no "room"'),
        ],
    }
    return SimpleNamespace(**figures | more)


def test_labels_show_control_characters_escaped_and_no_two_queues_share_one() -> None:
    names = ["\x1b[31m\r\n\x9b\u202e", "\\x1b[31m\\r\\n\\x9b\\u202e", "a\\b"]
    metrics = Metrics(lambda: {name: queue() for name in names}, lambda: 0, dict)  # type: ignore[arg-type]
    text = asyncio.run(metrics.scrape(lambda queue: True)).decode()
    assert {c for c in text if not c.isprintable()} == {"\n"}
    assert list(cli_metrics.queues(text)) == names


def test_every_figure_of_a_queue() -> None:
    rooms = {"fast": Room(free_bytes=5, size_bytes=9)}
    found = series(Metrics(lambda: {"q": queue()}, lambda: 3_500_000, lambda: rooms))  # type: ignore[arg-type, return-value]
    expected = {
        'querator_produced_total{queue="q"}': 1,
        'querator_leased_total{queue="q"}': 2,
        'querator_completed_total{queue="q"}': 3,
        'querator_retried_total{queue="q"}': 4,
        'querator_expired_total{queue="q"}': 5,
        'querator_dead_lettered_total{queue="q",reason="max_attempts"}': 6,
        'querator_dead_lettered_total{queue="q",reason="client"}': 7,
        'querator_waiting{kind="lease",queue="q"}': 8,
        'querator_oldest_item_age_seconds{queue="q"}': 2.5,
        'querator_items{partition="0",queue="q",state="ready"}': 10,
        'querator_items{partition="0",queue="q",state="leased"}': 11,
        'querator_items{partition="0",queue="q",state="scheduled"}': 12,
        'querator_partition_state{partition="0",queue="q",state="available"}': 1,
        'querator_partition_state{partition="1",queue="q",state="available"}': 0,
        'querator_partition_state{partition="1",queue="q",state="paused"}': 1,
        'querator_partition_trouble{partition="1",queue="q",reason="no \\"room\\""}': 1,
        'querator_storage_free_bytes{storage="fast"}': 5,
        'querator_storage_size_bytes{storage="fast"}': 9,
    }
    assert expected.items() <= found.items()
    for name in ("querator_pass_seconds", "querator_commit_seconds", "querator_checkpoint_seconds"):
        assert f'{name}_bucket{{le="+Inf"}}' in found and f"{name}_sum" in found and f"{name}_count" in found


def test_an_empty_queue_has_no_age_and_the_clock_may_go_back() -> None:
    metrics = Metrics(lambda: {"a": queue(oldest_created_at=None), "b": queue()}, lambda: 0)  # type: ignore[arg-type, return-value, dict-item]
    found = series(metrics)
    assert found['querator_oldest_item_age_seconds{queue="a"}'] == 0
    assert found['querator_oldest_item_age_seconds{queue="b"}'] == 0


def test_a_queue_name_cannot_break_the_format() -> None:
    found = series(Metrics(lambda: {'a"b\\c': queue()}, lambda: 0))  # type: ignore[arg-type, return-value, dict-item]
    assert r'querator_produced_total{queue="a\"b\\\\c"}' in found


def test_scrapes_count_themselves() -> None:
    metrics = Metrics(dict, lambda: 0)
    assert series(metrics)['promhttp_metric_handler_requests_total{code="200"}'] == 0
    second = series(metrics)
    assert second['promhttp_metric_handler_requests_total{code="200"}'] == 1
    assert second["promhttp_metric_handler_requests_in_flight"] == 1


def test_quantiles_are_of_the_latest_samples() -> None:
    durations = Durations()
    assert math.isnan(*durations.quantiles(0.5))
    for _ in range(10 * limits.DURATION_SAMPLES_MAX):
        durations.observe(100.0)
    for number in range(limits.DURATION_SAMPLES_MAX):
        durations.observe(float(number))
    assert durations.quantiles(0.5, 0.99) == [limits.DURATION_SAMPLES_MAX // 2, int(0.99 * limits.DURATION_SAMPLES_MAX)]
    assert durations.count == 11 * limits.DURATION_SAMPLES_MAX


def test_ever_new_paths_share_counters_in_the_end() -> None:
    metrics = HttpMetrics()
    for number in range(10 * limits.DURATION_PATHS_MAX):
        metrics.durations(f"/{number}").observe(1.0)
    counts = {path: durations.count for path, durations in metrics.paths()}
    assert len(counts) == limits.DURATION_PATHS_MAX + 1
    assert counts["(other)"] == 9 * limits.DURATION_PATHS_MAX


def test_a_histogram_is_cumulative() -> None:
    histogram = Histogram("h", "help")
    for seconds in (2.5, 5.0, 7.0, 11.0):
        histogram.observe(seconds)
    assert histogram.buckets()[-5:] == [("1.0", 0.0), ("2.5", 1.0), ("5.0", 2.0), ("10.0", 3.0), ("+Inf", 4.0)]
    assert (histogram.count, histogram.seconds) == (4, 25.5)
