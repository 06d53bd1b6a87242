"""Answers that wait for the archive, and a daemon that was replaced and answers nothing more."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import bases
from querator.daemon.archive.ledger import latest
from querator.daemon.archive.objects import Owner
from querator.daemon.archive.ownership import claim
from querator.errors import QueratorError, RequestFailed, RetryRequest, Unauthorized
from querator.wire import access_messages as a
from querator.wire import messages as m
from tests.archive.looking import bucket_of, restored, shipper_of
from tests.archive.object_stores import S3, FaultyProxy, Handler
from tests.daemons import Daemon
from tests.maintenance.house import OPERATOR, WAIT_SECONDS, Future, House
from tests.waiting import until

OpenHouse = Callable[..., House]
Outage = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def waiting(s3: S3, proxy: FaultyProxy) -> ArchiveConfig:
    url, options = s3.archive(proxy.endpoint)
    return ArchiveConfig(url, interval=5, wait=True, options=options)


@pytest.fixture
def outage(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """The store is away, and requests wait for it for a shorter time than they would otherwise."""

    @contextmanager
    def outage() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(limits, "ARCHIVE_WAIT_SECONDS_MAX", 0.3)
            patch.setattr(limits, "ARCHIVE_RETRY_SECONDS_MAX", 0.05)
            proxy.fault = lambda handler, body: handler.refuse()
            yield
            proxy.fault = None

    return outage


def replace_at_next_put(house: House, archive: ArchiveConfig, proxy: FaultyProxy) -> None:
    """While the next put of this daemon is on its way, another daemon claims the archive, and the put fails."""
    bucket = bucket_of(archive)

    def fault(handler: Handler, body: bytes) -> bool:
        if handler.command != "PUT" or "/log/" not in handler.path:
            return False
        proxy.fault = None
        assert claim(bucket, latest(bucket), Owner("other", "elsewhere", 1, "1"), house.clock.now_us())
        return handler.refuse()

    proxy.fault = fault


def late_queue() -> m.QueueInfo:
    return m.QueueInfo(queue_name="late", requested_partitions=1, lease_timeout="1m", expire_timeout="1h")


def test_an_answer_comes_after_the_put(open_house: OpenHouse, waiting: ArchiveConfig, proxy: FaultyProxy) -> None:
    house = open_house("live", archive=waiting)
    house.create()
    arrived, passing = threading.Event(), threading.Event()

    def fault(handler: Handler, body: bytes) -> bool:
        if handler.command == "PUT" and "/log/" in handler.path:
            arrived.set()
            passing.wait(WAIT_SECONDS)
        return False

    proxy.fault = fault
    answer = house.begin_produce("1")
    assert arrived.wait(WAIT_SECONDS) and not answer.done()
    passing.set()
    answer.result(WAIT_SECONDS)


def test_everything_acknowledged_is_in_the_archive_at_once(
    open_house: OpenHouse, waiting: ArchiveConfig, tmp_path: Path
) -> None:
    house = open_house("live", archive=waiting)
    house.create()
    house.produce("1", "2")
    (leased, _) = house.lease(2)
    house.complete(leased.id).result(WAIT_SECONDS)
    again = restored(waiting, tmp_path / "restored")
    assert again.contents() == ["2"]
    again.close()


def test_many_requests_share_a_put(open_house: OpenHouse, waiting: ArchiveConfig, proxy: FaultyProxy) -> None:
    house = open_house("live", archive=waiting)
    house.create()
    puts = proxy.puts
    for answer in [house.begin_produce(f"{number}") for number in range(200)]:
        answer.result(WAIT_SECONDS)
    assert proxy.puts - puts < 100


def test_while_the_store_is_away_requests_get_454_and_come_back_later(
    open_house: OpenHouse, waiting: ArchiveConfig, outage: Outage
) -> None:
    house = open_house("live", archive=waiting)
    house.create()
    house.produce("1")
    with outage():
        error = house.begin_produce("2", timeout="1s").exception(WAIT_SECONDS)
        assert isinstance(error, RetryRequest) and "archive" in error.message
        house.until(lambda: house.service.health(OPERATOR)[0] is False)
        assert isinstance(house.begin_produce("3", timeout="100ms").exception(WAIT_SECONDS), RetryRequest)
        assert "archive" in house.service.health(OPERATOR)[1]
    house.until(lambda: house.states() == ["available"])
    house.produce("4")
    # A request that was durable before it got 454 was carried out. Later requests that got 454 were not.
    assert house.contents() == ["1", "2", "4"]


def test_a_request_that_is_repeated_while_the_store_is_away_is_not_acknowledged(
    open_house: OpenHouse, waiting: ArchiveConfig, outage: Outage, tmp_path: Path
) -> None:
    house = open_house("live", archive=waiting)
    house.create()

    def produce() -> Future:
        items = [m.QueueProduceItem(utf8="1")]
        request = m.QueueProduceRequest(queue_name="q", request_timeout="1s", items=items, request_id="once")
        return house.begin("queue.produce", request)

    with outage():
        for _ in range(2):
            error = produce().exception(WAIT_SECONDS)
            assert isinstance(error, RetryRequest) and "archive" in error.message
    house.until(lambda: house.states() == ["available"])
    produce().result(WAIT_SECONDS)
    again = restored(waiting, tmp_path / "restored")
    assert again.contents() == house.contents() == ["1"]
    again.close()


def test_a_daemon_that_nobody_uses_is_unhealthy_while_the_store_is_away(
    open_house: OpenHouse, waiting: ArchiveConfig, outage: Outage
) -> None:
    house = open_house("live", archive=dataclasses.replace(waiting, interval=0.05, heartbeat=0.05))
    assert house.service.health(OPERATOR) == (True, "")
    with outage():
        house.until(lambda: not house.service.health(OPERATOR)[0])
        assert house.service.health(OPERATOR)[1].startswith("the archive cannot be reached")
    house.until(lambda: house.service.health(OPERATOR) == (True, ""))


def test_an_item_that_was_leased_while_the_store_was_away_is_held_by_nobody(
    open_house: OpenHouse, waiting: ArchiveConfig, outage: Outage
) -> None:
    house = open_house("live", archive=waiting)
    house.create(lease_timeout="1m")
    house.produce("1")
    with outage():
        assert isinstance(house.begin_lease(timeout="1s").exception(WAIT_SECONDS), QueratorError)
    house.until(lambda: house.states() == ["available"])
    house.advance("2m")
    assert [item.bytes_ for item in house.lease()] == [b"1"]


def test_a_queue_exists_in_the_archive_before_its_creation_is_reported(
    open_house: OpenHouse, waiting: ArchiveConfig, tmp_path: Path
) -> None:
    house = open_house("live", archive=waiting)
    house.create("a", partitions=2)
    again = restored(waiting, tmp_path / "restored")
    assert len(again.logical("a").partitions) == 2
    again.close()


def test_a_change_of_a_daemon_that_was_replaced_meanwhile_is_not_acknowledged(
    open_house: OpenHouse, waiting: ArchiveConfig, proxy: FaultyProxy
) -> None:
    house = open_house("live", archive=dataclasses.replace(waiting, heartbeat=60))
    house.create()
    lost: list[object] = []
    house.service.lost_archive = lost.append
    replace_at_next_put(house, waiting, proxy)
    refused = house.refusal("queues.create", late_queue())
    assert "on this machine only" in refused.message and "elsewhere (PID 1)" in refused.message
    assert len(lost) == 1


def test_changes_that_wait_for_the_archive_hold_up_nothing_else(
    open_house: OpenHouse, waiting: ArchiveConfig, outage: Outage
) -> None:
    house = open_house("live", archive=waiting)
    names = [f"q{number}" for number in range(40)]
    for name in names:
        house.create(name)
    made = house.call("tokens.create", a.TokensCreateRequest(name="stolen", role="admin"))
    access = house.registry.access
    with outage():
        changes = [house.begin("partitions.pause", m.PartitionsPauseRequest(queue_name=name)) for name in names]
        changes.append(house.begin("tokens.revoke", a.TokenRequest(name="stolen")))
        for change in changes:
            error = change.exception(WAIT_SECONDS)
            assert isinstance(error, RequestFailed) and "on this machine only; the archive" in error.message
        with pytest.raises(Unauthorized):
            access.caller_of_token(made.token.encode())
        assert house.run(house.registry.blocking(lambda: "a thread is free")) == "a thread is free"
    house.until(lambda: house.states("q0") == ["paused"])
    house.ask("resume", queue="q0")


def test_files_that_take_long_to_copy_are_copied_while_requests_get_454(
    open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait` is switched on for a queue that is there already."""
    monkeypatch.setattr(limits, "ARCHIVE_WAIT_SECONDS_MAX", 0.3)
    house = open_house("live", "default")
    house.create(partitions=3)
    house.produce("0", "1", "2")
    house.close()
    may_copy, upload, copied = threading.Event(), bases._upload, []

    def slow_upload(*words: Any) -> None:
        assert may_copy.wait(WAIT_SECONDS)
        upload(*words)
        copied.append(words)

    monkeypatch.setattr(bases, "_upload", slow_upload)
    archive = dataclasses.replace(archive, wait=True)
    house = open_house("live", "default", archive=archive)
    error = house.begin_produce("3", timeout="1s").exception(WAIT_SECONDS)
    assert isinstance(error, RetryRequest) and "archive" in error.message
    assert house.states() == ["error"] * 3
    may_copy.set()
    house.until(lambda: house.states() == ["available"] * 3)
    house.produce("4")
    assert len(copied) == 3
    again = restored(archive, tmp_path / "restored")
    assert sorted(again.contents()) == sorted(house.contents()) == ["0", "1", "2", "3", "4"]
    again.close()


@pytest.mark.parametrize("seconds", [limits.STANDSTILL_SECONDS + 0.5, pytest.param(60.0, marks=pytest.mark.slow)])
def test_a_daemon_that_stood_still_and_was_replaced_answers_nothing_more(tmp_path: Path, seconds: float) -> None:
    archive = f"file://{tmp_path / 'archive'}"
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with Daemon(tmp_path / "old", "--archive", archive) as old:
        old.client.create_queue("q", lease_timeout="1m", expire_timeout="1h")
        old.client.produce("q", [b"1"])
        answered: list[float] = []
        over = threading.Event()

        def produce() -> None:
            client = old.connect()
            while not over.is_set():
                try:
                    client.produce("q", [b"x"])
                    answered.append(time.monotonic())
                except QueratorError:
                    return

        thread = threading.Thread(target=produce)
        thread.start()
        until(lambda: len(answered) > 20)
        old.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)  # this is the test: real time must pass for a real process
        before = len(answered)
        with Daemon(tmp_path / "new", "--archive", archive, "--claim", "--start-over") as new:
            continued = time.monotonic()
            old.process.send_signal(signal.SIGCONT)
            assert old.process.wait(30) == 8
            over.set()
            thread.join(30)
            # At most the answer that the process was about to send when it was stopped.
            assert len([moment for moment in answered if moment > continued]) <= 1
            assert len(answered) <= before + 1
            assert "was replaced by" in old.output
            assert new.client.health()["status"] == "pass"


def test_a_daemon_that_stood_still_and_was_replaced_acknowledges_no_change_of_a_queue(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house("live", archive=dataclasses.replace(archive, interval=60, heartbeat=60))
    house.create()
    monkeypatch.setattr(limits, "STANDSTILL_SECONDS", 0.2)
    bucket = bucket_of(archive)
    house.until(lambda: latest(bucket).number > 1)
    assert claim(bucket, latest(bucket), Owner("other", "elsewhere", 1, "1"), house.clock.now_us())
    house.run(_stand_still(0.4))
    assert "elsewhere (PID 1)" in house.refusal("queues.create", late_queue()).message


def test_a_daemon_that_stood_still_and_owns_the_archive_serves_on(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    monkeypatch.setattr(limits, "STANDSTILL_SECONDS", 0.2)
    number = shipper_of(house).ledger.number
    house.run(_stand_still(0.4))
    house.produce("1")
    house.until(lambda: shipper_of(house).ledger.number > number)
    assert bucket_of(archive).read(f"log/{number + 1:016d}")


async def _stand_still(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - the loop must not run meanwhile
