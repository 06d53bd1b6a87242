"""How fast bulk writes go: they wait for files, and rest when others were served meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from querator.daemon.bulk_pace import Pace
from querator.errors import RetryRequest
from querator.limits import BULK_PAUSE_SECONDS, BULK_REST, BULK_REST_SECONDS_MAX


class World:
    """Room after so many looks, files that catch up until a time, and calls that come while time passes."""

    def __init__(self, looks: int, calls_per_second: int, catching_up_until: float = 0.0) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._looks = looks
        self._calls_per_second = calls_per_second
        self._catching_up_until = catching_up_until

    def has_room(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def calls(self) -> int:
        return int(self.now * self._calls_per_second)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def wait(self) -> list[float]:
        pace = Pace(
            self.has_room,
            lambda: self.now < self._catching_up_until,
            self.calls,
            60.0,
            self.sleep,
            lambda: self.now,
        )
        asyncio.run(pace.until_it_may_go_on())
        return self.slept


def test_where_there_is_room_it_goes_on_at_once() -> None:
    assert World(looks=0, calls_per_second=1_000).wait() == []


def test_it_waits_until_there_is_room() -> None:
    assert World(looks=3, calls_per_second=0).wait() == [BULK_PAUSE_SECONDS] * 3


def test_it_waits_until_files_have_caught_up() -> None:
    assert len(World(looks=0, calls_per_second=0, catching_up_until=0.1).wait()) == 20


def test_files_that_never_have_do_not_keep_it_out() -> None:
    world = World(looks=0, calls_per_second=0, catching_up_until=1e9)
    world.wait()
    assert world.now == pytest.approx(BULK_REST_SECONDS_MAX, abs=2 * BULK_PAUSE_SECONDS)


def test_it_rests_when_others_were_served_meanwhile() -> None:
    assert World(looks=4, calls_per_second=1_000).wait() == [
        *[BULK_PAUSE_SECONDS] * 4,
        pytest.approx(BULK_REST * 4 * BULK_PAUSE_SECONDS),
    ]


def test_it_does_not_rest_for_ever() -> None:
    assert World(looks=10_000, calls_per_second=1_000).wait()[-1] == BULK_REST_SECONDS_MAX


def test_it_gives_up_when_there_is_no_room_for_long() -> None:
    with pytest.raises(RetryRequest, match="try again"):
        World(looks=1_000_000, calls_per_second=0).wait()
