"""A standby keeps files of its own up to date, and takes over with everything that the archive has."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from querator import limits
from querator.clock import SystemClock
from querator.config import ArchiveConfig
from querator.daemon import server
from querator.daemon.archive import Away, Bucket, clock_behind_us, standby_files
from querator.daemon.archive import standby as standing_by
from querator.daemon.archive.care import prune
from querator.daemon.archive.restoring import place_base
from querator.daemon.service import Service
from querator.errors import Conflict, QueratorError, Replaced
from querator.wire import messages as m
from tests.archive.looking import bucket_of, shipped, shipper_of
from tests.archive.object_stores import S3, FaultyProxy
from tests.daemons import QUERATOR, Daemon, clean_environment
from tests.maintenance.house import OPERATOR, SECOND, WAIT_SECONDS, House
from tests.waiting import until

OpenHouse = Callable[..., House]


def follower(house: House):  # type: ignore[no-untyped-def]
    role = house.service.archive.standby
    assert role is not None
    return role.standby


def has_taken(standby: House, number: int) -> bool:
    """Whether the files have this log object. The ledger is ahead of them while the lock is held."""
    files = follower(standby).files
    with files.lock:
        return bool(files.ledger.number >= number)


def followed(live: House, standby: House) -> None:
    shipped(live)
    number = shipper_of(live).ledger.number
    standby.until(lambda: has_taken(standby, number))
    standby.until(lambda: follower(standby).heartbeats.skew_us() is not None)


def compared(live: House, standby: House, skew_us: int) -> None:
    """Waits until the standby has noticed that its clock is ahead by this much."""
    followed(live, standby)
    standby.until(lambda: (follower(standby).heartbeats.skew_us() or 0) >= skew_us)


def promoted(standby: House, force: bool = False) -> House:
    standby.run(_promote(standby.service, force))
    standby.until(lambda: standby.service.archive.notes()[0].startswith("archive "))
    standby.registry = standby.service.registry
    return standby


async def _promote(service: Service, force: bool) -> None:
    service.archive.promote(force)


def test_a_standby_refuses_changes_and_names_the_owner(live: House, standby: House) -> None:
    error = standby.begin_produce("x").exception(WAIT_SECONDS)
    assert isinstance(error, QueratorError)
    assert error.message.endswith(f"the owner of the archive is {shipper_of(live).owner}")
    assert standby.service.health(OPERATOR)[0]
    assert "objects behind" in standby.service.archive.notes()[0]


def test_a_promoted_standby_offers_no_call_before_it_has_loaded_the_tokens(
    live: House, standby: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(live, standby)
    registry, offered = standby.service.registry, []
    blocking = registry.blocking

    async def watched(work: Callable[..., Any], *args: Any) -> Any:
        result = await blocking(work, *args)
        if work == registry.access.load:
            offered.append(dict(standby.service._hot))
        return result

    monkeypatch.setattr(registry, "blocking", watched)
    promoted(standby)
    assert offered == [{}]
    standby.produce("served")


def test_a_promoted_standby_has_everything_and_the_owner_is_replaced(live: House, standby: House) -> None:
    live.create("later")
    live.produce("3", queue="later")
    (lease,) = live.lease(1)
    followed(live, standby)
    lost: list[object] = []
    live.service.lost_archive = lost.append
    promoted(standby)
    assert sorted(standby.contents()) == ["1", "2"]
    assert standby.contents("later") == ["3"]
    standby.complete(lease.id).result(WAIT_SECONDS)
    standby.produce("4")
    live.begin_produce("lost", timeout="1s")
    live.until(lambda: bool(lost))
    assert isinstance(lost[0], Replaced)
    assert "lost" not in standby.contents()


def test_an_owner_that_nobody_uses_learns_that_it_was_replaced(live: House, standby: House) -> None:
    followed(live, standby)
    lost: list[object] = []
    live.service.lost_archive = lost.append
    promoted(standby)
    live.until(lambda: bool(lost))
    assert isinstance(lost[0], Replaced)


def test_taking_over_needs_no_new_bases(live: House, standby: House, archive: ArchiveConfig) -> None:
    followed(live, standby)
    promoted(standby)
    standby.produce("3")
    shipped(standby)
    assert shipper_of(standby).ledger.epoch == 2
    assert not list(bucket_of(archive).entries("base/"))


def test_a_claim_that_arrived_although_it_looked_like_a_failure_continues_the_archive(
    live: House, standby: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    followed(live, standby)
    bucket = follower(standby).bucket
    create, tries = bucket.create, []

    def create_and_fail(name: str, data: bytes) -> object:
        tries.append(name)
        found = create(name, data)
        if len(tries) == 1:
            raise Away("the answer was lost")
        return found

    monkeypatch.setattr(bucket, "create", create_and_fail)
    monkeypatch.setattr(limits, "PROMOTION_RETRY_SECONDS", 0.0)
    promoted(standby)
    assert len(tries) == 1 and "does not continue it" not in caplog.text


def test_a_standby_that_was_restarted_goes_on(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    followed(live, standby)
    standby.close()
    live.produce("3")
    shipped(live)
    again = open_house("standby", archive=archive, standby=True)
    followed(live, again)
    promoted(again)
    assert sorted(again.contents()) == ["1", "2", "3"]


def test_a_partition_whose_file_was_replaced_is_followed(live: House, standby: House, tmp_path: Path) -> None:
    assert live.job("backup", to=str(tmp_path / "backup")).state == "done"
    live.produce("gone", "gone too")
    followed(live, standby)
    assert live.job("restore", from_=str(tmp_path / "backup")).state == "done"
    live.produce("3")
    followed(live, standby)
    promoted(standby)
    assert sorted(standby.contents()) == ["1", "2", "3"]


def test_a_standby_detaches_files_that_became_empty(
    live: House, standby: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STANDBY_SAVE_SECONDS", 0.01)
    names = [f"empty-{number}" for number in range(5)]
    for name in names:
        live.create(name)
        live.produce("1", queue=name)
    followed(live, standby)
    stores = [follower(standby).files.stores[live.partition(0, name).placement.uuid] for name in names]
    standby.until(lambda: not any(store.is_resting for store in stores))
    for name in names:
        (item,) = live.lease(1, queue=name)
        live.complete(item.id, queue=name).result(WAIT_SECONDS)
    followed(live, standby)
    monkeypatch.setattr(limits, "FORGET_EVERY_US", 0)
    standby.until(lambda: all(store.is_resting for store in stores))
    assert sorted(standby.contents()) == ["1", "2"]
    live.produce("again", queue=names[0])
    followed(live, standby)
    promoted(standby)
    assert standby.contents(names[0]) == ["again"]
    assert standby.contents(names[1]) == []


def test_a_queue_that_was_deleted_is_gone(live: House, standby: House) -> None:
    live.create("gone")
    live.produce("x", queue="gone")
    followed(live, standby)
    live.call("queues.delete", m.QueuesDeleteRequest(queue_name="gone", force=True))
    followed(live, standby)
    promoted(standby)
    assert list(standby.registry.queues) == ["q"]


def test_a_lease_lasts_as_long_as_it_was_given_although_the_clock_of_the_standby_is_ahead(
    live: House, standby: House
) -> None:
    standby.clock.set(live.clock.now_us() + 5 * SECOND)
    (lease,) = live.lease(1)
    compared(live, standby, 5 * SECOND)
    promoted(standby)
    assert standby.clock.now_us() <= live.clock.now_us()
    standby.advance("59s")
    standby.complete(lease.id).result(WAIT_SECONDS)


def test_the_clock_of_a_promoted_daemon_stays_set_back_after_a_restart(live: House, standby: House) -> None:
    assert clock_behind_us(standby.directory) == 0
    standby.clock.set(live.clock.now_us() + 5 * SECOND)
    compared(live, standby, 5 * SECOND)
    promoted(standby)
    standby.close()
    behind_us = clock_behind_us(standby.directory)
    assert behind_us >= 4.9 * SECOND
    clock = server._clock(dataclasses.replace(standby.config, standby=False))
    assert abs(SystemClock().now_us() - behind_us - clock.now_us()) < SECOND


def refused(standby: House) -> str:
    """Why a promotion without force was refused, as `querator daemon promote` reads it."""
    standby.run(_promote(standby.service, False))
    standby.until(lambda: len(standby.service.archive.notes()) == 2)
    return standby.service.archive.notes()[1]


@pytest.mark.parametrize("ahead", [5, -5])
def test_the_lag_does_not_depend_on_the_clock_of_the_standby(
    live: House, standby: House, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    standby.clock.set(live.clock.now_us() + ahead * SECOND)
    standby.until(lambda: abs((follower(standby).heartbeats.skew_us() or 0) - ahead * SECOND) < SECOND)
    late = follower(standby).replayed()._replace(until_us=live.clock.now_us() - 3 * SECOND)
    monkeypatch.setattr(follower(standby), "replayed", lambda: late)
    lag = standby.service.archive.lag()
    assert lag is not None and 2 < lag.seconds < 4


def test_clocks_that_differ_too_much_need_force(live: House, standby: House) -> None:
    standby.clock.set(live.clock.now_us() + 60 * SECOND)
    compared(live, standby, 60 * SECOND)
    with pytest.raises(Conflict, match=r"is 60\.0s"):
        follower(standby).promote(force=False)
    assert refused(standby).endswith("; --force takes over anyway")
    promoted(standby, force=True)
    assert sorted(standby.contents()) == ["1", "2"]


def test_a_silent_owner_is_replaced_by_itself(live: House, open_house: OpenHouse, archive: ArchiveConfig) -> None:
    settings = dataclasses.replace(archive, takeover=1.0, heartbeat=0.1)
    standby = open_house("standby", archive=settings, standby=True)
    standby.until(lambda: follower(standby).heartbeats.skew_us() is not None)
    live.close()
    standby.until(lambda: standby.service.archive.notes()[0].startswith("archive "))
    assert sorted(standby.contents()) == ["1", "2"]


@pytest.mark.parametrize("commands", [("PUT",), ("PUT", "GET", "HEAD")])
def test_an_outage_of_the_store_is_not_taken_for_a_silent_owner(
    open_house: OpenHouse, s3: S3, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, commands: tuple[str, ...]
) -> None:
    """The standby notices first that the store is back, and the owner has work that nobody else has."""
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_SECONDS_MAX", 0.5)
    monkeypatch.setattr(limits, "HEARTBEAT_LOOK_SECONDS", 0.1)
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.05, heartbeat=0.2, takeover=2.0, options=options)
    live = open_house("live", archive=archive)
    live.create()
    standby = open_house("standby", archive=archive, standby=True)
    followed(live, standby)
    lost: list[object] = []
    live.service.lost_archive = lost.append
    proxy.fault = lambda handler, body: handler.command in commands and handler.refuse()
    live.produce("only here")
    live.until(lambda: shipper_of(live).away_seconds() > 5)
    assert standby.service.archive.is_standby
    seen = follower(standby).heartbeats
    beats = seen.last.beats
    proxy.fault = None
    live.until(lambda: bool(lost) or seen.last.beats > beats)
    assert not lost
    followed(live, standby)
    assert standby.service.archive.is_standby and shipper_of(live).ledger.epoch == 1


def test_an_owner_that_rarely_copies_still_sends_heartbeats(open_house: OpenHouse, archive: ArchiveConfig) -> None:
    live = open_house("live", archive=dataclasses.replace(archive, interval=3_600.0, heartbeat=0.05))
    live.create()
    shipped(live)
    standby = open_house("standby", archive=archive, standby=True)
    seen = follower(standby).heartbeats
    standby.until(lambda: seen.last is not None and seen.last.beats > 3)


def test_a_standby_that_rarely_reads_the_log_still_watches_for_heartbeats(
    live: House, open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    standby = open_house("standby", archive=dataclasses.replace(archive, interval=3_600.0), standby=True)
    seen = follower(standby).heartbeats
    beats = seen.last.beats if seen.last is not None else 0
    standby.until(lambda: seen.last is not None and seen.last.beats > beats + 2)


def test_a_standby_waits_for_three_heartbeats_of_the_owner_before_it_takes_over(
    live: House, standby: House, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's heartbeats are 100 seconds apart, which the configuration of the standby does not say."""
    followed(live, standby)
    silence: list[float] = [299.0]
    takeovers: list[float] = []
    seen = follower(standby).heartbeats
    monkeypatch.setattr(follower(standby), "_take_over", lambda: takeovers.append(silence[0]))
    monkeypatch.setattr(seen, "look", lambda epoch: None)
    monkeypatch.setattr(seen, "last", msgspec.structs.replace(seen.last, every=100.0))
    monkeypatch.setattr(seen, "silence", lambda: silence[0])
    monkeypatch.setattr(follower(standby), "config", dataclasses.replace(archive, takeover=0.01))
    follower(standby)._watch_owner()
    assert not takeovers
    silence[0] = 301.0
    follower(standby)._watch_owner()
    assert 301.0 in takeovers


def test_a_standby_that_lacks_a_storage_of_the_owner_says_so(
    live: House, open_house: OpenHouse, archive: ArchiveConfig, caplog: pytest.LogCaptureFixture
) -> None:
    standby = open_house("standby", "default", archive=archive, standby=True)
    live.create("elsewhere")
    live.produce("1", queue="elsewhere")
    assert live.job("migrate", queue="elsewhere", partition=0, to_storage="other").state == "done"
    shipped(live)
    standby.until(lambda: "storage 'other', which this standby lacks" in standby.service.health(OPERATOR)[1])
    with pytest.raises(QueratorError, match="storage 'other'"):
        follower(standby).promote(force=True)
    standby.close()
    again = open_house("standby", archive=archive, standby=True)
    followed(live, again)
    promoted(again)
    assert again.contents("elsewhere") == ["1"]


def test_a_fault_that_nobody_expected_does_not_end_the_following(
    live: House, standby: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(live, standby)

    def broken(*words: Any) -> None:
        raise KeyError("nobody expects this")

    monkeypatch.setattr(standby_files, "records_in", broken)
    live.produce("3")
    shipped(live)
    standby.until(lambda: "nobody expects this" in standby.service.health(OPERATOR)[1])
    monkeypatch.undo()
    followed(live, standby)
    promoted(standby)
    assert sorted(standby.contents()) == ["1", "2", "3"]


def test_a_directory_that_is_no_standby_is_refused(live: House, open_house: OpenHouse, archive: ArchiveConfig) -> None:
    other = open_house("other")
    other.create()
    other.close()
    with pytest.raises(Conflict, match="is not the directory of a standby"):
        open_house("other", archive=archive, standby=True)


def test_a_standby_waits_for_the_first_state_of_its_archive_and_can_be_stopped(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    words = [*QUERATOR, "daemon", "run", "--standby", "--archive", url, "--data", str(tmp_path / "second")]
    log = tmp_path / "second.log"

    def started() -> subprocess.Popen[bytes]:
        with open(log, "wb") as file:
            process = subprocess.Popen(words, env=clean_environment(tmp_path), stderr=file)
        until(lambda: "standby waits for the archive" in log.read_text())
        return process

    process = started()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process = started()
    with Daemon(tmp_path, "--archive", url):
        until(lambda: " started" in log.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_standby_waits_for_a_store_that_is_away(
    live: House, open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([Away("closed"), Away("closed")])

    def tried(bucket: Bucket) -> None:
        for error in failures:
            raise error

    def placed(*words: Any) -> None:
        monkeypatch.setattr(standby_files, "place_base", place_base)
        raise Away("one 503")

    monkeypatch.setattr(limits, "STANDBY_START_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(standing_by, "try_store", tried)
    monkeypatch.setattr(standby_files, "place_base", placed)
    standby = open_house("standby", archive=archive, standby=True)
    followed(live, standby)
    promoted(standby)
    assert sorted(standby.contents()) == ["1", "2"]


def test_a_standby_whose_archive_vanished_says_so(live: House, standby: House, archive: ArchiveConfig) -> None:
    followed(live, standby)
    live.close()
    shutil.rmtree(archive.url.removeprefix("file://"))
    standby.until(lambda: "is missing" in standby.service.health(OPERATOR)[1])
    # Force would not help, so nothing recommends it.
    assert "is missing" in refused(standby) and "--force" not in refused(standby)


def test_a_standby_that_was_down_for_too_long_needs_a_new_directory(
    live: House, standby: House, open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    followed(live, standby)
    standby.close()
    shipper = shipper_of(live)
    while shipper.ledger.number < 2 * limits.ARCHIVE_INDEX_EVERY:
        wanted = shipper.ask(must_put=True)
        live.until(lambda wanted=wanted: shipper.cuts_done >= wanted)  # type: ignore[misc]
    assert prune(bucket_of(archive), shipper.ledger.time + 1).objects > 0
    with pytest.raises(Conflict, match="does not go back that far") as refused:
        open_house("standby", archive=archive, standby=True)
    assert "new data directory" in refused.value.hint


def test_the_first_line_of_a_daemon_says_what_it_is_to_which_archive(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    roles = {}
    with ExitStack() as daemons:
        for name, options in (("owner", []), ("standby", ["--standby"])):
            (tmp_path / name).mkdir()
            daemon = daemons.enter_context(Daemon(tmp_path / name, "--archive", url, *options))
            until(lambda daemon=daemon: " started" in daemon.output)  # type: ignore[misc]
            lines = [json.loads(line) for line in daemon.output.splitlines()]
            (started,) = [line for line in lines if line["message"].endswith(" started")]
            roles[name] = started["archive"]
    assert roles == {"owner": f"owner of {url}", "standby": f"standby of {url}"}
