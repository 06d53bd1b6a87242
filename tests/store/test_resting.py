"""Files without rows rest: they are detached until they are needed, and a stop notes that they need not be opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from querator.daemon.store.base import LackOfMemory, StorageError, Summary
from querator.daemon.store.duck.attached import AttachedFiles
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.partition_file import Meta, PartitionFile
from querator.daemon.store.duck.storage import DuckStorage
from querator.daemon.store.journal import Journal
from tests.store.store_making import (
    OTHER_UUID,
    UUID,
    added,
    batch_of,
    in_a_process_that_is_killed,
    put,
    ready_seqs,
    write,
)
from tests.store.test_duckdb_storage import opened

BLANK = Summary(0, 0, 0, 0, 0, None, None)


class WithoutNotes:
    """A journal that does not note which partitions were closed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append_closed(self, numbers: object) -> None:
        pass


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[DuckStorage]:
    with opened(tmp_path) as storage:
        yield storage


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions whose files were attached, in order."""
    found: list[str] = []
    attach = AttachedFiles.attach

    def noting(self: AttachedFiles, uuid: str, *args: object) -> object:
        found.append(uuid)
        return attach(self, uuid, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(AttachedFiles, "attach", noting)
    return found


def is_attached(store: DuckStore) -> bool:
    here = store._files.instance.cursor().execute("SELECT database_name FROM duckdb_databases()").fetchall()
    return any(store.partition.hex() in name for (name,) in here)


def in_file(path: Path) -> int:
    with duckdb.connect(str(path), read_only=True) as connection:
        return int(connection.sql("SELECT count(*) FROM items").fetchall()[0][0])


def test_a_file_is_attached_when_its_first_item_is_applied(storage: DuckStorage) -> None:
    store = storage.create(UUID, "orders")
    assert store.is_blank and store.summary() == BLANK and not is_attached(store)
    write(storage, store, added(1, 2))
    assert not is_attached(store)
    store.flush()
    assert is_attached(store) and not store.is_blank
    assert ready_seqs(store) == [1, 2]


def test_a_file_that_became_empty_rests_again(storage: DuckStorage) -> None:
    store = storage.create(UUID, "orders")
    put(storage, store, added(1, 2))
    store.forget(0)
    assert is_attached(store)
    put(storage, store, batch_of(remove=[1, 2]))
    store.forget(0)
    assert store.is_blank and not is_attached(store)
    assert store.summary() == BLANK._replace(last_seq=2)
    put(storage, store, added(3))
    assert ready_seqs(store) == [3]


def test_a_file_without_rows_that_was_read_rests_again(storage: DuckStorage) -> None:
    store = storage.create(UUID, "orders")
    assert store.page(False, 0, 10) == [] and is_attached(store)
    snapshot = store.snapshot()
    store.forget(0)
    assert not store.is_resting
    snapshot.close()
    store.forget(0)
    assert store.is_resting and not is_attached(store)
    put(storage, store, added(1))
    assert ready_seqs(store) == [1]


def test_a_file_that_could_not_be_read_when_it_was_attached_is_attached_later(
    storage: DuckStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = storage.create(UUID, "orders")

    def without_memory(file: PartitionFile) -> Meta:
        raise duckdb.OutOfMemoryException("there is none left")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionFile, "meta", without_memory)
        with pytest.raises(LackOfMemory):
            put(storage, store, added(1))
    store.flush()
    assert ready_seqs(store) == [1]


def test_a_file_with_an_open_snapshot_does_not_rest(storage: DuckStorage) -> None:
    store = storage.create(UUID, "orders")
    put(storage, store, added(1))
    snapshot = store.snapshot()
    put(storage, store, batch_of(remove=[1]))
    store.forget(0)
    assert snapshot.contents().rows["items"] == 1
    snapshot.close()
    store.forget(0)
    assert not is_attached(store)


class TestTheNextStart:
    def test_it_opens_no_file_that_was_empty(self, tmp_path: Path, attached: list[str]) -> None:
        with opened(tmp_path) as storage:
            put(storage, storage.create(UUID, "orders"), added(1))
            store = storage.create(OTHER_UUID, "mail")
            put(storage, store, added(1), batch_of(remove=[1]))
        attached.clear()
        with opened(tmp_path) as storage:
            assert storage.open(OTHER_UUID, "mail").summary() == BLANK._replace(last_seq=1)
            assert ready_seqs(storage.open(UUID, "orders")) == [1]
            assert attached == [UUID]
        attached.clear()
        with opened(tmp_path) as storage:
            store = storage.open(OTHER_UUID, "mail")
            assert store.record_written == 2
            put(storage, store, added(2))
            assert ready_seqs(store) == [2]
            assert attached == [OTHER_UUID]

    def test_a_record_of_the_journal_is_replayed_into_a_file_that_rested(self, tmp_path: Path) -> None:
        with opened(tmp_path) as storage:
            storage.create(UUID, "orders")
        in_a_process_that_is_killed(tmp_path, "write(storage, store, added(1, 2))")
        with opened(tmp_path) as storage:
            assert ready_seqs(storage.open(UUID, "orders")) == [1, 2]

    def test_a_file_that_was_changed_by_hand_is_read(self, tmp_path: Path, attached: list[str]) -> None:
        with opened(tmp_path) as storage:
            path = storage.create(UUID, "orders").path
        with duckdb.connect(str(path)) as connection:
            connection.execute("INSERT INTO items (seq, created_at, expire_deadline) VALUES (7, now(), now())")
        attached.clear()
        with opened(tmp_path) as storage:
            assert ready_seqs(storage.open(UUID, "orders")) == [7]
            assert attached == [UUID]

    @pytest.mark.parametrize("damage", [b"", b"x", b"\x00" * 40])
    def test_a_damaged_note_is_not_believed(
        self, tmp_path: Path, attached: list[str], damage: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        with opened(tmp_path) as storage:
            storage.create(UUID, "orders")
        note = tmp_path / "resting"
        note.write_bytes(note.read_bytes()[:-1] + damage)
        attached.clear()
        with opened(tmp_path) as storage:
            assert "is damaged and is not used" in caplog.text
            assert storage.open(UUID, "orders").summary() == BLANK
            assert attached == [UUID]

    def test_a_note_of_no_file_is_not_damaged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with opened(tmp_path) as storage:
            put(storage, storage.create(UUID, "orders"), added(1))
        with opened(tmp_path):
            assert not caplog.text

    def test_an_old_file_with_its_old_note_is_put_aside(self, tmp_path: Path) -> None:
        with opened(tmp_path) as storage:
            path = storage.create(UUID, "orders").path
        old = path.read_bytes()
        status = path.stat()
        note = tmp_path / "resting"
        old_note = note.read_bytes()
        with opened(tmp_path) as storage:
            put(storage, storage.open(UUID, "orders"), added(1), batch_of(remove=[1]))
            storage._journal.roll()  # trims the records: from now on only the file has them
            storage._journal = WithoutNotes(storage._journal)
        note.write_bytes(old_note)
        path.write_bytes(old)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with opened(tmp_path) as storage, pytest.raises(StorageError, match="are missing"):
            storage.open(UUID, "orders")


def test_a_resting_file_that_somebody_changed_is_noticed(storage: DuckStorage) -> None:
    store = storage.create(UUID, "orders")
    with duckdb.connect(str(store.path)) as connection:
        connection.execute("INSERT INTO items (seq, created_at, expire_deadline) VALUES (7, now(), now())")
    write(storage, store, added(8))
    assert store.file_replaced()
    with pytest.raises(StorageError, match="was replaced, removed or changed"):
        store.flush()
    assert in_file(store.path) == 1
    again = storage.open(UUID, "orders")
    assert ready_seqs(again) == [7, 8]
