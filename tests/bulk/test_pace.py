"""How fast bulk writes go: they wait for files, and rest when others were served meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from querator.daemon.bulk_pace import Pace
from querator.limits import BULK_PAUSE_SECONDS, BULK_REST, BULK_REST_SECONDS_MAX


class World:
    """Room after so many looks, and calls that come while time passes."""

    def __init__(self, looks: int, calls_per_second: int) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._looks = looks
        self._calls_per_second = calls_per_second

    def has_room(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def calls(self) -> int:
        return int(self.now * self._calls_per_second)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def wait(self) -> list[float]:
        asyncio.run(Pace(self.has_room, self.calls, self.sleep, lambda: self.now).until_it_may_go_on())
        return self.slept


def test_where_there_is_room_it_goes_on_at_once() -> None:
    assert World(looks=0, calls_per_second=1_000).wait() == []


def test_it_waits_until_files_have_caught_up() -> None:
    assert World(looks=3, calls_per_second=0).wait() == [BULK_PAUSE_SECONDS] * 3


def test_it_rests_when_others_were_served_meanwhile() -> None:
    assert World(looks=4, calls_per_second=1_000).wait() == [
        *[BULK_PAUSE_SECONDS] * 4,
        pytest.approx(BULK_REST * 4 * BULK_PAUSE_SECONDS),
    ]


def test_it_does_not_rest_for_ever() -> None:
    assert World(looks=10_000, calls_per_second=1_000).wait()[-1] == BULK_REST_SECONDS_MAX
