"""The pace of bulk writes: they wait until partition files catch up, and sleep if ordinary requests ran meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from querator.daemon.bulk.pacing import Pace
from querator.errors import RetryRequest
from querator.limits import BULK_APPLY_BYTES, BULK_POLL_SECONDS, BULK_SLEEP_SECONDS_MAX, BULK_UNAPPLIED_BYTES_MAX


class World:
    """A fake service: its files lag behind until a given time, and ordinary requests arrive as time passes."""

    def __init__(
        self, waiting: int = 0, until: float = 0.0, calls_per_second: int = 0, catching_up_until: float = 0.0
    ) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._waiting, self._until = waiting, until
        self._calls_per_second = calls_per_second
        self._catching_up_until = catching_up_until
        self.pace = Pace(
            lambda: self._waiting if self.now < self._until else 0,
            lambda: self.now < self._catching_up_until,
            lambda: int(self.now * self._calls_per_second),
            60.0,
            self.sleep,
            lambda: self.now,
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def wait(self, at: float = 0.0) -> list[float]:
        """The pauses that the pacing asks for at that time."""
        self.now = at
        asyncio.run(self.pace.wait_for_turn())
        return self.slept


def test_where_there_is_room_it_goes_on_at_once() -> None:
    assert World(BULK_UNAPPLIED_BYTES_MAX, until=1e9, catching_up_until=1e9).wait() == []


def test_it_waits_until_there_is_room() -> None:
    assert len(World(BULK_UNAPPLIED_BYTES_MAX + 1, until=0.1).wait()) == 20


def test_beside_others_it_waits_until_files_have_caught_up_and_rests() -> None:
    slept = World(catching_up_until=5.0975, calls_per_second=1_000).wait(at=5.0)
    assert slept[:-1] == [BULK_POLL_SECONDS] * 20
    assert slept[-1] == pytest.approx(3 * 20 * BULK_POLL_SECONDS)


def test_beside_others_it_brings_less_before_files_catch_up() -> None:
    assert len(World(BULK_APPLY_BYTES + 1, until=5.0975, calls_per_second=1_000).wait(at=5.0)) == 21
    assert World(BULK_APPLY_BYTES + 1, until=5.0975).wait(at=5.0) == []


def test_files_that_never_catch_up_do_not_keep_it_out() -> None:
    slept = World(catching_up_until=1e9, calls_per_second=1_000).wait(at=5.0)
    assert sum(slept[:-1]) == pytest.approx(BULK_SLEEP_SECONDS_MAX, abs=2 * BULK_POLL_SECONDS)


def test_it_does_not_rest_for_ever() -> None:
    world = World(BULK_UNAPPLIED_BYTES_MAX + 1, until=50.0, calls_per_second=1_000)
    assert world.wait(at=5.0)[-1] == BULK_SLEEP_SECONDS_MAX


def test_it_gives_up_when_there_is_no_room_for_long() -> None:
    with pytest.raises(RetryRequest, match="try again"):
        World(BULK_UNAPPLIED_BYTES_MAX + 1, until=1e9).wait()
