"""A restore makes a directory with the state of a given moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import ArchiveError, Bucket, restoring
from querator.daemon.archive.objects import DamagedObject
from querator.errors import NotFound, UsageError
from querator.wire import messages as m
from tests.archive.looking import bucket_of, restored, shipped, shipper_of
from tests.archive.object_stores import S3
from tests.maintenance.house import SECOND, House

OpenHouse = Callable[..., House]


def state_of(house: House, queue: str) -> list[tuple[str, int, bool]]:
    """Every item with its attempts, and whether it is leased."""
    found = []
    for number in range(len(house.logical(queue).partitions)):
        request = m.StorageItemsListRequest(queue_name=queue, partition=number, limit=10_000)
        for item in house.call("storage/items.list", request).items:
            found.append((item.payload.decode(), item.attempts, item.is_leased))
    return sorted(found)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored"


def test_everything_comes_back(open_house: OpenHouse, archive: ArchiveConfig, target: Path) -> None:
    house = open_house("live", archive=archive)
    house.create("dead")
    house.create("a", partitions=2, dead_queue="dead")
    house.produce("1", "2", queue="a")
    house.produce("later", queue="a", at=house.clock.now_us() + 60 * SECOND)
    (leased,) = house.lease(1, queue="a")
    house.ask("pause", 1, queue="a")
    shipped(house)
    house.close()
    again = restored(archive, target)
    assert sorted(again.contents("a")) == ["1", "2", "later"]
    assert again.states("a") == ["available", "paused"]
    assert again.contents("dead") == []
    assert [leased for _, _, leased in state_of(again, "a")].count(True) == 1
    again.complete(leased.id, queue="a").result(5)
    assert again.logical("a").queue.dead_queue == "dead"
    again.close()


def test_20_moments_of_a_run_are_restored_as_they_were(
    open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 7)
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_BYTES", 8_000)
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    house = open_house("live", archive=archive)
    house.create("a", partitions=2)
    recorded: dict[int, list[tuple[str, int, bool]]] = {}
    held: list[str] = []
    for step in range(40):
        for _ in range(chance.randint(1, 3)):
            what = chance.choice(("produce", "produce", "lease", "complete"))
            if what == "produce":
                house.produce(*(f"{step}-{n}-{'x' * 200}" for n in range(chance.randint(1, 4))), queue="a")
            elif what == "lease" and any(p.counts.ready for p in house.logical("a").partitions):
                held += [item.id for item in house.lease(chance.randint(1, 3), queue="a")]
            elif held:
                house.complete(held.pop(), queue="a").result(5)
        recorded[house.clock.now_us()] = state_of(house, "a")
        shipped(house)
        house.advance("1s")
    bases = [entry for entry in bucket_of(archive).entries("base/")]
    house.close()
    assert bases, "no base was taken after the first"
    for number, moment in enumerate(chance.sample(sorted(recorded), 20)):
        at_us = moment + chance.randrange(SECOND)
        again = restored(archive, tmp_path / f"restored-{number}", at_us=at_us)
        assert state_of(again, "a") == recorded[moment], f"at {moment}"
        again.close()


def test_a_queue_that_was_cleared_comes_back_alone(open_house: OpenHouse, archive: ArchiveConfig, target: Path) -> None:
    house = open_house("live", archive=archive)
    house.create("b")
    house.create("a", dead_queue="b")
    house.produce("1", "2", queue="a")
    shipped(house)
    before = house.clock.now_us()
    house.advance("1m")
    house.call("queue.clear", m.QueueClearRequest(queue_name="a", queue=True))
    shipped(house)
    house.close()
    again = restored(archive, target, at_us=before, queue="a")
    assert again.contents("a") == ["1", "2"]
    assert list(again.registry.queues) == ["a"]
    again.close()


def test_a_queue_that_was_not_there_is_not_found(open_house: OpenHouse, archive: ArchiveConfig, target: Path) -> None:
    house = open_house("live", archive=archive)
    house.create("a")
    shipped(house)
    with pytest.raises(NotFound, match="queue 'b' was not there"):
        restoring.restore(bucket_of(archive), target, queue="b")
    assert restoring.restore(bucket_of(archive), target, queue="a").queues == 1, "the same directory can be used"


def test_a_restore_that_was_interrupted_goes_on(
    open_house: OpenHouse, archive: ArchiveConfig, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house("live")
    house.create("a", partitions=3)
    house.produce(*map(str, range(30)), queue="a")
    house.close()
    house = open_house("live", archive=archive)
    shipped(house)
    house.produce("more", queue="a")
    shipped(house)
    house.close()
    fetched: list[str] = []
    fetch = Bucket.pieces

    def pieces(self: Bucket, name: str) -> object:
        if len(fetched) == 2:
            raise KeyboardInterrupt
        fetched.append(name)
        return fetch(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "pieces", pieces)
        with pytest.raises(KeyboardInterrupt):
            restoring.restore(bucket_of(archive), target)
    monkeypatch.setattr(Bucket, "pieces", lambda self, name: fetched.append(name) or fetch(self, name))
    again = restored(archive, target)
    assert len(fetched) == len(set(fetched)) == 3, "a base was fetched twice"
    assert sorted(again.contents("a")) == sorted([*map(str, range(30)), "more"])
    again.close()


def test_a_directory_with_something_in_it_is_refused(
    open_house: OpenHouse, archive: ArchiveConfig, target: Path
) -> None:
    house = open_house("live", archive=archive)
    shipped(house)
    target.mkdir()
    (target / "mine").write_text("precious")
    with pytest.raises(UsageError, match="is not empty"):
        restoring.restore(bucket_of(archive), target)
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_a_moment_before_the_archive_is_refused(open_house: OpenHouse, archive: ArchiveConfig, target: Path) -> None:
    house = open_house("live", archive=archive)
    shipped(house)
    with pytest.raises(ArchiveError, match="no complete state"):
        restoring.restore(bucket_of(archive), target, at_us=house.clock.now_us() - 1)


def test_a_damaged_base_is_not_restored(open_house: OpenHouse, archive: ArchiveConfig, target: Path) -> None:
    house = open_house("live")
    house.create("a")
    house.close()
    house = open_house("live", archive=archive)
    shipped(house)
    bucket = bucket_of(archive)
    (base,) = bucket.entries("base/")
    data = bytearray(bucket.read(base.name) or b"")
    data[len(data) // 2] ^= 1
    bucket.replace(base.name, bytes(data))
    with pytest.raises(DamagedObject, match="its hash is wrong"):
        restoring.restore(bucket, target)


def test_storages_come_back_by_name(open_house: OpenHouse, archive: ArchiveConfig, target: Path) -> None:
    house = open_house("live", archive=archive)
    house.create("a")
    house.produce("1", queue="a")
    assert house.job("migrate", "a", partition=0, to_storage="other").state == "done"
    house.produce("2", queue="a")
    shipped(house)
    house.close()
    again = restored(archive, target)
    assert again.contents("a") == ["1", "2"]
    assert [status.storage for status in again.statuses("a")] == ["other"]
    again.close()
    assert 'name = "other"' in (target / "config.toml").read_text()


def test_an_archive_in_s3_is_restored(open_house: OpenHouse, s3: S3, target: Path) -> None:
    url, options = s3.archive()
    archive = ArchiveConfig(url, interval=0.01, options=options)
    house = open_house("live")
    house.create("a")
    house.produce("1", queue="a")
    house.close()
    house = open_house("live", archive=archive)
    shipped(house)
    house.produce("2", queue="a")
    shipped(house)
    house.close()
    again = restored(archive, target)
    assert again.contents("a") == ["1", "2"]
    again.close()


def test_a_restored_directory_continues_the_archive_without_new_bases(
    open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path
) -> None:
    house = open_house("live", "default", archive=archive)
    house.create("a")
    house.produce("1", queue="a")
    shipped(house)
    house.close()
    restored(archive, tmp_path / "second").close()
    second = open_house("second", "default", archive=archive, claim=True)
    second.produce("2", queue="a")
    shipped(second)
    assert not list(bucket_of(archive).entries("base/"))
    assert shipper_of(second).ledger.epoch == 2
    second.close()
    third = restored(archive, tmp_path / "third")
    assert third.contents("a") == ["1", "2"]
    third.close()
