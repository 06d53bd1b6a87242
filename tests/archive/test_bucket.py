"""Objects in a store: a created object stays, and a store that fails is distinguished from one that refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from querator import limits
from querator.daemon.archive import ArchiveError, Away, Bucket, care
from querator.errors import ConfigError
from tests.archive.object_stores import S3, FaultyProxy, Handler


@pytest.fixture
def behind_proxy(s3: S3, proxy: FaultyProxy) -> Bucket:
    return Bucket(*s3.archive(proxy.endpoint))


def test_an_object_is_created_once(bucket: Bucket) -> None:
    assert bucket.create("log/1", b"mine") is None
    assert bucket.create("log/1", b"yours") == b"mine"
    assert bucket.read("log/1") == b"mine"


def test_creating_the_same_bytes_again_is_a_success(bucket: Bucket) -> None:
    assert bucket.create("log/1", b"mine") is None
    assert bucket.create("log/1", b"mine") is None


def test_an_object_that_was_cut_off_is_completed_by_its_writer(bucket: Bucket) -> None:
    bucket.replace("log/1", b"mi")
    assert bucket.create("log/1", b"mine") is None
    assert bucket.read("log/1") == b"mine"


def test_there_is_no_object_that_was_not_created(bucket: Bucket) -> None:
    assert bucket.read("log/2") is None
    with pytest.raises(ArchiveError, match="missing"):
        list(bucket.pieces("base/x"))


def test_objects_are_listed_in_order_and_deleted(bucket: Bucket, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(12_000_000))
    bucket.upload("base/b", big)
    for number in (3, 1, 2):
        bucket.create(f"log/{number}", b"x" * number)
    assert [(entry.name, entry.size) for entry in bucket.entries("")] == [
        ("base/b", 12_000_000),
        ("log/1", 1),
        ("log/2", 2),
        ("log/3", 3),
    ]
    assert sum(map(len, bucket.pieces("base/b"))) == 12_000_000
    bucket.delete(["log/1", "log/3"])
    assert [entry.name for entry in bucket.entries("log/")] == ["log/2"]


def test_a_store_that_answers_503_is_away(behind_proxy: Bucket, proxy: FaultyProxy) -> None:
    proxy.fault = lambda handler, body: handler.refuse()
    with pytest.raises(Away):
        behind_proxy.create("log/1", b"mine")
    proxy.fault = None
    assert behind_proxy.create("log/1", b"mine") is None


def test_a_put_that_succeeded_although_an_error_was_seen_is_a_success(behind_proxy: Bucket, proxy: FaultyProxy) -> None:
    def fault(handler: Handler, body: bytes) -> bool:
        handler.passed_on(body)
        return handler.refuse()

    proxy.fault = fault
    with pytest.raises(Away):
        behind_proxy.create("log/1", b"mine")
    proxy.fault = None
    assert behind_proxy.create("log/1", b"mine") is None
    assert behind_proxy.create("log/1", b"yours") == b"mine"


def test_an_upload_that_breaks_off_leaves_nothing(behind_proxy: Bucket, proxy: FaultyProxy) -> None:
    def fault(handler: Handler, body: bytes) -> bool:
        handler.half_sent(body)
        return handler.hang_up()

    proxy.fault = fault
    with pytest.raises(Away):
        behind_proxy.create("log/1", b"mine" * 1_000)
    proxy.fault = None
    assert behind_proxy.create("log/1", b"mine" * 1_000) is None
    assert behind_proxy.read("log/1") == b"mine" * 1_000


def test_a_store_that_does_not_answer_is_away(s3: S3, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_TIMEOUT_SECONDS", 1)
    bucket = Bucket(*s3.archive(proxy.endpoint))
    over = threading.Event()

    def fault(handler: Handler, body: bytes) -> bool:
        over.wait(30)
        return handler.hang_up()

    proxy.fault = fault
    try:
        with pytest.raises(Away):
            bucket.create("log/1", b"mine")
    finally:
        over.set()


def test_a_store_with_conditional_puts_can_be_trusted(bucket: Bucket) -> None:
    care.try_store(bucket)
    assert list(bucket.entries("")) == []


def test_a_store_that_ignores_conditional_puts_is_found_out(behind_proxy: Bucket, proxy: FaultyProxy) -> None:
    def fault(handler: Handler, body: bytes) -> bool:
        del handler.headers["If-None-Match"]
        return False

    proxy.fault = fault
    with pytest.raises(ArchiveError, match="ignores conditional puts"):
        care.try_store(behind_proxy)


def test_what_the_store_refused_first_is_reported(behind_proxy: Bucket, proxy: FaultyProxy) -> None:
    proxy.fault = lambda handler, body: handler.refuse(403 if handler.command == "PUT" else 500)
    with pytest.raises(Away, match="403"):
        care.try_store(behind_proxy)


def test_a_url_that_is_no_archive_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not an archive"):
        Bucket("ftp://somewhere/else")
    with pytest.raises(ConfigError, match="names no directory"):
        Bucket("file://srv/archive")


@pytest.mark.parametrize("name", ["allow_http", "Timeout", "nonsense"])
def test_an_option_that_is_none_of_the_store_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Bucket("s3://bucket/queue", {name: "true"})


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (503, b"busy", "503 Service Unavailable: busy"),
        (400, b"<?xml version='1.0'?>\n<Error><Code>ExpiredToken</Code></Error>", "400 Bad Request, ExpiredToken"),
        (403, b"<?xml version='1.0'?>\n<Error><Code>AccessDenied</Code></Error>", "403 Forbidden, AccessDenied"),
        (401, b"", "401 Unauthorized"),
    ],
)
def test_the_reason_of_a_failure_is_the_same_each_time_and_tells_what_to_check(
    behind_proxy: Bucket, proxy: FaultyProxy, status: int, body: bytes, reason: str
) -> None:
    def refuse(handler: Handler, _: bytes) -> bool:
        handler.answer(status, [], body)
        return True

    proxy.fault = refuse
    denied = "access is denied, so check the credentials and their rights: " if status in (401, 403) else ""
    calls: list[tuple[str, Callable[[], object]]] = [
        ("PUT", lambda: behind_proxy.create("log/1", b"one")),
        ("GET", lambda: behind_proxy.read("log/1")),
        ("GET", lambda: list(behind_proxy.entries("log/"))),
    ]
    for method, call in calls:
        with pytest.raises(Away) as caught:
            call()
        assert str(caught.value) == f"{denied}{method} at {proxy.endpoint}: {reason}"


def test_a_store_that_does_not_answer_is_named(behind_proxy: Bucket, proxy: FaultyProxy) -> None:
    proxy.fault = lambda handler, body: handler.hang_up()
    with pytest.raises(Away, match=f"^HEAD at {proxy.endpoint}: HTTP error: .*"):
        behind_proxy.has("log/1")


def test_a_payload_need_not_be_hashed_for_the_signature(s3: S3, proxy: FaultyProxy) -> None:
    url, options = s3.archive(proxy.endpoint)
    signed: list[str] = []

    def fault(handler: Handler, body: bytes) -> bool:
        signed.append(handler.headers["x-amz-content-sha256"])
        return False

    proxy.fault = fault
    bucket = Bucket(url, {**options, "unsigned_payload": "true"})
    assert bucket.create("log/1", b"mine") is None
    assert bucket.create("log/1", b"yours") == b"mine"
    assert signed[0] == "UNSIGNED-PAYLOAD"
