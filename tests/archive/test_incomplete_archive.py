"""The archive started over and the files are not copied yet: nobody may take this for a complete archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import bases
from querator.daemon.archive.bucket import Away
from querator.daemon.archive.standby import Doubt
from querator.daemon.store import StorageError
from tests.archive.looking import shipped, shipper_of
from tests.archive.test_standby import followed, follower, promoted
from tests.maintenance.house import OPERATOR, SECOND, House


@pytest.fixture
def started_over(live: House, standby: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """An owner whose archive started over, and whose disk has no room for a copy of its files."""

    def no_room(source: Path, directory: Path) -> None:
        raise StorageError("no room for a copy")

    def away(name: str, data: bytes) -> bytes | None:
        raise Away("the store is away")

    followed(live, standby)
    monkeypatch.setattr(limits, "SEGMENTS_HELD_MAX", 2)
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_SECONDS_MAX", 0.05)
    monkeypatch.setattr(bases, "_check_room", no_room)
    shipper = shipper_of(live)
    create, shipper.bucket.create = shipper.bucket.create, away  # type: ignore[method-assign]
    for number in range(8):
        live.produce(f"later {number}")
        live.flush()
        live.registry.storages["default"].roll()
    live.until(lambda: bool(shipper.trouble))
    shipper.bucket.create = create  # type: ignore[method-assign]
    live.until(lambda: bool(shipper.base_failures) and not shipper.trouble)
    live.advance("10m")
    wanted = shipper.ask()
    live.until(lambda: shipper.cuts_done >= wanted)
    standby.until(lambda: follower(standby).files.ledger.number >= shipper.ledger.number)
    standby.until(lambda: follower(standby).heartbeats.last.complete_to == shipper.shipped_us)
    standby.clock.set(live.clock.now_us())
    return live


def test_the_lag_of_an_owner_grows_and_its_health_has_a_warning(
    started_over: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipper_of(started_over).lag_seconds() >= 600
    lag = started_over.service.archive.lag()
    assert lag is not None and lag.seconds >= 600
    is_healthy, text = started_over.service.health(OPERATOR)
    assert is_healthy and "no copy of 2 of 2 partitions: no room for a copy" in text
    monkeypatch.undo()  # the disk has room again
    shipped(started_over)
    assert started_over.service.health(OPERATOR) == (True, "")
    assert shipper_of(started_over).lag_seconds() < 600


def test_a_standby_is_promoted_only_by_force_and_says_up_to_when_it_is_complete(
    started_over: House, standby: House, caplog: pytest.LogCaptureFixture
) -> None:
    started_over.create("later")  # newer objects do not make the old partitions complete
    shipper = shipper_of(started_over)
    standby.until(lambda: follower(standby).files.ledger.time > started_over.clock.now_us() - SECOND)
    standby.until(lambda: follower(standby).files.ledger.number >= shipper.ledger.number)
    assert standby.service.archive.lag().seconds >= 600  # type: ignore[union-attr]
    assert "no copy of 2 partitions" in standby.service.health(OPERATOR)[1]
    with pytest.raises(Doubt, match=r"q/0 \(complete up to 2027-01-15"):
        follower(standby).promote(force=False)
    promoted(standby, force=True)
    assert {"1", "2"} <= set(standby.contents()) and "later 7" not in standby.contents()
    assert any(
        record.message == "a partition is not complete"
        and str(vars(record)["partition"]).startswith("q/0 (complete up to")
        for record in caplog.records
    )


def test_a_standby_that_has_no_file_at_all_says_so(
    started_over: House, open_house: Callable[..., House], archive: ArchiveConfig
) -> None:
    late = open_house("late", archive=archive, standby=True)
    late.clock.set(started_over.clock.now_us())
    late.until(lambda: follower(late).heartbeats.skew_us() == 0)
    with pytest.raises(Doubt, match=r"q/0 \(no copy\)"):
        follower(late).promote(force=False)
