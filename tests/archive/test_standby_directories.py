"""What a directory of a standby may be used for after a crash, and after it was promoted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from querator.config import ArchiveConfig
from querator.daemon.archive import Bucket, standby_files
from querator.daemon.archive import standby as standing_by
from querator.daemon.archive.ledger import Ledger, log_entries
from querator.daemon.archive.objects import HEARTBEAT, Base, log_name, opened_log, sealed_log
from querator.daemon.archive.ownership import claim
from querator.daemon.archive.restoring import place_base
from querator.daemon.archive.standby_files import StandbyFiles
from querator.daemon.store import Storage, StorageError
from querator.errors import Conflict
from tests.archive.looking import bucket_of, restored, shipped, shipper_of
from tests.archive.test_standby import followed, follower, promoted
from tests.maintenance.house import House

OpenHouse = Callable[..., House]


def test_a_standby_that_was_killed_after_its_claim_lacks_nothing_as_the_owner(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(live, standby)
    with follower(standby)._following:
        for number in range(20):
            live.produce(f"late {number}")
        shipped(live)

    def claimed(*words: Any) -> bool:
        is_ours = claim(*words)
        shutil.copytree(standby.directory, standby.directory.with_name("killed"))
        return is_ours

    monkeypatch.setattr(standing_by, "claim", claimed)
    promoted(standby).close()
    monkeypatch.undo()
    # The same directory again: systemd may start it without --standby, and it owns the archive.
    again = open_house("killed", archive=archive)
    assert sorted(again.contents()) == sorted(["1", "2", *(f"late {number}" for number in range(20))])


def test_an_unfinished_cut_of_the_owner_does_not_hide_what_comes_after_a_killed_claim(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of the unfinished cut have the numbers of records that the new owner writes."""
    followed(live, standby)
    live.service.lost_archive = lambda error: None
    bucket, claims = bucket_of(archive), []
    with follower(standby)._following:
        live.produce("not acknowledged", "neither")
        shipped(live)
        number = shipper_of(live).ledger.number
        one = opened_log(bucket.read(log_name(number)) or b"", number)
        bucket.replace(log_name(number), sealed_log(msgspec.structs.replace(one.head, is_point=False), one.body)[1])

    def claimed(bucket: Bucket, ledger: Ledger, *words: Any) -> bool:
        is_ours = claim(bucket, ledger, *words)
        claims.append(ledger.number)
        shutil.copytree(standby.directory, standby.directory.with_name("killed"))
        return is_ours

    with monkeypatch.context() as patch:
        patch.setattr(standing_by, "claim", claimed)
        promoted(standby).close()
    bucket.delete([entry.name for number, entry in log_entries(bucket, after=claims[0])])
    bucket.delete([HEARTBEAT])
    again = open_house("killed", archive=archive)
    for text in ("3", "4"):
        again.produce(text)
        shipped(again)
    there = sorted(again.contents())
    assert there == ["1", "2", "3", "4"]
    again.close()
    found = restored(archive, standby.directory.with_name("restored"))
    assert sorted(found.contents()) == there
    found.close()


def test_a_standby_that_was_killed_after_its_claim_may_go_on_as_a_standby(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(live, standby)

    def claimed(*words: Any) -> bool:
        is_ours = claim(*words)
        shutil.copytree(standby.directory, standby.directory.with_name("killed"))
        return is_ours

    monkeypatch.setattr(standing_by, "claim", claimed)
    promoted(standby).close()
    monkeypatch.undo()
    promoted(open_house("killed", archive=archive, standby=True), force=True).produce("3")


def test_a_standby_that_was_killed_while_it_made_its_files_goes_on(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house("live")
    house.create(partitions=2)
    house.produce("1", "2")
    house.close()
    live = open_house("live", archive=archive)  # its files are older than the archive, and so they have bases
    shipped(live)
    copied: list[Path] = []

    def placed(bucket: Bucket, storage: Storage, base: Base) -> None:
        place_base(bucket, storage, base)
        if not copied:
            copied.append(live.directory.with_name("killed"))
            shutil.copytree(live.directory.with_name("second"), copied[0])

    monkeypatch.setattr(standby_files, "place_base", placed)
    open_house("second", archive=archive, standby=True).close()
    assert (copied[0] / "catalog.duckdb").exists()
    again = open_house("killed", archive=archive, standby=True)
    live.produce("3")
    followed(live, again)
    promoted(again)
    assert sorted(again.contents()) == ["1", "2", "3"]


@pytest.mark.parametrize("settings", [{}, {"archive": None}], ids=["promoted", "without the archive"])
def test_files_that_an_owner_has_changed_are_followed_no_longer(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig, settings: dict[str, Any]
) -> None:
    followed(live, standby)
    if settings:
        standby.close()
        open_house("standby").close()
    else:
        promoted(standby).close()
    with pytest.raises(Conflict, match="is not the directory of a standby"):
        open_house("standby", archive=archive, standby=True)


def test_a_full_disk_is_noticed_before_the_owner_is_replaced(
    live: House, standby: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(live, standby)

    def full(files: StandbyFiles) -> None:
        raise StorageError("no space left on device")

    monkeypatch.setattr(StandbyFiles, "save", full)
    with pytest.raises(StorageError):
        follower(standby).promote(force=False)
    live.produce("3")
    shipped(live)
    monkeypatch.undo()
    promoted(standby)
    assert sorted(standby.contents()) == ["1", "2", "3"]
