"""A standby notices how far its clock and the owner's differ, also when one of them moves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from querator import limits
from querator.clock import ManualClock, SetBackClock
from querator.daemon.archive import Away, Bucket, clock_behind_us, heartbeats, ownership
from querator.daemon.archive.heartbeats import Heartbeats
from querator.daemon.archive.objects import HEARTBEAT, Heartbeat, Owner, sealed
from querator.daemon.archive.ownership import noted_behind, read_identity
from tests.maintenance.house import SECOND


class Machines:
    """An owner that puts heartbeats into a real archive and a standby that reads them. Time passes when a test says."""

    def __init__(self, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bucket = Bucket(f"file://{archive}")
        self.now_us = 1_000 * SECOND
        self.owner_us = self.standby_us = 0
        self.beats = 0
        monkeypatch.setattr(heartbeats, "_monotonic_us", lambda: self.now_us)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_us / SECOND)
        self.seen = Heartbeats(self.bucket, _StandbyClock(self))

    def beat(self) -> None:
        self.beats += 1
        time_us = self.now_us + self.owner_us
        beat = Heartbeat(1, Owner("data", "host", 1, "1"), time_us, 1, self.beats, 5.0, time_us, False)
        self.bucket.replace(HEARTBEAT, sealed(beat, b""))

    def run(self, seconds: float) -> None:
        """The owner beats every five seconds, and the standby looks as often as it wants to."""
        end_us, beat_us = self.now_us + int(seconds * SECOND), self.now_us
        while self.now_us < end_us:
            if self.now_us >= beat_us:
                self.beat()
                beat_us += 5 * SECOND
            self.now_us += int(self.seen.pause() * SECOND)
            self.seen.look(1)

    def skew_seconds(self) -> float:
        skew_us = self.seen.skew_us()
        assert skew_us is not None
        return skew_us / SECOND


class _StandbyClock:
    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def now_us(self) -> int:
        return self._machines.now_us + self._machines.standby_us


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    found = Machines(tmp_path / "archive", monkeypatch)
    found.now_us += 700_000  # looks and beats are not in step
    return found


def test_the_time_until_a_heartbeat_is_seen_hardly_counts(machines: Machines) -> None:
    machines.run(12)
    assert 0 <= machines.skew_seconds() <= limits.SKEW_ERROR_SECONDS_MAX


def test_an_owner_whose_clock_stands_still_is_noticed(machines: Machines) -> None:
    machines.run(20)
    for _ in range(8):
        machines.owner_us -= 5 * SECOND
        machines.run(5)
    assert machines.skew_seconds() >= 40


def test_a_clock_that_is_set_is_noticed(machines: Machines) -> None:
    machines.run(20)
    machines.owner_us = 30 * SECOND
    machines.run(20)
    assert -30 <= machines.skew_seconds() <= -29


def test_a_small_step_of_a_clock_is_noticed_within_a_minute(machines: Machines) -> None:
    machines.run(20)
    machines.owner_us = -SECOND
    machines.run(limits.SKEW_SECONDS_KEPT + 6)
    assert 1 <= machines.skew_seconds() <= 1 + limits.SKEW_ERROR_SECONDS_MAX


def test_our_own_clock_may_be_set_after_the_last_heartbeat(machines: Machines) -> None:
    machines.run(20)
    machines.standby_us = 30 * SECOND
    assert 30 <= machines.skew_seconds() <= 31


def test_the_time_without_the_store_does_not_count_as_silence_of_the_owner(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.run(20)

    def away(name: str) -> bytes:
        raise Away("503")

    with monkeypatch.context() as patch:
        patch.setattr(machines.bucket, "read", away)
        for _ in range(60):
            machines.now_us += SECOND
            with pytest.raises(Away):
                machines.seen.look(1)
    for second in range(20):
        machines.now_us += SECOND
        machines.seen.look(1)
        assert second < machines.seen.silence() <= second + 5 + 2 * limits.HEARTBEAT_LOOK_SECONDS


def test_a_clock_that_was_set_back_catches_up_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = noted_behind(tmp_path, read_identity(tmp_path), SetBackClock(), 2 * SECOND)
    assert 1.9 * SECOND < clock_behind_us(tmp_path) <= 2 * SECOND
    later = ManualClock(identity.behind_at + 1_000 * SECOND)
    monkeypatch.setattr(ownership, "SystemClock", lambda: later)
    assert clock_behind_us(tmp_path) == 1.5 * SECOND
