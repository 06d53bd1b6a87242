"""Everything durable gets to the archive, whatever happens to the daemon, its files and the object store."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive.ledger import indexes, read_log
from querator.daemon.archive.restoring import records_in
from querator.daemon.store import Feed, FileSnapshot, News, Position, copies
from querator.errors import Replaced
from tests.archive.looking import bucket_of, restored, shipped, shipper_of
from tests.archive.object_stores import S3, FaultyProxy, Handler
from tests.maintenance.house import OPERATOR, WAIT_SECONDS, House

OpenHouse = Callable[..., House]


@pytest.fixture
def contents(archive: ArchiveConfig, tmp_path: Path) -> Callable[[], list[str]]:
    """What a restore of the archive finds in queue q."""
    numbers = itertools.count()

    def find() -> list[str]:
        again = restored(archive, tmp_path / f"restored-{next(numbers)}")
        try:
            return sorted(again.contents())
        finally:
            again.close()

    return find


def bases(archive: ArchiveConfig) -> int:
    return len(list(bucket_of(archive).entries("base/")))


def crash(house: House) -> None:
    """Leaves the files as a killed daemon would, for a new house."""
    copy = house.directory.with_name("copy")
    shutil.copytree(house.directory, copy)
    house.close()
    shutil.rmtree(house.directory)
    copy.rename(house.directory)


def test_a_new_partition_needs_no_base(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    house = open_house("live", archive=archive)
    house.create(partitions=2)
    house.produce("1", "2")
    shipped(house)
    assert bases(archive) == 0
    assert contents() == ["1", "2"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_bases_are_made_at_a_lower_priority_than_requests(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities: list[int] = []
    write_snapshot = copies.write_snapshot

    def noting(*arguments: Any) -> Any:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return write_snapshot(*arguments)

    monkeypatch.setattr(copies, "write_snapshot", noting)
    house = open_house("live")
    house.create(partitions=1)
    house.close()
    shipped(open_house("live", archive=archive))
    assert len(priorities) == 1
    assert priorities[0] > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_queue_that_was_there_before_the_archive_gets_bases(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    house = open_house("live")
    house.create(partitions=2)
    house.produce("1")
    house.close()
    house = open_house("live", archive=archive)
    shipped(house)
    house.produce("2")
    shipped(house)
    assert bases(archive) == 2
    assert contents() == ["1", "2"]


def test_an_orderly_restart_needs_no_new_bases(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    house.restart()
    house.produce("2")
    shipped(house)
    assert bases(archive) == 0
    assert contents() == ["1", "2"]


def test_what_a_killed_daemon_had_not_shipped_is_shipped_after_its_restart(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    shipped(house)
    with monkeypatch.context() as patch:
        patch.setattr(type(bucket_of(archive)), "create", lambda self, name, data: (_ for _ in ()).throw(_away()))
        house.produce("2")
        crash(house)
    house = open_house("live", archive=archive)
    house.produce("3")
    shipped(house)
    assert bases(archive) == 0
    assert contents() == ["1", "2", "3"]


def _away() -> Exception:
    from querator.daemon.archive import Away

    return Away("nobody is there")


def test_files_are_closed_after_the_thread_that_copies_one_has_let_go(
    live: House, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    write = copies.write_snapshot
    begun = threading.Event()

    def written(snapshot: FileSnapshot, path: Path, check: Callable[[int], None]) -> object:
        begun.set()
        live.until(lambda: live.registry.stopping)
        try:
            return write(snapshot, path, check)
        finally:
            order.append("let go")

    def closed(close: Callable[[], None]) -> None:
        order.append("closed")
        close()

    monkeypatch.setattr(copies, "write_snapshot", written)
    for storage in live.registry.storages.values():
        monkeypatch.setattr(storage, "close", partial(closed, storage.close))
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_BYTES", 1)
    assert begun.wait(WAIT_SECONDS)
    live.close()
    assert order == ["let go", "closed", "closed"]


def test_a_file_that_was_edited_while_the_daemon_was_stopped_gets_a_new_base(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    import duckdb

    house = open_house("live", archive=archive)
    house.create()
    house.produce("1", "2")
    path = house.file()
    house.close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("delete from items where payload = '1'::blob")
    house = open_house("live", archive=archive)
    house.produce("3")
    shipped(house)
    assert house.contents() == ["2", "3"]
    assert contents() == ["2", "3"]


def test_a_file_that_was_edited_while_its_partition_was_offline_gets_a_new_base(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    import duckdb

    house = open_house("live", archive=archive)
    house.create()
    house.produce("1", "2")
    path = house.file()
    house.ask("offline", 0)
    with duckdb.connect(str(path)) as connection:
        connection.execute("delete from items where payload = '1'::blob")
    house.ask("reload", 0)
    house.produce("3")
    shipped(house)
    assert contents() == ["2", "3"]


def test_a_partition_that_was_restored_from_a_backup_gets_a_new_base(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]], tmp_path: Path
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    assert house.job("backup", to=str(tmp_path / "backup")).state == "done"
    house.produce("2")
    assert house.job("restore", from_=str(tmp_path / "backup")).state == "done"
    house.produce("3")
    shipped(house)
    assert contents() == ["1", "3"]


def test_a_compacted_file_needs_no_new_base(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    assert house.job("compact").state == "done"
    house.produce("2")
    shipped(house)
    assert bases(archive) == 0
    assert contents() == ["1", "2"]


def test_a_queue_that_was_deleted_is_not_restored(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    from querator.wire import messages as m

    house = open_house("live", archive=archive)
    house.create()
    house.create("gone")
    house.produce("1", queue="gone")
    shipped(house)
    house.call("queues.delete", m.QueuesDeleteRequest(queue_name="gone", force=True))
    shipped(house)
    assert contents() == []
    assert len(shipper_of(house).ledger.lines) == 1


def test_a_long_log_is_cut_short_by_a_new_base(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_BYTES", 3_000)
    house = open_house("live", archive=archive)
    house.create()
    for number in range(20):
        house.produce(f"{number}" * 50)
        shipped(house)
    assert bases(archive) >= 2
    assert shipper_of(house).ledger.oldest_needed() > 5


@pytest.mark.parametrize(("bytes_per_object", "is_taken"), [(1_000_000, True), (1_000, False)])
def test_a_log_of_many_small_objects_is_cut_short_unless_the_file_is_large(
    open_house: OpenHouse,
    archive: ArchiveConfig,
    monkeypatch: pytest.MonkeyPatch,
    bytes_per_object: int,
    is_taken: bool,
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 4)
    monkeypatch.setattr(limits, "ARCHIVE_BASE_LOG_OBJECTS", 8)
    monkeypatch.setattr(limits, "ARCHIVE_BASE_BYTES_PER_OBJECT", bytes_per_object)
    house = open_house("live", archive=archive)
    house.create()
    house.create("quiet")
    house.produce("once", queue="quiet")
    for number in range(20):
        house.produce(f"{number}")
        shipped(house)
    ledger = shipper_of(house).ledger
    assert bases(archive) >= 2 if is_taken else bases(archive) == 0
    assert (ledger.number - ledger.oldest_needed() < 12) == is_taken
    if is_taken:
        assert {line.base.name != "" for line in ledger.lines.values() if line.base} == {True}


def test_an_index_waits_until_the_last_one_is_some_seconds_old(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_EVERY", 2)
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_SECONDS_MIN", 1_000_000.0)
    house = open_house("live", archive=archive)
    house.create()

    def ship_five() -> int:
        for number in range(5):
            house.produce(f"{number}")
            shipped(house)
        return len(indexes(bucket_of(archive)))

    assert ship_five() == 1
    assert ship_five() == 1
    shipper_of(house)._index_at = 0
    assert ship_five() == 2


def test_what_comes_while_the_store_is_away_is_shipped_when_it_is_back(
    open_house: OpenHouse, s3: S3, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_SECONDS_MAX", 0.05)
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.01, options=options)
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    shipped(house)
    proxy.fault = lambda handler, body: handler.refuse()
    for number in range(2, 12):
        house.produce(f"{number}")
    house.until(lambda: bool(shipper_of(house).trouble))
    proxy.fault = None
    shipped(house)
    assert shipper_of(house).trouble == ""
    again = restored(archive, tmp_path / "restored")
    assert again.contents() == [f"{number}" for number in range(1, 12)]
    again.close()


def test_puts_that_succeed_with_an_error_are_not_taken_for_another_owner(
    open_house: OpenHouse, s3: S3, proxy: FaultyProxy, tmp_path: Path
) -> None:
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.01, options=options)
    seen: set[str] = set()

    def fault(handler: Handler, body: bytes) -> bool:
        if handler.command != "PUT" or handler.path in seen:
            return False
        seen.add(handler.path)
        handler.passed_on(body)
        return handler.refuse()

    proxy.fault = fault
    house = open_house("live", archive=archive)
    house.create()
    for number in range(5):
        house.produce(f"{number}")
        shipped(house)
    again = restored(archive, tmp_path / "restored")
    assert again.contents() == [f"{number}" for number in range(5)]
    again.close()


def test_an_archive_that_was_away_for_too_long_starts_over_from_fresh_bases(
    open_house: OpenHouse, s3: S3, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(limits, "SEGMENTS_HELD_MAX", 2)
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_SECONDS_MAX", 0.05)
    url, options = s3.archive(proxy.endpoint)
    archive = ArchiveConfig(url, interval=0.01, options=options)
    house = open_house("live", archive=archive)
    house.create()
    house.produce("0")
    shipped(house)
    proxy.fault = lambda handler, body: handler.refuse()
    storage = house.registry.storages["default"]
    for number in range(1, 8):
        house.produce(f"{number}")
        house.flush()
        storage.roll()
    proxy.fault = None
    shipped(house)
    assert "archive starts over from fresh bases" in caplog.text
    assert len(list(bucket_of(archive).entries("base/"))) == 1
    again = restored(archive, tmp_path / "restored")
    assert again.contents() == [f"{number}" for number in range(8)]
    again.close()


def test_a_cut_ends_at_one_moment_in_all_storages(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each item is produced in one storage, and then in another. No cut has the second one without the first one."""
    house = open_house("live", archive=archive)
    house.create("first")
    house.create("second")
    assert house.job("migrate", "second", partition=0, to_storage="other").state == "done"
    shipped(house)
    uuids = [house.partition(0, queue).placement.uuid for queue in ("first", "second")]
    start = shipper_of(house).ledger.number + 1
    take, produced = Feed._take, threading.Event()

    def slow_take(feed: Feed, position: Position) -> News:
        found = take(feed, position)
        produced.clear()
        produced.wait(0.02)  # both items of a pair would be produced before the next journal is looked at
        return found

    monkeypatch.setattr(Feed, "_take", slow_take)
    pairs = 0
    while pairs < 30 or shipper_of(house).ledger.number < start + 2:
        house.produce(f"{pairs}", queue="first")
        house.produce(f"{pairs}", queue="second")
        produced.set()
        pairs += 1
        assert pairs < 20_000, "nothing is shipped"
    monkeypatch.undo()
    shipped(house)
    records = dict.fromkeys(uuids, 0)
    ahead: list[int] = []
    for number in range(start, shipper_of(house).ledger.number + 1):
        one = read_log(bucket_of(archive), number)
        assert one is not None
        for uuid, _, _ in records_in(one):
            records[uuid] += 1
        ahead.append(records[uuids[0]] - records[uuids[1]])
    assert list(records.values()) == [pairs, pairs]
    assert len(ahead) > 2 and set(ahead) <= {0, 1}


def test_another_directory_may_not_use_the_archive(open_house: OpenHouse, archive: ArchiveConfig) -> None:
    house = open_house("live", archive=archive)
    shipped(house)
    house.close()
    with pytest.raises(Replaced, match="belongs to"):
        open_house("other", archive=archive)


def test_a_directory_that_claims_an_archive_it_does_not_continue_gets_fresh_bases(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    shipped(house)
    house.close()
    other = open_house("other")
    other.create()
    other.produce("2")
    other.close()
    other = open_house("other", archive=archive, claim=True, start_over=True)
    other.produce("3")
    shipped(other)
    assert contents() == ["2", "3"]


def test_a_daemon_whose_next_number_is_taken_was_replaced(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    archive = dataclasses.replace(archive, heartbeat=60)
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    shipped(house)
    lost: list[object] = []
    house.service.lost_archive = lost.append
    open_house("other").close()
    other = open_house("other", archive=archive, claim=True, start_over=True)
    house.begin_produce("2")  # it gets no answer if a heartbeat has shown already that the daemon was replaced
    house.until(lambda: bool(lost))
    assert isinstance(lost[0], Replaced)
    assert str(shipper_of(other).owner) in lost[0].message
    assert shipper_of(other).ledger.epoch == 2


def test_without_the_library_the_daemon_says_what_to_install(
    open_house: OpenHouse, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from querator.errors import ConfigError

    monkeypatch.setitem(sys.modules, "obstore", None)
    open_house("without").close()
    with pytest.raises(ConfigError, match="not installed") as error:
        open_house("live", archive=archive)
    assert error.value.hint == "pip install 'querator[archive]'"


def test_a_base_is_taken_while_every_cut_has_new_records(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    house = open_house("live")
    house.create()
    house.produce("0", "1")
    house.close()
    house = open_house("live", archive=archive)
    shipper, texts = shipper_of(house), ["0", "1"]
    house.until(lambda: bool(shipper.wanted_bases()))
    while shipper.wanted_bases():
        assert len(texts) < 20_000, "the base does not count"
        texts.append(f"{len(texts)}")
        house.produce(texts[-1])
    shipped(house)
    assert bases(archive) == 1
    assert contents() == sorted(texts)


def test_a_directory_that_was_set_back_to_an_older_copy_gets_fresh_bases(
    open_house: OpenHouse, archive: ArchiveConfig, contents: Callable[[], list[str]]
) -> None:
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    shipped(house)
    copy = house.directory.with_name("copy")
    shutil.copytree(house.directory, copy)
    for _ in range(4):
        house.produce("2")
        house.registry.storages["default"].roll()
    shipped(house)
    house.close()
    shutil.rmtree(house.directory)
    copy.rename(house.directory)
    house = open_house("live", archive=archive)
    house.produce("3")
    shipped(house)
    assert contents() == ["1", "3"]


def test_an_archive_that_lost_its_objects_is_reported_and_gets_nothing_more(
    open_house: OpenHouse, tmp_path: Path
) -> None:
    """As when the disk of the archive is not mounted: the directory is there, and empty."""
    place = tmp_path / "archive"
    archive = ArchiveConfig(f"file://{place}", interval=0.01, heartbeat=0.01)
    house = open_house("live", archive=archive)
    house.create()
    house.produce("1")
    shipped(house)
    place.rename(tmp_path / "elsewhere")
    place.mkdir()
    house.produce("2")
    house.until(lambda: "is missing" in shipper_of(house).trouble)
    assert "is missing" in house.service.health(OPERATOR)[1]
    shutil.rmtree(place)
    (tmp_path / "elsewhere").rename(place)
    house.close()
    house = open_house("live", archive=archive)
    shipped(house)
    again = restored(archive, tmp_path / "restored")
    assert sorted(again.contents()) == ["1", "2"]
    again.close()


def test_a_queue_that_is_created_and_filled_within_one_large_cut_is_restored_whole(
    open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 20_000)
    slow = dataclasses.replace(archive, interval=3_600.0, heartbeat=3_600.0)
    house = open_house("live", archive=slow)
    shipped(house)
    house.create()
    texts = [f"{number} {'x' * 9_000}" for number in range(10)]
    for text in texts:
        house.produce(text)
        house.registry.storages["default"].roll()
    before = shipper_of(house).ledger.number
    shipped(house)
    assert shipper_of(house).ledger.number > before + 1, "the cut has several objects"
    again = restored(archive, tmp_path / "restored")
    assert sorted(again.contents()) == sorted(texts)
    again.close()
