"""A log object that is missing between others is damage. No command takes it for the end of the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from querator import limits, times
from querator.config import ArchiveConfig
from querator.daemon.archive import ArchiveError, Bucket, care, restoring
from querator.daemon.archive.ledger import latest, read_log, save_index
from querator.daemon.archive.objects import log_name
from tests.archive.looking import bucket_of, pruned, restored, shipped, shipper_of
from tests.daemons import querator
from tests.maintenance.house import House

OpenHouse = Callable[..., House]
MISSING = 8
NAMED = f"{log_name(MISSING)} is missing"


@pytest.fixture
def house(open_house: OpenHouse, archive: ArchiveConfig) -> House:
    """A queue with one item in each of a dozen log objects, and no index."""
    house = open_house("live", "default", archive=archive)
    house.create()
    while shipper_of(house).ledger.number < MISSING + 4:
        house.produce(f"{shipper_of(house).ledger.number}")
        shipped(house)
        house.advance("1m")
    return house


@pytest.fixture
def holed(house: House, archive: ArchiveConfig) -> Bucket:
    house.close()
    bucket = bucket_of(archive)
    assert not list(bucket.entries("index/"))
    bucket.delete([log_name(MISSING)])
    return bucket


def test_every_reader_names_the_first_object_that_is_missing(holed: Bucket, tmp_path: Path) -> None:
    readers: list[Callable[[], object]] = [
        lambda: latest(holed),
        lambda: care.status(holed),
        lambda: list(care.points(holed)),
        lambda: restoring.restore(holed, tmp_path / "restored"),
    ]
    for read in readers:
        with pytest.raises(ArchiveError, match=NAMED) as caught:
            read()
        assert "querator archive restore --at" in caught.value.hint


def test_the_hint_of_a_missing_object_leads_to_what_was_there_before_it(
    holed: Bucket, archive: ArchiveConfig, tmp_path: Path
) -> None:
    done = querator(tmp_path, "archive", "restore", "--archive", archive.url, "--to", str(tmp_path / "restored"))
    assert done.returncode == 1 and NAMED in done.stderr
    before = read_log(holed, MISSING - 1)
    assert before is not None and f"--at {times.text(before.head.time)}" in done.stderr
    again = restored(archive, tmp_path / "earlier", at_us=before.head.time)
    assert again.contents()
    again.close()
    with pytest.raises(ArchiveError, match=NAMED):
        restoring.restore(holed, tmp_path / "later", at_us=before.head.time + 1)


def test_the_list_shows_the_points_before_a_missing_object(
    holed: Bucket, archive: ArchiveConfig, tmp_path: Path
) -> None:
    done = querator(tmp_path, "archive", "list", "--archive", archive.url, "--output", "ndjson")
    assert done.returncode == 1 and NAMED in done.stderr
    assert f'"number":{MISSING - 1},' in done.stdout.replace(" ", "")


def test_a_new_standby_does_not_start_on_a_log_with_a_missing_object(
    holed: Bucket, open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    with pytest.raises(ArchiveError, match=NAMED):
        open_house("standby", "default", archive=archive, standby=True)


def test_a_standby_says_which_object_it_cannot_read(
    house: House, open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    standby = open_house("standby", "default", archive=archive, standby=True)
    role = standby.service.archive.standby
    assert role is not None
    bucket = bucket_of(archive)
    with role.standby._following:
        number = role.standby.files.ledger.number + 1
        for text in ("a", "b"):
            house.produce(text)
            shipped(house)
        bucket.delete([log_name(number)])
    house.advance("1m")
    standby.until(lambda: f"{log_name(number)} is missing" in role.health()[1])


def test_a_number_that_was_pruned_is_not_missing(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 2)
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_BYTES", 1)
    house = open_house("live", "default", archive=archive)
    house.create()
    bucket = pruned(house, archive)
    house.close()
    assert care.status(bucket).number == latest(bucket).number == list(care.points(bucket))[-1].number


def test_a_list_that_lags_makes_no_object_missing(house: House, archive: ArchiveConfig) -> None:
    house.close()
    bucket = bucket_of(archive)
    end = latest(bucket).number

    class Lagging(Bucket):
        """Shows objects that were not there when they were read: they were created in between."""

        def has(self, name: str) -> bool:
            return name == log_name(end + 1) or super().has(name)

    late = Lagging(archive.url)
    late.create(log_name(end + 2), b"x")
    assert latest(late).number == end


def test_the_beginning_of_the_log_may_not_be_missing(house: House, archive: ArchiveConfig, tmp_path: Path) -> None:
    house.close()
    bucket = bucket_of(archive)
    bucket.delete([log_name(1)])
    with pytest.raises(ArchiveError, match=f"everything before {log_name(2)} is missing"):
        restoring.restore(bucket, tmp_path / "restored")
    with pytest.raises(ArchiveError, match=f"{log_name(1)} is missing"):
        care.status(bucket)


def test_objects_of_others_are_no_part_of_the_log(house: House, archive: ArchiveConfig) -> None:
    house.close()
    bucket = bucket_of(archive)
    for name in ("log/foo", "index/foo", "base/foo"):
        bucket.create(name, b"x")
    care.verify(bucket)
    care.status(bucket)
    save_index(bucket, latest(bucket))
    assert care.prune(bucket, house.clock.now_us()).objects > 0
    assert bucket.has("log/foo") and bucket.has("index/foo") and bucket.has("base/foo")
