"""What an operator learns about an archive, and what may be deleted from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import ArchiveError, Bucket, care
from querator.daemon.archive.objects import DamagedObject, log_name, opened_log, sealed_log
from tests.archive.looking import bucket_of, restored, shipped
from tests.maintenance.house import SECOND, House

OpenHouse = Callable[..., House]


@pytest.fixture
def house(open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch) -> House:
    """A queue that got two items every minute for ten minutes, with small indexes and bases."""
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 2)
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_BYTES", 3_000)
    house = open_house("live", archive=archive)
    house.create()
    for number in range(10):
        house.produce(f"{number}-a", f"{number}-b")
        shipped(house)
        house.advance("1m")
    return house


def test_the_status_tells_who_owns_it_and_how_far_it_goes_back(house: House, archive: ArchiveConfig) -> None:
    found = care.status(bucket_of(archive))
    assert found.owner is not None and found.owner.pid
    assert (found.epoch, found.partitions, found.without_base) == (1, 1, 0)
    assert found.last_point == house.clock.now_us() - 60 * SECOND
    assert found.oldest_point == house.clock.now_us() - 600 * SECOND
    assert found.size > 5_000 and found.last_base


def test_everything_can_be_restored_to_the_oldest_point_of_the_status(
    open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path
) -> None:
    """An archive that is switched on for existing queues has no state of them before their first bases."""
    before = open_house("live")
    before.create()
    before.produce("1")
    before.close()
    house = open_house("live", archive=archive)
    shipped(house)
    oldest = care.status(bucket_of(archive)).oldest_point
    house.close()
    back = restored(archive, tmp_path / "oldest", at_us=oldest)
    try:
        assert len(back.contents()) == 1
    finally:
        back.close()


def test_nothing_is_pruned_from_an_archive_that_lacks_a_log_object(house: House, archive: ArchiveConfig) -> None:
    bucket = bucket_of(archive)
    last = care.status(bucket).number
    bucket.delete([log_name(last - 3)])
    there = [entry.name for entry in bucket.entries("")]
    with pytest.raises(DamagedObject, match=log_name(last - 3)):
        care.prune(bucket, house.clock.now_us())
    assert [entry.name for entry in bucket.entries("")] == there


def test_an_empty_archive_has_a_status(archive: ArchiveConfig) -> None:
    assert care.status(bucket_of(archive)).owner is None
    assert list(care.points(bucket_of(archive))) == []


def test_an_empty_archive_is_not_sound(archive: ArchiveConfig) -> None:
    with pytest.raises(ArchiveError, match="there is nothing in the archive"):
        care.verify(bucket_of(archive))


def test_points_are_listed_with_what_a_restore_reads(house: House, archive: ArchiveConfig) -> None:
    points = list(care.points(bucket_of(archive)))
    assert len(points) > 5
    assert points[-1].partitions == 1 and points[-1].base_bytes > 0
    assert [point.number for point in points] == sorted(point.number for point in points)


def test_a_sound_archive_is_verified(house: House, archive: ArchiveConfig) -> None:
    house.close()
    found = care.verify(bucket_of(archive))
    assert found.log_objects > 10 and found.bases >= 2


def test_verifying_names_the_first_object_that_is_wrong(house: House, archive: ArchiveConfig) -> None:
    house.close()
    bucket = bucket_of(archive)
    for number in (5, 8):
        data = bytearray(bucket.read(log_name(number)) or b"")
        data[-40] ^= 1
        bucket.replace(log_name(number), bytes(data))
    with pytest.raises(DamagedObject, match="log/0000000000000005 is damaged"):
        care.verify(bucket)


def test_verifying_notices_an_object_that_is_gone(house: House, archive: ArchiveConfig) -> None:
    house.close()
    bucket = bucket_of(archive)
    bucket.delete([log_name(6)])
    with pytest.raises(DamagedObject, match="log/0000000000000006 is missing"):
        care.verify(bucket)


def test_verifying_notices_that_the_beginning_is_gone(house: House, archive: ArchiveConfig) -> None:
    house.close()
    bucket = bucket_of(archive)
    *before, last = [entry.name for entry in bucket.entries("log")]
    bucket.delete([*before, *(entry.name for entry in bucket.entries("index"))])
    with pytest.raises(DamagedObject, match=f"everything before {last} is missing"):
        care.verify(bucket)


def test_verifying_notices_an_object_of_another_history(house: House, archive: ArchiveConfig) -> None:
    house.close()
    bucket = bucket_of(archive)
    one = opened_log(bucket.read(log_name(4)) or b"", 4)
    _, forged = sealed_log(msgspec.structs.replace(one.head, time=one.head.time + 1), one.body)
    bucket.replace(log_name(4), forged)
    with pytest.raises(DamagedObject, match="log/0000000000000005 does not follow"):
        care.verify(bucket)


def test_pruning_keeps_every_point_since(house: House, archive: ArchiveConfig, tmp_path: Path) -> None:
    bucket = bucket_of(archive)
    before_us = house.clock.now_us() - 180 * SECOND
    would = care.prune(bucket, before_us, dry_run=True)
    there = {entry.name: entry.size for entry in bucket.entries("")}
    pruned = care.prune(bucket, before_us)
    assert pruned == would and pruned.objects > 5
    left = {entry.name for entry in bucket.entries("")}
    assert sum(size for name, size in there.items() if name not in left) == pruned.size
    assert pruned.oldest_point <= before_us
    house.close()
    care.verify(bucket)
    for minutes, items in ((0, 20), (60, 20), (120, 18), (180, 16)):
        at_us = house.clock.now_us() - minutes * SECOND
        again = restored(archive, tmp_path / f"restored-{minutes}", at_us=at_us)
        assert len(again.contents()) == items
        again.close()


@pytest.mark.parametrize("deleted", [1, 3, 8, 15])
def test_a_prune_that_was_killed_leaves_a_sound_archive_and_is_finished_by_the_next(
    house: House, archive: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    house.close()
    bucket, left = bucket_of(archive), [deleted]

    class Killed(Exception):
        pass

    class Dying(Bucket):
        def delete(self, names: list[str]) -> None:
            for name in names:
                if not left[0]:
                    raise Killed
                left[0] -= 1
                super().delete([name])

    before_us = house.clock.now_us() - 60 * SECOND
    would = care.prune(bucket, before_us, dry_run=True)
    assert would.objects > deleted
    with pytest.raises(Killed):
        care.prune(Dying(archive.url), before_us)
    care.verify(bucket)
    oldest = care.status(bucket).oldest_point
    again = restored(archive, tmp_path / "restored", at_us=oldest)
    again.close()
    assert care.prune(bucket, before_us).objects == would.objects - deleted
    care.verify(bucket)


def test_pruning_twice_deletes_nothing_more(house: House, archive: ArchiveConfig) -> None:
    before_us = house.clock.now_us() - 180 * SECOND
    care.prune(bucket_of(archive), before_us)
    assert care.prune(bucket_of(archive), before_us).objects == 0
