"""Several daemons want the archive at the same time, while requests fail and overtake each other: one of them gets it.

QUERATOR_LOST_ROUNDS=50 pytest tests/archive/test_one_owner.py
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import care
from querator.daemon.archive.ledger import latest
from querator.errors import QueratorError, Replaced
from tests.archive.looking import bucket_of, restored, shipped, shipper_of
from tests.archive.object_stores import S3, BadWeather, FaultyProxy, Handler
from tests.maintenance.house import Future, House
from tests.waiting import until

OpenHouse = Callable[..., House]

ROUNDS = max(1, int(os.environ.get("QUERATOR_LOST_ROUNDS", "2")) // 2)


class Overtaking(BadWeather):
    """Puts wait for one another and arrive in any order. Some of them fail as well."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance, share=0.15, lag=0)
        self._turn = threading.Condition()
        self._waiting: list[object] = []

    def __call__(self, handler: Handler, body: bytes) -> bool:
        if handler.command == "PUT" and "/log/" in handler.path:
            self._wait_for_turn()
        return super().__call__(handler, body)

    def _wait_for_turn(self) -> None:
        me = object()
        with self._turn:
            self._waiting.insert(self._chance.randint(0, len(self._waiting)), me)
            # Who is last in the list goes first, after a moment in which others may arrive behind it.
            while not self._turn.wait(0.01):
                if self._waiting[-1] is me:
                    break
            self._waiting.remove(me)
            self._turn.notify_all()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_SECONDS_MAX", 0.05)
    monkeypatch.setattr(limits, "ARCHIVE_CLAIM_SECONDS_MAX", 30)


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return random.Random(seed)


class Contest:
    """Houses that want the same archive, and those of them that have lost it."""

    def __init__(self) -> None:
        self.houses: dict[str, House] = {}
        self.lost: dict[str, QueratorError] = {}

    def enter(self, name: str, open_house: Callable[[], House]) -> None:
        try:
            house = self.houses[name] = open_house()
        except Replaced as error:
            self.lost[name] = error
        else:
            self.watch(name, house)

    def watch(self, name: str, house: House) -> None:
        house.service.lost_archive = lambda error: self.lost.update({name: error})
        if (refusal := shipper_of(house)._refusal) is not None:
            self.lost[name] = refusal


@pytest.mark.parametrize("number", range(ROUNDS))
def test_of_daemons_that_claim_the_archive_together_one_goes_on(
    number: int, open_house: OpenHouse, s3: S3, proxy: FaultyProxy, chance: random.Random, tmp_path: Path
) -> None:
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.01, heartbeat=0.1, options=options)
    proxy.fault = Overtaking(chance)
    contest = Contest()
    threads = [
        threading.Thread(
            target=contest.enter, args=(name, partial(open_house, name, archive=archive, claim=True, start_over=True))
        )
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    until(lambda: len(contest.lost) >= 2, "two daemons believe that they own the archive")
    proxy.fault = None
    (winner,) = contest.houses.keys() - contest.lost.keys()
    assert all(isinstance(error, Replaced) for error in contest.lost.values())
    house = contest.houses[winner]
    house.create()
    house.produce("served")
    shipped(house)
    assert latest(bucket_of(archive)).owner == shipper_of(house).owner
    care.verify(bucket_of(archive))
    again = restored(archive, tmp_path / "restored")
    assert again.contents() == ["served"]
    again.close()
    assert len(contest.lost) == 2


@pytest.mark.parametrize("number", range(ROUNDS))
def test_of_copies_of_one_directory_that_are_started_together_one_goes_on(
    number: int, open_house: OpenHouse, s3: S3, proxy: FaultyProxy, chance: random.Random, tmp_path: Path
) -> None:
    """Copies have the same identity. Here they also have the same host and PID, as in containers."""
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.01, heartbeat=0.1, options=options)
    house = open_house("a", archive=archive)
    house.create()
    house.produce("1")
    shipped(house)
    house.close()
    for name in "bc":
        shutil.copytree(tmp_path / "a", tmp_path / name, ignore=shutil.ignore_patterns("*.sock"))
    proxy.fault = Overtaking(chance)
    contest = Contest()
    threads = [
        threading.Thread(target=contest.enter, args=(name, partial(open_house, name, archive=archive)))
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    until(lambda: len(contest.lost) >= 2, "two copies believe that they own the archive")
    proxy.fault = None
    (winner,) = contest.houses.keys() - contest.lost.keys()
    contest.houses[winner].produce("2")
    shipped(contest.houses[winner])
    care.verify(bucket_of(archive))
    assert sorted(contest.houses[winner].contents()) == ["1", "2"]


@pytest.mark.parametrize("number", range(ROUNDS))
def test_of_two_standbys_that_are_promoted_together_one_takes_over_and_has_everything(
    number: int, open_house: OpenHouse, s3: S3, proxy: FaultyProxy, chance: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(limits, "ARCHIVE_WAIT_SECONDS_MAX", 30)
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.02, heartbeat=60, wait=True, options=options)
    live = open_house("live", archive=archive)
    live.create()
    standbys = [open_house(name, archive=archive, standby=True) for name in ("one", "two")]
    contest = Contest()
    contest.watch("live", live)
    proxy.fault = Overtaking(chance)
    acknowledged: list[str] = []
    over = threading.Event()
    target = chance.randint(1, 10)

    def produce() -> None:
        # Not for ever: a standby that reads as fast as the owner writes may need many attempts.
        for _ in range(target + chance.randint(0, 10)):
            text = f"{len(acknowledged)}"
            answer = live.begin_produce(text)
            while not answer.done() and not over.wait(0.001):
                pass
            if over.is_set() or answer.exception() is not None:
                return
            acknowledged.append(text)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        until(lambda: len(acknowledged) >= target)
        for _ in range(20):
            # Both attempts may fail, because the weather is bad. Then the operators try again.
            for attempt in [promotion(standby) for standby in chance.sample(standbys, 2)]:
                attempt.result(60)
            if any(map(is_serving, standbys)):
                break
        live.begin_produce("too late")
        until(lambda: "live" in contest.lost, "the replaced daemon goes on")
    finally:
        over.set()
        producer.join(60)
        proxy.fault = None
    # A standby that was promoted a moment later than the other one replaces it: the archive says who is last.
    owner = latest(bucket_of(archive)).owner
    (winner,) = [standby for standby in standbys if is_serving(standby) and shipper_of(standby).owner == owner]
    winner.registry = winner.service.registry
    assert isinstance(contest.lost["live"], Replaced)
    there = winner.contents()
    assert len(there) == len(set(there))
    assert set(acknowledged) <= set(there), "something acknowledged is lost"
    assert "too late" not in there
    winner.produce("served")


def promotion(house: House) -> Future:
    """Begins to promote a standby. The result is there when it serves, or when the attempt has failed."""
    role = house.service.archive.standing_by
    assert role is not None
    return asyncio.run_coroutine_threadsafe(role._promote(force=True), house._loop)


def is_serving(house: House) -> bool:
    return house.service.archive.notes()[0].startswith("archive ")
