"""Which data directories may take an archive over. The owner must not be replaced by a daemon that cannot go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from querator.config import ArchiveConfig
from querator.daemon.archive import Away, Bucket, ownership, restoring, shipping
from querator.daemon.archive.ledger import Ledger, latest, log_entries
from querator.daemon.archive.objects import HEARTBEAT, LOG, LogHead, log_name, sealed_log
from querator.errors import Conflict
from tests.archive.looking import bucket_of, restored, shipped, shipper_of
from tests.maintenance.house import House

OpenHouse = Callable[..., House]


@pytest.fixture
def owner(open_house: OpenHouse, archive: ArchiveConfig) -> House:
    house = open_house("live", "default", archive=archive)
    house.create()
    house.produce("1", "2")
    shipped(house)
    return house


def refusal(open_house: OpenHouse, archive: ArchiveConfig, owner: House) -> Conflict:
    """The error of a daemon that wants to take over. The owner stays the owner."""
    with pytest.raises(Conflict) as caught:
        open_house("other", "default", archive=archive, claim=True)
    assert latest(bucket_of(archive)).owner == shipper_of(owner).owner
    owner.produce("3")
    shipped(owner)
    return caught.value


def test_an_empty_directory_does_not_replace_the_owner(
    open_house: OpenHouse, archive: ArchiveConfig, owner: House
) -> None:
    error = refusal(open_house, archive, owner)
    assert "it has nothing of the archive" in error.message
    assert "querator archive restore" in error.hint and "--standby" in error.hint and "--start-over" in error.hint


def test_a_directory_that_the_owner_has_left_behind_does_not_replace_it(
    open_house: OpenHouse, archive: ArchiveConfig, owner: House, tmp_path: Path
) -> None:
    restored(archive, tmp_path / "other").close()
    owner.produce("later")
    shipped(owner)
    assert "the archive goes on to" in refusal(open_house, archive, owner).message


def test_a_directory_without_the_files_does_not_replace_the_owner(
    open_house: OpenHouse, archive: ArchiveConfig, owner: House, tmp_path: Path
) -> None:
    again = restored(archive, tmp_path / "other")
    file = again.file()
    again.close()
    file.unlink()
    assert "it has no file of partition" in refusal(open_house, archive, owner).message


def test_an_unfinished_restore_does_not_replace_the_owner(
    open_house: OpenHouse, archive: ArchiveConfig, owner: House, tmp_path: Path
) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        restoring.restore(bucket_of(archive), tmp_path / "other", progress=interrupt)
    error = refusal(open_house, archive, owner)
    assert "was interrupted" in error.message and "repeat" in error.hint


def test_a_lost_catalog_is_noticed_before_the_owner_is_replaced(
    open_house: OpenHouse, archive: ArchiveConfig, owner: House, tmp_path: Path
) -> None:
    restored(archive, tmp_path / "other").close()
    (tmp_path / "other" / "catalog.duckdb").unlink()
    with pytest.raises(Exception, match="the catalog is missing or empty"):
        open_house("other", "default", archive=archive, claim=True)
    assert latest(bucket_of(archive)).owner == shipper_of(owner).owner


def test_an_owner_whose_directory_was_emptied_does_not_start_over_by_itself(
    open_house: OpenHouse, archive: ArchiveConfig, owner: House
) -> None:
    owner.close()
    for path in [owner.directory / "catalog.duckdb", *(owner.directory / "default").rglob("*")]:
        if path.is_file():
            path.unlink()
    with pytest.raises(Conflict, match="it has no file of partition"):
        open_house("live", "default", archive=archive)


def test_a_restored_directory_continues_an_archive_whose_owner_died_in_a_cut(
    open_house: OpenHouse, archive: ArchiveConfig, owner: House, tmp_path: Path
) -> None:
    owner.close()
    bucket = bucket_of(archive)
    end = latest(bucket)
    assert end.owner is not None
    head = LogHead(
        number=end.number + 1,
        epoch=end.epoch,
        owner=end.owner,
        kind=LOG,
        time=end.time,
        previous=end.sha256,
        is_point=False,
    )
    bucket.create(log_name(end.number + 1), sealed_log(head, b"")[1])
    restored(archive, tmp_path / "other").close()
    other = open_house("other", "default", archive=archive, claim=True)
    assert sorted(other.contents()) == ["1", "2"]


@pytest.fixture(params=["at once", "after a failure", "although it looks like a failure"])
def claims_succeed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Decides how claims succeed from the call on."""

    def apply() -> None:
        failures: list[int] = []

        def flaky(bucket: Bucket, ledger: Ledger, *words: Any) -> bool:
            if request.param == "at once" or failures:
                return ownership.claim(bucket, ledger, *words)
            failures.append(ledger.number)
            if request.param != "after a failure":
                assert ownership.claim(bucket, ledger, *words)
            raise Away("503")

        monkeypatch.setattr(shipping, "claim", flaky)

    return apply


@pytest.mark.parametrize("is_shorter", [False, True])
def test_a_claim_that_was_killed_before_its_first_cut_still_starts_over(
    open_house: OpenHouse,
    archive: ArchiveConfig,
    owner: House,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_shorter: bool,
    claims_succeed: Callable[[], None],
) -> None:
    """The directory is older than the archive, so the records of the archive do not lead to its files."""
    restored(archive, tmp_path / "other").close()
    owner.lease(1)
    owner.produce("later", "and later")
    shipped(owner)
    owner.service.lost_archive = lambda error: None
    bucket = bucket_of(archive)
    if is_shorter:
        owner.close()
        bucket.delete([log_name(latest(bucket).number)])
    claims: list[int] = []

    def claimed(bucket: Bucket, ledger: Ledger, *words: Any) -> bool:
        is_ours = ownership.claim(bucket, ledger, *words)
        claims.append(ledger.number)
        shutil.copytree(tmp_path / "other", tmp_path / "killed")
        return is_ours

    with monkeypatch.context() as patch:
        patch.setattr(shipping, "claim", claimed)
        open_house("other", "default", archive=archive, claim=True, start_over=True).close()
    (claim,) = claims
    bucket.delete([entry.name for number, entry in log_entries(bucket, after=claim)])
    bucket.delete([HEARTBEAT])
    claims_succeed()
    house = open_house("killed", "default", archive=archive)
    house.produce("3")
    shipped(house)
    there = sorted(house.contents())
    assert there == ["1", "2", "3"]
    house.close()
    again = restored(archive, tmp_path / "restored")
    assert sorted(again.contents()) == there
    again.close()
