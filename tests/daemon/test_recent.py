"""Rates of the last minute, from samples that are taken every five seconds."""

from __future__ import annotations

from querator.daemon.queue.logical import Counters
from querator.daemon.queue.recent import Recent
from querator.limits import RATE_SAMPLE_US, RATE_WINDOW_US

SAMPLES = RATE_WINDOW_US // RATE_SAMPLE_US


def test_everything_counts_until_the_first_samples_are_old() -> None:
    recent, counters = Recent(), Counters()
    counters.produced, counters.completed = 7, 3
    assert recent.last_minute(0, counters) == (7, 3)
    for number in range(SAMPLES + 1):
        recent.sample(number * RATE_SAMPLE_US, counters)
        assert recent.last_minute(number * RATE_SAMPLE_US, counters) == (7, 3)


def test_work_older_than_a_minute_does_not_count() -> None:
    recent, counters = Recent(), Counters()
    for number in range(100):
        recent.sample(number * RATE_SAMPLE_US, counters)
        counters.produced += 10
    assert recent.last_minute(100 * RATE_SAMPLE_US, counters).produced == 10 * SAMPLES
    for number in range(100, 100 + SAMPLES + 1):
        recent.sample(number * RATE_SAMPLE_US, counters)
    assert recent.last_minute((100 + SAMPLES) * RATE_SAMPLE_US, counters).produced == 0


def test_memory_is_bounded_however_many_samples_are_taken() -> None:
    recent, counters = Recent(), Counters()
    for number in range(1_000):
        recent.sample(number * RATE_SAMPLE_US, counters)
    assert len(recent._samples) == SAMPLES + 1


def test_a_clock_that_is_set_back_starts_anew() -> None:
    recent, counters = Recent(), Counters()
    recent.sample(10**15, counters)
    counters.produced = 5
    recent.sample(0, counters)
    counters.produced = 8
    assert recent.last_minute(RATE_SAMPLE_US, counters).produced == 3
