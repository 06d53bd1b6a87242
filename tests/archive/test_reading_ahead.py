"""Readers of the log have several objects on their way at once, and need not read what they have."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import ArchiveError, Bucket
from querator.daemon.archive.ledger import needed_logs, read_logs
from querator.daemon.archive.objects import LOG, LogHead, Owner, log_name, sealed_log
from tests.archive.looking import shipped, shipper_of
from tests.archive.object_stores import S3, FaultyProxy, Handler
from tests.archive.test_standby import followed, follower
from tests.maintenance.house import House

OpenHouse = Callable[..., House]
AT_ONCE = 4
"""Fewer than the reader may have on their way."""


def put_log(bucket: Bucket, number: int, size: int = 10) -> None:
    # The head is not compressed, so a long name makes a large object.
    owner = Owner("data", "h" * size, 7, "1.0")
    head = LogHead(number=number, epoch=1, owner=owner, kind=LOG, time=10, previous="")
    bucket.create(log_name(number), sealed_log(head, b"body")[1])


def numbers(bucket: Bucket, first: int, last: int | None = None) -> list[int]:
    return [one.head.number for one in read_logs(bucket, first, last)]


def test_objects_are_read_in_order_up_to_the_first_that_is_missing(bucket: Bucket) -> None:
    for number in [*range(1, 41), 42]:
        put_log(bucket, number)
    assert numbers(bucket, 1) == list(range(1, 41))
    assert numbers(bucket, 30) == list(range(30, 41))
    assert numbers(bucket, 5, 20) == list(range(5, 21))
    assert numbers(bucket, 35, 42) == list(range(35, 41))
    assert numbers(bucket, 41) == []
    assert numbers(bucket, 20, 19) == []


def test_an_object_that_is_needed_and_missing_is_named(bucket: Bucket) -> None:
    for number in (1, 2, 4):
        put_log(bucket, number)
    found = needed_logs(bucket, 1, 4)
    assert [next(found).head.number, next(found).head.number] == [1, 2]
    with pytest.raises(ArchiveError, match=f"{log_name(3)} is missing"):
        next(found)


def test_the_rest_of_a_large_object_is_read_in_its_turn(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_READ_AHEAD_BYTES", 300)
    sizes = [10, 5_000, 20, 100_000, 30]
    for number, size in enumerate(sizes, 1):
        put_log(bucket, number, size)
    assert [len(one.head.owner.host) for one in read_logs(bucket, 1)] == sizes


def test_several_objects_are_on_their_way_at_once(s3: S3, proxy: FaultyProxy) -> None:
    bucket = Bucket(*s3.archive(proxy.endpoint))
    for number in range(1, 2 * AT_ONCE + 1):
        put_log(bucket, number)
    together = threading.Barrier(AT_ONCE)

    def wait_for_others(handler: Handler, body: bytes) -> bool:
        together.wait(60)  # a reader that asks for one after the other does not get past this
        return False

    proxy.fault = wait_for_others
    assert numbers(bucket, 1, 2 * AT_ONCE) == list(range(1, 2 * AT_ONCE + 1))


def test_a_standby_that_was_restarted_does_not_read_what_its_files_have(
    open_house: OpenHouse, s3: S3, proxy: FaultyProxy
) -> None:
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.01, heartbeat=0.1, options=options)
    live = open_house("live", archive=archive)
    live.create()
    standby = open_house("standby", archive=archive, standby=True)
    # Until an index was written, a reader begins at the first object.
    while shipper_of(live).ledger.number < limits.ARCHIVE_INDEX_EVERY:
        live.produce("x")
        shipped(live)
    followed(live, standby)
    standby.close()
    read: list[str] = []

    def note(handler: Handler, body: bytes) -> bool:
        if handler.command == "GET" and "/log/" in handler.path:
            read.append(handler.path.partition("?")[0].rpartition("/")[2])
        return False

    proxy.fault = note
    again = open_house("standby", archive=archive, standby=True)
    assert sorted(again.contents()) == sorted(live.contents())
    assert not [name for name in read if int(name) < limits.ARCHIVE_INDEX_EVERY]
    proxy.fault = None
    live.produce("y")
    followed(live, again)
    assert follower(again).files.ledger.number == shipper_of(live).ledger.number
