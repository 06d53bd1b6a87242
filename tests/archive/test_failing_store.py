"""An object store that fails: whatever it does, the archive has everything once, in order, and serving goes on."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import NoneType

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import Away, Bucket, care, shipping
from querator.daemon.archive.ledger import latest
from querator.daemon.archive.objects import Owner, log_name
from querator.daemon.archive.ownership import check_end, claim
from querator.errors import Replaced, RetryRequest
from tests.archive.looking import bucket_of, pruned, restored, shipped, shipper_of
from tests.archive.object_stores import S3, BadWeather, FaultyProxy, Handler
from tests.maintenance.house import OPERATOR, WAIT_SECONDS, House

OpenHouse = Callable[..., House]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_SECONDS_MAX", 0.05)


@pytest.fixture
def archive(s3: S3, proxy: FaultyProxy) -> ArchiveConfig:
    url, options = s3.archive(proxy.endpoint)
    return ArchiveConfig(url, interval=0.01, heartbeat=60, options=options)


@pytest.fixture
def behind_proxy(archive: ArchiveConfig) -> Bucket:
    return bucket_of(archive)


def contents(archive: ArchiveConfig, directory: Path, **options: object) -> list[str]:
    again = restored(archive, directory, **options)
    try:
        return again.contents()
    finally:
        again.close()


def test_a_store_that_answers_503_for_a_minute_gets_everything_afterwards(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy, tmp_path: Path
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    house.produce("before")
    shipped(house)
    before = house.clock.now_us()
    proxy.fault = lambda handler, body: handler.refuse()
    for second in range(60):
        house.advance("1s")
        house.produce(f"{second}")
    house.until(lambda: bool(shipper_of(house).trouble))
    healthy, note = house.service.health(OPERATOR)
    assert healthy and "the archive cannot be reached" in note
    proxy.fault = None
    house.advance("1s")
    shipped(house)
    assert house.service.health(OPERATOR) == (True, "")
    assert contents(archive, tmp_path / "all") == ["before", *map(str, range(60))]
    assert contents(archive, tmp_path / "then", at_us=before) == ["before"]


@pytest.mark.parametrize("wait", [False, True])
def test_a_daemon_whose_credentials_are_revoked_says_so_and_goes_on_when_they_are_valid_again(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy, wait: bool,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(limits, "ARCHIVE_WAIT_SECONDS_MAX", 0.3)
    house = open_house("live", archive=dataclasses.replace(archive, wait=wait))
    house.create()
    shipped(house)
    proxy.fault = lambda handler, body: handler.hang_up()  # the store restarts, and then knows other credentials
    answer = house.begin_produce("1", timeout="1s")
    house.until(lambda: bool(shipper_of(house).trouble))
    proxy.fault = lambda handler, body: handler.refuse(403)
    house.until(lambda: "access is denied" in shipper_of(house).trouble)
    assert isinstance(answer.exception(WAIT_SECONDS), RetryRequest if wait else NoneType)
    house.until(lambda: house.service.health(OPERATOR)[0] is not wait)
    assert "check the credentials" in house.service.health(OPERATOR)[1]
    reasons = [getattr(record, "reason", "") for record in caplog.records]
    assert len([reason for reason in reasons if reason.startswith("access is denied")]) == 1
    proxy.fault = None
    shipped(house)
    house.until(lambda: house.states() == ["available"])
    house.produce("2")
    assert house.service.health(OPERATOR) == (True, "")
    assert house.contents() == ["1", "2"]


def test_a_put_that_is_never_answered_is_tried_again_and_counts_once(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_TIMEOUT_SECONDS", 1)
    house = open_house("live", archive=archive)
    house.create()
    shipped(house)
    unanswered: list[str] = []
    over = threading.Event()

    def fault(handler: Handler, body: bytes) -> bool:
        if handler.command != "PUT" or len(unanswered) == 2:
            return False
        unanswered.append(handler.path)
        over.wait(30)
        if len(unanswered) == 2:
            handler.passed_on(body)  # the first one arrives late, after the third was carried out
        return handler.hang_up()

    proxy.fault = fault
    house.produce("1")
    house.produce("2")
    shipped(house)
    over.set()
    house.produce("3")
    shipped(house)
    assert unanswered[0] == unanswered[1], "another object was put before the first one was there"
    assert contents(archive, tmp_path / "restored") == ["1", "2", "3"]


def test_in_bad_weather_nothing_is_missing_and_nothing_is_there_twice(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon is also restarted, so that it claims the archive while requests fail."""
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 3)
    monkeypatch.setattr(limits, "ARCHIVE_CLAIM_SECONDS_MAX", 30)
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    proxy.fault = weather = BadWeather(chance)
    house = open_house("live", archive=archive)
    house.create(partitions=2)
    texts = [f"{number}" for number in range(30)]
    for text in texts:
        house.produce(text)
        if chance.random() < 0.3:
            shipped(house)
        if chance.random() < 0.1:
            house.restart()
    shipped(house)
    proxy.fault = None
    assert sorted(contents(archive, tmp_path / "restored")) == sorted(texts)
    assert len(weather.faults) >= 5, weather.faults
    care.verify(bucket_of(archive))


def test_an_object_under_its_number_with_other_bytes_means_that_the_daemon_was_replaced(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    shipped(house)
    lost: list[object] = []
    house.service.lost_archive = lost.append
    bucket = bucket_of(archive)

    def fault(handler: Handler, body: bytes) -> bool:
        # While the put of our daemon is on its way, another daemon claims the archive, and the put fails.
        if handler.command != "PUT" or "/log/" not in handler.path:
            return False
        proxy.fault = None
        assert claim(bucket, latest(bucket), Owner("other", "elsewhere", 1, "1"), house.clock.now_us())
        return handler.refuse()

    proxy.fault = fault
    house.produce("1")
    house.until(lambda: bool(lost))
    assert isinstance(lost[0], Replaced) and "elsewhere (PID 1)" in lost[0].message


def test_a_conflict_without_an_object_is_tried_again(behind_proxy: Bucket, proxy: FaultyProxy) -> None:
    """S3 answers 409 to one of two puts of the same name at the same time, and may keep neither."""
    proxy.fault = lambda handler, body: handler.command == "PUT" and handler.refuse(409)
    with pytest.raises(Away):
        behind_proxy.create("log/1", b"mine")
    proxy.fault = None
    assert behind_proxy.create("log/1", b"mine") is None


def test_an_answer_that_breaks_off_is_no_object(behind_proxy: Bucket, proxy: FaultyProxy) -> None:
    behind_proxy.create("log/1", b"mine" * 1_000)
    proxy.fault = lambda handler, body: handler.half_answered(body)
    with pytest.raises(Away):
        behind_proxy.read("log/1")
    with pytest.raises(Away):
        list(behind_proxy.pieces("log/1"))


def test_a_list_that_lags_does_not_hide_the_owner(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 2)
    house = open_house("live", archive=archive)
    house.create()
    for number in range(6):
        house.produce(f"{number}")
        shipped(house)
    number = shipper_of(house).ledger.number
    hidden = [entry.name for entry in bucket_of(archive).entries("")][3:]
    proxy.fault = lambda handler, body: handler.is_list and handler.answer_without(body, hidden)
    assert len(list(bucket_of(archive).entries(""))) == 3
    with pytest.raises(Replaced, match="belongs to") as refused:
        open_house("other", archive=archive)
    assert "with a new --data" in refused.value.hint
    assert latest(bucket_of(archive)).number == number
    assert contents(archive, tmp_path / "restored") == [f"{number}" for number in range(6)]
    house.restart()
    house.produce("6")
    shipped(house)
    assert contents(archive, tmp_path / "again") == [f"{number}" for number in range(7)]


def test_a_number_that_was_pruned_is_not_claimed(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that shows no index would let a reader take a gap that pruning made for the end of the log."""
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 2)
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_BYTES", 1)
    house = open_house("live", archive=archive)
    house.create()
    behind = latest(bucket_of(archive))
    for number in range(6):
        house.produce(f"{number}")
        shipped(house)
        house.advance("1s")
    bucket = bucket_of(archive)
    assert care.prune(bucket, house.clock.now_us()).objects > 5
    assert bucket.read(log_name(behind.number + 1)) is None
    with pytest.raises(Away, match="was deleted"):
        check_end(bucket, behind.number)

    def hide_indexes(handler: Handler, body: bytes) -> bool:
        return handler.is_list and "index" in handler.path and handler.answer_without(body, "0123456789")

    number = latest(bucket).number
    proxy.fault = hide_indexes
    monkeypatch.setattr(limits, "ARCHIVE_CLAIM_SECONDS_MAX", 0.2)
    other = shipper_of(open_house("other", archive=archive, claim=True, start_over=True))
    house.until(lambda: "was deleted" in other.trouble)
    proxy.fault = None
    house.until(lambda: other.ledger.epoch == 2)
    assert other.before and other.before.number >= number


def test_a_daemon_that_was_suspended_until_everything_was_pruned_finds_its_number_taken(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 2)
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_BYTES", 1)
    house = open_house("live", archive=archive)
    house.create()
    shipped(house)
    lost: list[object] = []
    house.service.lost_archive = lost.append
    other = open_house("other", archive=archive, claim=True, start_over=True)
    other.create()
    bucket = pruned(other, archive)
    care.verify(bucket)
    house.begin_produce("lost")
    house.until(lambda: bool(lost))
    assert isinstance(lost[0], Replaced)
    assert care.status(bucket).oldest_point > house.clock.now_us()


def test_a_daemon_that_was_replaced_notices_it_although_nobody_asks_it_for_anything(
    open_house: OpenHouse, archive: ArchiveConfig
) -> None:
    house = open_house("live", archive=dataclasses.replace(archive, heartbeat=0.1))
    shipped(house)
    lost: list[object] = []
    house.service.lost_archive = lost.append
    open_house("other", archive=archive, claim=True, start_over=True)
    house.until(lambda: bool(lost))
    assert isinstance(lost[0], Replaced)


def test_a_defect_in_the_copying_ends_the_daemon_because_it_would_not_notice_that_it_was_replaced(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house("live", archive=archive)
    shipped(house)
    lost: list[object] = []
    house.service.lost_archive = lost.append

    def broken(shipper: object, at_once: bool) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(shipping, "_beat", broken)
    house.until(lambda: bool(lost))
    assert "a defect ended the copying to the archive: ZeroDivisionError()" in str(lost[0])


def test_segments_that_were_given_up_in_the_middle_of_a_cut_are_replaced_by_fresh_bases(
    open_house: OpenHouse, archive: ArchiveConfig, proxy: FaultyProxy, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(limits, "SEGMENTS_HELD_MAX", 4)
    monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 10_000)
    house = open_house("live", archive=archive)
    house.create()
    shipped(house)
    storage = house.registry.storages["default"]
    texts = []

    def produce_segment() -> None:
        texts.append(f"{len(texts)} {'x' * 6_000}")
        house.produce(texts[-1])
        house.flush()
        storage.roll()

    # The store is away until the next cut has the work of three segments, and comes back for one of them only.
    proxy.fault = lambda handler, body: handler.refuse()
    produce_segment()
    house.until(lambda: bool(shipper_of(house).trouble))
    for _ in range(3):
        produce_segment()
    passed: list[str] = []

    def let_two_pass(handler: Handler, body: bytes) -> bool:
        if handler.command != "PUT":
            return False
        if len(passed) >= 2:
            return handler.refuse()
        passed.append(handler.path)
        return False

    proxy.fault = let_two_pass
    house.until(lambda: len(passed) == 2 and bool(shipper_of(house).trouble))
    for _ in range(8):
        produce_segment()
    assert len(list((house.directory / "default" / "journal").glob("*.seg"))) < 8
    proxy.fault = None
    house.produce("last")
    shipped(house)
    assert "archive starts over from fresh bases" in caplog.text
    assert contents(archive, tmp_path / "restored") == [*texts, "last"]
    assert house.service.health(OPERATOR) == (True, "")
