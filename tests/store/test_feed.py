"""The feed of a journal gives the archive every record in order, and holds segments until they are copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from querator import limits
from querator.daemon.store import HoldLost, Position, records_of
from querator.daemon.store.duck.storage import DuckStorage, open_storage
from querator.items import Room
from tests.store.store_making import UUID, added, put, write


@pytest.fixture
def storage(tmp_path: Path) -> DuckStorage:
    return open_storage("default", tmp_path, is_copied=True)


def numbers_after(storage: DuckStorage, position: Position) -> list[int]:
    chunks = storage.feed.take(position).chunks
    return [record.number for chunk in chunks for record, _ in records_of(chunk.segment, chunk.read())]


def segments(storage: DuckStorage) -> int:
    return len(list((storage.directory / "journal").glob("*.seg")))


def test_every_record_after_a_position_is_there_in_order(storage: DuckStorage) -> None:
    store = storage.create(UUID, "q")
    start = storage.feed.end()
    for seq in range(1, 6):
        put(storage, store, added(seq))
        storage.roll()
    assert numbers_after(storage, start) == [1, 2, 3, 4, 5]
    middle = storage.feed.end()
    write(storage, store, added(6))
    assert numbers_after(storage, middle) == [6]


def test_segments_stay_until_they_are_copied_and_then_go(storage: DuckStorage) -> None:
    store = storage.create(UUID, "q")
    for seq in range(1, 6):
        put(storage, store, added(seq))
        storage.roll()
    assert segments(storage) == 5
    storage.feed.hold(storage.feed.end())
    assert segments(storage) == 1


def test_a_restart_keeps_what_was_not_copied(storage: DuckStorage, tmp_path: Path) -> None:
    start = storage.feed.end()
    put(storage, storage.create(UUID, "q"), added(1), added(2))
    storage.close()
    again = open_storage("default", tmp_path, is_copied=True)
    again.open(UUID, "q").close()
    again.roll()
    assert numbers_after(again, start)[:2] == [1, 2]
    again.close()


def test_openings_are_told_once(storage: DuckStorage) -> None:
    storage.create(UUID, "q").close()
    storage.open(UUID, "q")
    news = storage.feed.take(storage.feed.end())
    assert [(one.uuid, one.is_new) for one in news.openings] == [(UUID, True), (UUID, False)]
    assert storage.feed.take(storage.feed.end()).openings == []


def test_a_copy_that_is_too_far_behind_loses_its_hold(storage: DuckStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENTS_HELD_MAX", 3)
    store = storage.create(UUID, "q")
    start = storage.feed.end()
    for seq in range(1, 8):
        put(storage, store, added(seq))
        storage.roll()
    assert segments(storage) <= 3
    with pytest.raises(HoldLost):
        storage.feed.take(start)


def test_a_disk_that_is_nearly_full_is_not_filled_for_a_copy(
    storage: DuckStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = storage.create(UUID, "q")
    for seq in range(1, 4):
        put(storage, store, added(seq))
        storage.roll()
    assert segments(storage) == 3
    monkeypatch.setattr(Room, "is_low", property(lambda self: True))
    storage.check_room()
    assert segments(storage) == 0


def test_segments_that_are_held_do_not_make_partitions_lag(storage: DuckStorage) -> None:
    store = storage.create(UUID, "q")
    for seq in range(1, 3 + limits.SEGMENTS_WAITING_MAX):
        put(storage, store, added(seq))
        storage.roll()
    write(storage, store, added(100))
    assert storage.lagging() == set()


def test_damaged_bytes_are_not_taken_for_records(storage: DuckStorage) -> None:
    store = storage.create(UUID, "q")
    start = storage.feed.end()
    write(storage, store, added(1))
    (chunk,) = storage.feed.take(start).chunks
    data = bytearray(chunk.read())
    data[-1] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        records_of(chunk.segment, bytes(data))
