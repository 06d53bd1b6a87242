"""The newest objects of an archive vanish. Nothing after them shows it, but heartbeats and data directories do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from querator.config import ArchiveConfig
from querator.daemon.archive import ArchiveError, Bucket, care, ownership, restoring
from querator.daemon.archive.ledger import LostTail, heartbeat, last_readable, latest, read_log
from querator.daemon.archive.objects import HEARTBEAT, log_name
from querator.daemon.archive.ownership import read_identity
from querator.daemon.archive.standby import Doubt
from querator.errors import Conflict, Replaced
from tests.archive.looking import bucket_of, restored, shipped, shipper_of
from tests.archive.object_stores import S3
from tests.archive.test_standby import followed, follower, promoted
from tests.daemons import Daemon, querator
from tests.maintenance.house import OPERATOR, House
from tests.waiting import until

OpenHouse = Callable[..., House]


@pytest.fixture(params=["directory", "s3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveConfig:
    url, options = f"file://{tmp_path / 'archive'}", {}
    if request.param == "s3":
        s3: S3 = request.getfixturevalue("s3")
        url, options = s3.archive()
    return ArchiveConfig(url, options=options, interval=0.01, heartbeat=0.2)


def cut_off(archive: ArchiveConfig, count: int = 2) -> int:
    """Deletes the newest log objects. Returns the number of the first of them."""
    bucket = bucket_of(archive)
    end = last_readable(bucket).number
    bucket.delete([log_name(number) for number in range(end - count + 1, end + 1)])
    return end - count + 1


@pytest.fixture
def closed(live: House, archive: ArchiveConfig) -> House:
    """An owner that has stopped in order, after three more cuts."""
    for text in ("3", "4", "5"):
        live.produce(text)
        shipped(live)
        live.advance("1s")
    live.close()
    return live


def reopened(open_house: OpenHouse, archive: ArchiveConfig, **settings: object) -> House:
    return open_house("live", archive=archive, **settings)


def beat_reached(house: House, archive: ArchiveConfig) -> None:
    """Waits until a heartbeat names the last object."""
    bucket, shipper = bucket_of(archive), shipper_of(house)
    house.until(lambda: (beat := heartbeat(bucket)) is not None and beat.number == shipper.ledger.number)


def test_every_reader_says_that_the_newest_objects_are_missing(
    closed: House, archive: ArchiveConfig, tmp_path: Path
) -> None:
    first, bucket = cut_off(archive), bucket_of(archive)
    readers: list[Callable[[], object]] = [
        lambda: latest(bucket),
        lambda: care.status(bucket),
        lambda: list(care.points(bucket)),
        lambda: care.verify(bucket),
        lambda: restoring.restore(bucket, tmp_path / "restored"),
    ]
    for read in readers:
        with pytest.raises(ArchiveError, match=f"{log_name(first)} is missing") as caught:
            read()
        assert "querator archive restore --at" in caught.value.hint
    before = read_log(bucket, first - 1)
    assert before is not None
    again = restored(archive, tmp_path / "earlier", at_us=before.head.time)
    assert "1" in again.contents()
    again.close()


def test_a_command_shows_the_way_out(closed: House, archive: ArchiveConfig, tmp_path: Path) -> None:
    if archive.options:
        pytest.skip("a command line has no options of a store")
    cut_off(archive)
    done = querator(tmp_path, "archive", "status", "--archive", archive.url)
    assert done.returncode == 1 and "whose owner had written up to" in done.stderr and "--at" in done.stderr


def test_an_interrupted_restore_does_not_go_on_with_less(closed: House, archive: ArchiveConfig, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int) -> None:
        raise Interrupted

    bucket = bucket_of(archive)
    with pytest.raises(Interrupted):
        restoring.restore(bucket, tmp_path / "restored", progress=interrupt)
    cut_off(archive)
    bucket.delete([HEARTBEAT])  # also if only the directory knows
    with pytest.raises(LostTail):
        restoring.restore(bucket, tmp_path / "restored")


@pytest.mark.parametrize("witness", ["heartbeat", "directory"])
def test_an_owner_that_is_restarted_does_not_give_lost_numbers_to_others(
    closed: House, open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path, witness: str
) -> None:
    first, bucket = cut_off(archive), bucket_of(archive)
    if witness == "directory":
        bucket.delete([HEARTBEAT])
    else:
        (closed.directory / "archive.json").write_bytes(
            (closed.directory / "archive.json").read_bytes().replace(b'"number"', b'"forgotten"')
        )
    again = reopened(open_house, archive)
    again.produce("6")  # it serves, as while the store is away
    again.until(lambda: shipper_of(again).is_damaged)
    assert "--start-over" in again.service.health(OPERATOR)[1]
    assert last_readable(bucket).number == first - 1
    again.close()
    again = reopened(open_house, archive, start_over=True)
    again.produce("7")
    shipped(again)
    assert not shipper_of(again).trouble
    care.verify(bucket)
    there = again.contents()
    again.close()
    house = restored(archive, tmp_path / "restored")
    assert sorted(house.contents()) == sorted(there) and {"6", "7"} <= set(there)
    house.close()


def test_an_owner_that_starts_over_does_not_trust_bases_from_before_the_loss(
    closed: House, open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path
) -> None:
    """The lost objects said that a file was edited while the daemon was stopped."""
    before = last_readable(bucket_of(archive)).number
    path = next(
        closed.directory / "default" / f"{placement.uuid}.duckdb"
        for placement in (partition.placement for partition in closed.registry.logicals["q"].partitions)
    )
    with duckdb.connect(str(path)) as connection:
        connection.execute("delete from items")
    again = reopened(open_house, archive)
    shipped(again)
    there = sorted(again.contents())
    assert there and len(there) < 5
    again.close()
    cut_off(archive, last_readable(bucket_of(archive)).number - before)
    again = reopened(open_house, archive, start_over=True)
    shipped(again)
    again.close()
    house = restored(archive, tmp_path / "restored")
    assert sorted(house.contents()) == there
    house.close()


def test_an_owner_whose_archive_was_emptied_waits_for_it(
    closed: House, open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    bucket = bucket_of(archive)
    kept = {entry.name: bucket.read(entry.name) for entry in bucket.entries("")}
    bucket.delete(list(kept))
    again = reopened(open_house, archive)
    again.until(lambda: shipper_of(again).is_damaged)
    assert not list(bucket.entries("log/"))
    for name, data in kept.items():
        bucket.replace(name, data or b"")
    again.produce("6")
    shipped(again)
    assert shipper_of(again).ledger.epoch == 2 and not shipper_of(again).trouble


def test_a_running_owner_reports_it_names_the_way_out_and_is_critical(live: House, archive: ArchiveConfig) -> None:
    live.produce("3")
    shipped(live)
    first = cut_off(archive)
    live.until(lambda: shipper_of(live).is_damaged)
    live.produce("4")
    lag = live.service.archive.lag()
    assert lag is not None and lag.is_damaged
    assert "--start-over" in live.service.health(OPERATOR)[1]
    assert last_readable(bucket_of(archive)).number == first - 1


def test_a_running_owner_ends_when_another_directory_has_started_over(
    live: House, open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path
) -> None:
    """Its next number stays free, because the other daemon goes on from a shorter log."""
    restored(archive, tmp_path / "other").close()
    for number in range(20):
        live.produce(f"{number}")
        shipped(live)
    beat_reached(live, archive)
    lost: list[object] = []
    live.service.lost_archive = lost.append
    cut_off(archive, 20)
    live.until(lambda: shipper_of(live).is_damaged)
    other = open_house("other", archive=archive, claim=True, start_over=True)
    live.until(lambda: bool(lost))
    assert isinstance(lost[0], Replaced)
    live.begin_produce("lost", timeout="1s")
    assert "lost" not in other.contents()


def test_an_owner_whose_disk_is_full_ships_on(live: House, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []

    def full(path: Path, data: bytes) -> None:
        noted.append(1)
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(ownership, "replace_file", full)
    live.produce("3")
    live.until(lambda: bool(noted))
    live.produce("4")
    shipped(live)
    monkeypatch.undo()


def test_check_daemon_is_critical(tmp_path: Path) -> None:
    archive = ArchiveConfig(f"file://{tmp_path / 'archive'}")
    config = tmp_path / "config.toml"
    config.write_text(f'[archive]\nurl = "{archive.url}"\ninterval = "10ms"\nheartbeat = "100ms"\n')
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.client.create_queue("q")
        until(lambda: _is_quiet(archive))
        cut_off(archive, 1)
        until(lambda: daemon.client.health()["lag"]["is_damaged"])
        done = querator(tmp_path, "check", "daemon", "--socket", str(daemon.socket))
    assert done.returncode == 2 and "is missing" in done.stdout and "--start-over" in done.stdout


def _is_quiet(archive: ArchiveConfig) -> bool:
    """Whether the owner has put nothing between two heartbeats."""
    first = heartbeat(bucket_of(archive))
    if first is None or first.number < 3:
        return False
    until(lambda: (beat := heartbeat(bucket_of(archive))) is not None and beat.beats > first.beats)
    return last_readable(bucket_of(archive)).number == first.number


def test_a_standby_is_promoted_onto_a_shorter_log_only_by_force(
    live: House, standby: House, archive: ArchiveConfig
) -> None:
    followed(live, standby)
    beat_reached(live, archive)
    with follower(standby)._following:  # it has not read what is lost
        for text in ("3", "4"):
            live.produce(text)
            shipped(live)
        beat_reached(live, archive)
        live.close()
        first = cut_off(archive)
    standby.until(lambda: f"{log_name(first)} is missing" in standby.service.health(OPERATOR)[1])
    lag = standby.service.archive.lag()
    assert lag is not None and lag.is_damaged
    with pytest.raises(Doubt, match=f"{log_name(first)} is missing"):
        follower(standby).promote(force=False)
    promoted(standby, force=True)
    assert "1" in standby.contents()
    standby.produce("after")
    shipped(standby)
    care.verify(bucket_of(archive))


def test_a_standby_that_has_read_what_is_lost_can_become_the_last_state(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path
) -> None:
    live.produce("3", "4")
    followed(live, standby)
    live.close()
    first = cut_off(archive)
    standby.until(lambda: follower(standby).is_damaged)
    with pytest.raises(Conflict, match="is missing"):
        follower(standby).promote(force=True)
    standby.close()
    bucket_of(archive).delete([HEARTBEAT])
    with pytest.raises(Conflict, match=f"{log_name(first)} is missing"):
        open_house("standby", archive=archive, claim=True)
    heir = open_house("standby", archive=archive, claim=True, start_over=True)
    assert sorted(heir.contents()) == ["1", "2", "3", "4"]
    shipped(heir)
    heir.close()
    again = restored(archive, tmp_path / "restored")
    assert sorted(again.contents()) == ["1", "2", "3", "4"]
    again.close()


def test_a_standby_that_was_down_meanwhile_waits_and_does_not_take_another_log_for_its_own(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    live.produce("3", "4")
    followed(live, standby)
    standby.close()
    live.close()
    cut_off(archive)
    number = read_identity(standby.directory).number
    bucket = bucket_of(archive)
    owner = reopened(open_house, archive, start_over=True)
    while last_readable(bucket).number <= number:
        owner.produce("another")
        shipped(owner)
    with pytest.raises(Conflict, match="has started over") as caught:
        open_house("standby", archive=archive, standby=True)
    assert "new data directory" in caught.value.hint


def test_a_standby_does_not_start_on_a_log_that_is_shorter_than_its_files(
    live: House, standby: House, archive: ArchiveConfig
) -> None:
    from querator.daemon.archive.ledger import Lost
    from querator.daemon.archive.standby import Standby

    live.produce("3", "4")
    followed(live, standby)
    standby.close()
    live.close()
    cut_off(archive)
    bucket_of(archive).delete([HEARTBEAT])
    config = standby.config
    again = Standby(archive, config.data, config.storages, standby.clock, "", lambda: None)
    with pytest.raises(Lost, match="--start-over"):
        again.start()


def test_a_heartbeat_of_a_daemon_that_was_replaced_proves_nothing(
    closed: House, open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    bucket: Bucket = bucket_of(archive)
    old = bucket.read(HEARTBEAT) or b""
    cut_off(archive)
    again = reopened(open_house, archive, start_over=True)
    again.close()
    bucket.replace(HEARTBEAT, old)
    beat = heartbeat(bucket)
    assert beat is not None and beat.epoch == 1
    while last_readable(bucket).number >= beat.number:
        bucket.delete([log_name(last_readable(bucket).number)])
    latest(bucket)
