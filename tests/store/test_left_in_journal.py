"""Large items stay in the journal until they are applied: memory has only the places of their records."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import limits
from querator.daemon.store.base import StorageError
from querator.daemon.store.batches import Batch, others_of
from querator.daemon.store.delta import Delta
from querator.daemon.store.duck import applying
from querator.daemon.store.duck.attached import LARGE_BLOCK_BYTES, SMALL_BLOCK_BYTES
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.partition_file import PartitionFile
from querator.daemon.store.duck.storage import DuckStorage
from querator.daemon.store.runs import Rows, Run
from querator.wire import arrow
from tests.store.store_making import (
    NO_BYTES_MAX,
    UUID,
    added,
    batch_of,
    in_a_process_that_is_killed,
    item,
    leased,
    ready_seqs,
    write,
)

SIZE = 100_000


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[DuckStorage]:
    storage = DuckStorage("disk", directory)
    storage.recover()
    try:
        yield storage
    finally:
        storage.close()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[DuckStorage]:
    with opened(tmp_path) as storage:
        yield storage


@pytest.fixture
def store(storage: DuckStorage) -> DuckStore:
    return storage.create(UUID, "orders")


def payload(seq: int) -> bytes:
    return seq.to_bytes(4) * (SIZE // 4)


def large(*seqs: int) -> Batch:
    return batch_of(add=[item(seq, payload=payload(seq)) for seq in seqs], last_seq=max(seqs))


def in_columns(first: int, count: int) -> Batch:
    import pyarrow as pa

    payloads = [payload(seq) for seq in range(first, first + count)]
    batch = pa.record_batch({"payload": pa.array(payloads, pa.binary())})
    rows = Rows(first, count, 10, 1_000_000, arrow.encode_batches([batch], batch.schema))
    return batch_of(rows=[rows], last_seq=first + count - 1)


def ahead(store: DuckStore, after: int = 0, before: int | None = None, bytes_max: int = NO_BYTES_MAX) -> list[int]:
    """The sequences of the next waiting items, whose payloads are checked."""
    found = store.ready_ahead(after, before, 1_000, bytes_max)
    items = found if isinstance(found, list) else found.items(0, found.count)
    assert [one.payload for one in items if one.payload != b""] == [payload(one.seq) for one in items if one.payload]
    return [one.seq for one in items]


def test_memory_does_not_have_large_items_and_reads_them_from_the_journal(
    storage: DuckStorage, store: DuckStore
) -> None:
    write(storage, store, large(1, 2), in_columns(3, 2))
    assert store.held_bytes == 0
    assert store.memory_bytes == 4 * limits.KEY_BYTES
    assert 4 * SIZE < store.left_bytes < 5 * SIZE
    assert ahead(store) == [1, 2, 3, 4]
    assert ahead(store, 1, 4) == [2, 3]
    assert ahead(store, 0, None, 2 * SIZE + 10_000) == [1, 2]
    assert ahead(store, 0, None, 1) == [1]
    assert ahead(store, 4) == []


def test_small_items_stay_in_memory(storage: DuckStorage, store: DuckStore) -> None:
    write(storage, store, batch_of(add=[item(seq, payload=b"x" * 1_000) for seq in range(1, 101)], last_seq=100))
    assert store.held_bytes > 100_000
    assert store.left_bytes == 0


def test_items_in_the_file_come_before_those_in_the_journal(storage: DuckStorage, store: DuckStore) -> None:
    write(storage, store, large(1, 2))
    store.flush()
    write(storage, store, added(3), large(4))
    assert ahead(store) == [1, 2]
    assert ahead(store, 2) == [3, 4]


def test_an_apply_writes_them_to_the_file(storage: DuckStorage, store: DuckStore) -> None:
    write(storage, store, large(1, 2), in_columns(3, 3), leased((2, 1, 99)), batch_of(remove=[1, 4]))
    store.flush()
    assert store.left_bytes == 0
    assert ready_seqs(store) == [3, 5]
    assert [(one.item.seq, one.item.payload) for one in store.leased()] == [(2, payload(2))]
    assert ahead(store) == [3, 5]


def test_an_apply_writes_the_large_items_of_a_large_request(storage: DuckStorage, store: DuckStore) -> None:
    kinds = [f"kind {seq}" for seq in range(1, 21)]
    run = Run(1, 20, 10, 1_000_000, [payload(seq) for seq in range(1, 20)] + [b"small"], kinds)
    write(storage, store, batch_of(rows=[run], last_seq=20), leased((2, 1, 99)), batch_of(remove=[1, 4]))
    store.flush()
    items = [*store.ready(0, None, 100, NO_BYTES_MAX), *(one.item for one in store.leased())]
    expected = [(seq, payload(seq), f"kind {seq}") for seq in (3, *range(5, 20), 2)]
    expected.insert(-1, (20, b"small", "kind 20"))
    assert [(one.seq, one.payload, one.kind) for one in items] == expected
    assert {seq for (seq,) in store.file.rows("SELECT seq FROM {file}.parts")} == {2, 3, *range(5, 20)}


def test_items_that_come_and_go_never_reach_the_file(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEFT_DELTA_BYTES", 2 * SIZE)
    inserted: list[str] = []
    insert = PartitionFile.insert

    def noted(file: PartitionFile, cursor: object, table: str, rows: object) -> None:
        inserted.append(table)
        insert(file, cursor, table, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionFile, "insert", noted)
    write(storage, store, large(1, 2), large(3, 4), leased((1, 1, 99), (2, 1, 99)), batch_of(remove=[1, 2]))
    assert store.catch_up() == 0
    assert inserted == []
    assert ahead(store) == [3, 4]
    write(storage, store, batch_of(remove=[3]))
    store.flush()
    assert ready_seqs(store) == [4]


def test_a_net_effect_with_much_in_the_journal_is_applied_in_several_transactions(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEFT_DELTA_BYTES", 2 * SIZE)
    for seq in range(1, 10, 2):
        write(storage, store, large(seq, seq + 1))
    write(storage, store, added(11))
    applied = []
    while store.unapplied_bytes:
        left_bytes = store.left_bytes
        assert store.catch_up() == left_bytes - store.left_bytes
        applied.append(store.applied_through)
        assert ahead(store)[0] == 1
        assert ahead(store, 8)[:1] == [9]
    assert applied == [2, 4, 6, 8, 10, 11]
    assert ready_seqs(store) == list(range(1, 12))


def test_clears_reach_items_in_the_journal(storage: DuckStorage, store: DuckStore) -> None:
    write(storage, store, large(1, 2, 3), leased((2, 1, 99)), batch_of(clear_ready=True))
    assert ahead(store) == []
    assert store.is_removed(1) and not store.is_removed(2, "leased")
    write(storage, store, large(4))
    store.flush()
    assert ready_seqs(store) == [4]
    write(storage, store, large(5), leased((5, 1, 99)), batch_of(clear_leased=True))
    store.flush()
    assert store.leased() == []
    assert ready_seqs(store) == [4]


def test_they_survive_a_crash(tmp_path: Path) -> None:
    in_a_process_that_is_killed(
        tmp_path,
        """
        for seq in range(1, 9):
            write(storage, store, batch_of(add=[item(seq, payload=bytes([seq]) * 100_000)], last_seq=seq))
        write(storage, store, batch_of(remove=[3]))
        assert store.left_bytes
        """,
    )
    with opened(tmp_path) as storage:
        store = storage.open(UUID, "orders")
        items = store.ready(0, None, 100, NO_BYTES_MAX)
        assert [(one.seq, one.payload) for one in items] == [
            (seq, bytes([seq]) * 100_000) for seq in range(1, 9) if seq != 3
        ]


def test_a_file_without_rows_gets_larger_blocks_before_large_items_are_applied(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LARGE_BLOCKS_BYTES_MIN", SIZE)
    write(storage, store, large(1, 2))
    assert ahead(store) == [1, 2]
    assert store.is_resting
    store.flush()
    assert store.file.block_bytes() == LARGE_BLOCK_BYTES
    assert ready_seqs(store) == [1, 2]
    write(storage, store, batch_of(remove=[1, 2]))
    store.flush()
    assert store.rest()
    inode = store.path.stat().st_ino
    write(storage, store, large(3, 4))
    store.flush()
    assert store.path.stat().st_ino == inode
    assert ready_seqs(store) == [3, 4]


def test_a_file_with_rows_or_an_open_snapshot_keeps_its_blocks(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LARGE_BLOCKS_BYTES_MIN", SIZE)
    snapshot = store.snapshot()
    write(storage, store, large(1, 2))
    store.flush()
    snapshot.close()
    write(storage, store, large(3, 4))
    store.flush()
    assert store.file.block_bytes() == SMALL_BLOCK_BYTES
    assert ready_seqs(store) == [1, 2, 3, 4]


@pytest.mark.parametrize("is_switched", [False, True], ids=["before the switch", "after the switch"])
def test_a_file_that_could_not_be_attached_after_it_got_larger_blocks_is_attached_later(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch, is_switched: bool
) -> None:
    monkeypatch.setattr(limits, "LARGE_BLOCKS_BYTES_MIN", SIZE)
    write(storage, store, large(1, 2))
    with monkeypatch.context() as patched:
        instance = store.file.instance
        attach = instance.attach
        if not is_switched:
            patched.setattr(Path, "rename", lambda *_: no_descriptors())
        patched.setattr(
            instance, "attach", lambda name, *rest: attach(name, *rest) if "_copy" in name else no_descriptors()
        )
        with pytest.raises(StorageError, match="Too many open files"):
            store.flush()
    assert not store.file_replaced()
    store.flush()
    assert ready_seqs(store) == [1, 2]
    assert store.file.block_bytes() == LARGE_BLOCK_BYTES


def no_descriptors() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("step", ["compact.copied", "compact.switched", "apply.committed"])
def test_a_crash_while_a_file_gets_larger_blocks_loses_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("QUERATOR_FAILPOINT", step)
        in_a_process_that_is_killed(
            tmp_path,
            """
            from querator import limits
            limits.LARGE_BLOCKS_BYTES_MIN = 100_000
            for seq in range(1, 9):
                write(storage, store, batch_of(add=[item(seq, payload=bytes([seq]) * 100_000)], last_seq=seq))
            store.flush()
            raise AssertionError("the process was not killed")
            """,
        )
    with opened(tmp_path) as storage:
        items = storage.open(UUID, "orders").ready(0, None, 100, NO_BYTES_MAX)
        assert [(one.seq, one.payload) for one in items] == [(seq, bytes([seq]) * 100_000) for seq in range(1, 9)]


def test_records_that_were_copied_out_of_their_segment_are_found(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 1)
    write(storage, store, large(1, 2))
    storage.roll()
    write(storage, store, large(3))
    storage.roll()
    storage.roll()
    assert not list(storage.directory.glob("journal/000000000001.seg"))
    assert ahead(store) == [1, 2, 3]
    store.flush()
    assert ready_seqs(store) == [1, 2, 3]


def test_a_read_finds_items_that_an_apply_has_moved_to_the_file_meanwhile(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(storage, store, large(1, 2))
    in_file = DuckStore._ready_in_file

    def slow(read: DuckStore, after: int, before: int, items_max: int, bytes_max: int) -> object:
        found = in_file(read, after, before, items_max, bytes_max)
        if store.left_bytes:
            store.flush()
            storage.roll()
            for path in storage.directory.glob("journal/*.s*"):
                os.truncate(path, 0)  # as if other records were written over them
        return found

    monkeypatch.setattr(DuckStore, "_ready_in_file", slow)
    assert ahead(store) == [1, 2]


def test_a_record_that_is_gone_is_an_error_and_not_a_missing_item(storage: DuckStorage, store: DuckStore) -> None:
    write(storage, store, large(1, 2))
    (segment,) = storage.directory.glob("journal/*.seg")
    content = segment.read_bytes()
    segment.write_bytes(content[:1_000] + b"?" + content[1_001:])
    with pytest.raises(StorageError):
        ahead(store)
    with pytest.raises(StorageError):
        store.flush()
    segment.write_bytes(content)
    store.flush()
    assert ready_seqs(store) == [1, 2]


def test_an_apply_that_failed_is_repeated(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(storage, store, large(1, 2))
    with monkeypatch.context() as patched:

        def failing(file: PartitionFile, delta: Delta, left: object) -> None:
            raise OSError("no")

        patched.setattr(applying, "apply", failing)
        with pytest.raises(StorageError):
            store.catch_up()
    assert ahead(store) == [1, 2]
    write(storage, store, large(3), batch_of(remove=[1]))
    assert ahead(store) == [2, 3]
    store.flush()
    assert ready_seqs(store) == [2, 3]


def test_items_that_are_left_come_in_their_order_however_their_batch_has_them(
    storage: DuckStorage, store: DuckStore
) -> None:
    batch = in_columns(1, 3)
    batch.add = [item(4, payload=payload(4))]
    others_of(batch).rows = [*(others_of(batch).rows or ()), *(others_of(in_columns(5, 2)).rows or ())]
    batch.last_seq = 6
    write(storage, store, batch)
    assert ahead(store, 0, 4) == [1, 2, 3]
    assert ahead(store, 0, None, 2 * SIZE + 10_000) == [1, 2]
    assert ahead(store, 2) == [3, 4, 5, 6]


def test_an_item_that_never_reaches_the_file_leaves_no_lease_there(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEFT_DELTA_BYTES", 2 * SIZE)
    write(storage, store, large(1, 2), leased((1, 1, 99)), large(3, 4), batch_of(remove=[1]))
    assert len(store.unapplied.filled) == 2
    store.flush()
    assert ready_seqs(store) == [2, 3, 4]
    assert store.file.rows("SELECT seq FROM {file}.leases") == []


def test_a_clear_does_not_concern_items_that_came_after_it(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEFT_DELTA_BYTES", 2 * SIZE)
    write(storage, store, large(1), batch_of(clear_ready=True), large(2, 3), large(4, 5), large(6))
    store.unapplied.commit(batch_of(clear_scheduled=True, last_seq=6))
    read = [2, 3, 4, 5, 6]
    assert ahead(store) == read
    assert (store.is_removed(1), store.removed_among(read)) == (True, set())
    store.catch_up()
    assert (store.is_removed(1), store.removed_among(read)) == (True, set())
    write(storage, store)
    store.flush()
    assert (ready_seqs(store), store.removed_among(read)) == (read, set())


def test_an_item_that_comes_back_during_a_flush_is_not_missing_after_it(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEFT_DELTA_BYTES", 2 * SIZE)
    write(storage, store, large(1, 2), large(3, 4))
    comes_back = [batch_of(remove=[3], add=[item(5)], last_seq=5)]
    insert = PartitionFile.insert

    def meanwhile(file: PartitionFile, cursor: object, table: str, rows: object) -> None:
        if comes_back:
            write(storage, store, comes_back.pop())
        insert(file, cursor, table, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionFile, "insert", meanwhile)
    store.flush()
    assert ready_seqs(store) == [1, 2, 3, 4]
    store.flush()
    assert ready_seqs(store) == [1, 2, 4, 5]
