"""How producers are let in while the files of a storage catch up."""

from __future__ import annotations

import pytest

from querator.daemon.engine.backpressure import SLACK_SHARE, BackPressure

MAX = 48_000_000


class Storage:
    """A storage that is written to by a producer who never rests, and whose files take `bytes_per_second`."""

    def __init__(self, bytes_per_second: float) -> None:
        self.back_pressure = BackPressure()
        self.now = 0.0
        self.absorbed = self.held = MAX // 2
        self.entries: list[float] = []
        """When the producer was let in."""
        self._bytes_per_second = bytes_per_second

    def is_closed(self) -> bool:
        return self.back_pressure.is_closed(self.held, MAX, self.absorbed, self.now)

    def apply(self, request_bytes: int) -> int:
        """Applies what is held, and returns how much came in meanwhile."""
        applied, before = self.held, self.absorbed
        self.back_pressure.begins(applied, self.held, MAX, self.absorbed, self.now)
        ends = self.now + applied / self._bytes_per_second
        while self.now < ends:
            while not self.is_closed():
                self.absorbed += request_bytes
                self.held += request_bytes
                self.entries.append(self.now)
            self.now += 0.005
        self.held -= applied
        self.back_pressure.ends(self.now)
        return self.absorbed - before


@pytest.mark.parametrize("megabytes_per_second", [5, 25, 200])
def test_a_producer_never_waits_much_longer_than_usual(megabytes_per_second: int) -> None:
    storage = Storage(megabytes_per_second * 1e6)
    for _ in range(10):
        storage.apply(100_000)
        storage.held = max(storage.held, MAX // 2)  # upkeep applies again when this much is held
    storage.entries.clear()
    for _ in range(5):
        storage.apply(100_000)
        storage.held = max(storage.held, MAX // 2)
    waits = [after - before for before, after in zip(storage.entries, storage.entries[1:], strict=False)]
    usual = 100_000 / (megabytes_per_second * 1e6)
    # At the end of each apply the slack that its beginning gave is missing.
    slack_seconds = MAX / SLACK_SHARE / (megabytes_per_second * 1e6)
    assert max(waits) <= slack_seconds + 10 * usual + 0.02


def test_memory_is_bounded_however_slow_the_files_are() -> None:
    storage = Storage(1e6)
    storage.apply(100_000)
    assert storage.held <= MAX + 100_000


def test_as_much_comes_in_as_goes_out() -> None:
    storage = Storage(30e6)
    for _ in range(5):
        storage.apply(100_000)
        storage.held = max(storage.held, MAX // 2)
    assert storage.apply(100_000) >= 0.9 * MAX // 2


def applied(back_pressure: BackPressure, seconds: float, left_bytes: int) -> None:
    back_pressure.begins(left_bytes, left_bytes, MAX, absorbed=0, now=0.0)
    back_pressure.ends(seconds, left_bytes)


def test_a_burst_that_slows_applies_hardly_changes_how_much_may_be_left_in_the_journal() -> None:
    """What is left is applied after the burst, when nothing else needs the processors."""
    back_pressure = BackPressure()
    applied(back_pressure, 0.2, 20_000_000)
    applied(back_pressure, 0.04, 20_000_000)
    assert back_pressure.left_seconds_per_byte == pytest.approx(2e-9)
    for _ in range(5):
        applied(back_pressure, 0.08, 20_000_000)
    assert back_pressure.left_seconds_per_byte < 2.3e-9
    for _ in range(300):
        applied(back_pressure, 0.08, 20_000_000)
    assert back_pressure.left_seconds_per_byte == pytest.approx(4e-9, rel=0.01)


def test_an_apply_of_items_that_were_removed_meanwhile_says_nothing_about_how_much_may_be_left() -> None:
    back_pressure = BackPressure()
    applied(back_pressure, 0.04, 20_000_000)
    back_pressure.begins(20_000_000, 20_000_000, MAX, absorbed=0, now=0.0)
    back_pressure.ends(0.001, 0)
    assert back_pressure.left_seconds_per_byte == pytest.approx(2e-9)


def test_a_storage_that_holds_little_lets_everybody_in() -> None:
    back_pressure = BackPressure()
    back_pressure.begins(1_000_000, 1_000_000, MAX, absorbed=1_000_000, now=0.0)
    assert not back_pressure.is_closed(MAX - 1, MAX, absorbed=MAX, now=0.0)
    assert back_pressure.is_closed(MAX, MAX, absorbed=MAX, now=0.0)
