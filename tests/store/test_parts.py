"""Large payloads are kept in parts, and come back whole from every read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from querator import limits
from querator.daemon.store.base import StorageError
from querator.daemon.store.batches import Batch, Rows
from querator.daemon.store.duck import reading
from querator.daemon.store.duck.copies import contents, write_snapshot
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.parts import payloads
from querator.daemon.store.duck.slices import Scan
from querator.daemon.store.duck.storage import DuckStorage
from querator.items import Item
from querator.limits import LARGE_PAYLOAD_BYTES, PART_BYTES
from querator.wire import arrow
from tests.store.store_making import NO_BYTES_MAX, UUID, batch_of, item, leased, put

SIZES = (0, 1, LARGE_PAYLOAD_BYTES, LARGE_PAYLOAD_BYTES + 1, 3 * PART_BYTES, 1_000_000)
PAYLOADS = {seq: os.urandom(size) for seq, size in enumerate(SIZES, start=1)}
LARGE = {seq: payload for seq, payload in PAYLOADS.items() if len(payload) > LARGE_PAYLOAD_BYTES}
ITEMS = [item(seq, payload=payload) for seq, payload in PAYLOADS.items()]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[DuckStorage]:
    storage = DuckStorage("disk", tmp_path / "data")
    storage.recover()
    yield storage
    storage.close()


@pytest.fixture
def store(storage: DuckStorage) -> DuckStore:
    return storage.create(UUID, "orders")


def seqs_in_parts(store: DuckStore) -> set[int]:
    return {seq for (seq,) in store.file.rows("SELECT DISTINCT seq FROM {file}.parts")}


def ready_payloads(store: DuckStore) -> dict[int, bytes]:
    return {one.seq: one.payload for one in store.ready(0, None, 1_000, NO_BYTES_MAX)}


def faults(store: DuckStore) -> list[str]:
    snapshot = store.snapshot()
    try:
        return snapshot.faults()
    finally:
        snapshot.close()


def in_columns() -> Batch:
    table = pa.table({"payload": pa.array(list(PAYLOADS.values()), pa.binary())})
    stream = arrow.stream_start(table.schema) + arrow.stream_part(table.to_batches()[0]) + arrow.STREAM_END
    return batch_of(rows=[Rows(1, len(SIZES), 5, 10**9, stream)], last_seq=len(SIZES))


@pytest.mark.parametrize("batch", [batch_of(add=ITEMS, last_seq=len(SIZES)), in_columns()], ids=["items", "columns"])
def test_waiting_items_come_back_whole_however_they_came(storage: DuckStorage, store: DuckStore, batch: Batch) -> None:
    put(storage, store, batch)
    assert ready_payloads(store) == PAYLOADS
    assert seqs_in_parts(store) == set(LARGE)
    ((longest,),) = store.file.rows("SELECT max(octet_length(payload)) FROM {file}.items")
    assert longest == LARGE_PAYLOAD_BYTES


def test_leased_scheduled_found_and_listed_items_come_back_whole(storage: DuckStorage, store: DuckStore) -> None:
    later = [item(100 + seq, payload=payload, enqueue_at=10**9) for seq, payload in PAYLOADS.items()]
    put(
        storage,
        store,
        batch_of(add=ITEMS, schedule=later, last_seq=200),
        leased(*((seq, 1, 10**9) for seq in PAYLOADS)),
    )
    assert {one.item.seq: one.item.payload for one in store.leased()} == PAYLOADS
    assert {one.seq - 100: one.payload for one in store.scheduled(100).items} == PAYLOADS
    assert {seq: one.item.payload for seq, one in store.find(PAYLOADS).items() if one.item} == PAYLOADS
    assert {one.item.seq: one.item.payload for one in store.page(False, 0, 100)} == PAYLOADS


@pytest.mark.parametrize("table", ["items", "leases", "scheduled"])
def test_scans_have_the_payload_and_its_text(storage: DuckStorage, store: DuckStore, table: str) -> None:
    texts = {1: "small", 2: "größer " * 10_000, 3: None}
    sent = {seq: text.encode() if text else b"\xff" * 50_000 for seq, text in texts.items()}
    items = [item(seq, payload=payload, enqueue_at=10**9 * (table == "scheduled")) for seq, payload in sent.items()]
    if table == "scheduled":
        put(storage, store, batch_of(schedule=items, last_seq=3))
    else:
        put(storage, store, batch_of(add=items, last_seq=3))
    if table == "leases":
        put(storage, store, leased(*((seq, 1, 10**9) for seq in sent)))
    batch = store.slice(Scan(table, ("payload", "text"), 0, 3), 0).batch
    assert batch.column("payload").to_pylist() == list(sent.values())
    assert batch.column("text").to_pylist() == list(texts.values())


@pytest.mark.parametrize("rest", [0, 1, 3, 12, 13, PART_BYTES - 1])
@pytest.mark.parametrize("count", [2, 4, 300])
def test_no_part_is_shorter_than_the_rest(storage: DuckStorage, store: DuckStore, count: int, rest: int) -> None:
    """DuckDB takes twice as long for values that share its blocks."""
    payload = os.urandom(count * PART_BYTES + rest)
    put(storage, store, batch_of(add=[item(1, payload=payload)], last_seq=1))
    assert ready_payloads(store) == {1: payload}
    ((parts, shortest, longest),) = store.file.rows(
        "SELECT count(*), min(octet_length(content)), max(octet_length(content)) FROM {file}.parts"
    )
    assert parts == count
    assert shortest >= PART_BYTES
    assert longest < 2 * PART_BYTES + 4 * count


def test_only_payloads_that_compress_well_are_packed(storage: DuckStorage, store: DuckStore) -> None:
    random, text = os.urandom(200_000), b'{"customer": "somebody", "active": true}' * 5_000
    put(storage, store, batch_of(add=[item(1, payload=random)], last_seq=1))
    put(storage, store, batch_of(add=[item(2, payload=text)], last_seq=2))
    sums = (
        "SELECT seq, sum(octet_length(content)), sum(octet_length(packed)) FROM {file}.parts GROUP BY ALL ORDER BY seq"
    )
    assert store.file.rows(sums) == [(1, 200_000, 0), (2, 0, 200_000)]
    assert ready_payloads(store) == {1: random, 2: text}
    assert faults(store) == []


def test_payloads_of_several_inserts_come_back_whole(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PARTS_BYTES_PER_INSERT_MAX", 50_000)
    payloads = {seq: os.urandom(20_000) for seq in range(1, 9)}
    items = [item(seq, payload=payload) for seq, payload in payloads.items()]
    put(storage, store, batch_of(add=items, last_seq=8))
    assert ready_payloads(store) == payloads


def test_parts_leave_with_their_items(storage: DuckStorage, store: DuckStore) -> None:
    later = [item(100 + seq, payload=payload, enqueue_at=10**9) for seq, payload in LARGE.items()]
    put(storage, store, batch_of(add=ITEMS, schedule=later, last_seq=200))
    assert seqs_in_parts(store) == {*LARGE, *(100 + seq for seq in LARGE)}
    put(storage, store, batch_of(remove=[4], unschedule=[104]))
    assert seqs_in_parts(store) == {5, 6, 105, 106}
    put(storage, store, leased((5, 1, 10**9)), batch_of(clear_ready=True))
    assert seqs_in_parts(store) == {5, 105, 106}
    put(storage, store, batch_of(clear_leased=True, clear_scheduled=True))
    assert seqs_in_parts(store) == set()


def test_copies_and_compacted_files_have_the_parts(storage: DuckStorage, store: DuckStore, tmp_path: Path) -> None:
    put(storage, store, batch_of(add=ITEMS, last_seq=len(SIZES)))
    store.compact()
    assert ready_payloads(store) == PAYLOADS
    snapshot = store.snapshot()
    try:
        written = write_snapshot(snapshot, tmp_path / "copy.duckdb", lambda done: None)
    finally:
        snapshot.close()
    assert contents(tmp_path / "copy.duckdb") == written
    assert written.rows["parts"] == sum(len(payload) // PART_BYTES for payload in LARGE.values())


def test_a_payload_that_lacks_a_part_is_an_error_and_not_a_shorter_payload(
    storage: DuckStorage, store: DuckStore
) -> None:
    put(storage, store, batch_of(add=ITEMS, last_seq=len(SIZES)))
    store.file.cursor().execute(f"DELETE FROM {store.file.name}.parts WHERE seq = 6 AND number = 7")
    with pytest.raises(StorageError, match="the payloads of 1 items are not whole"):
        ready_payloads(store)
    assert faults(store) == ["the payloads of 1 items do not have each of their parts once"]


def test_two_parts_with_one_number_are_a_fault(storage: DuckStorage, store: DuckStore) -> None:
    """Their order is unknown, although the length of the payload is right."""
    put(storage, store, batch_of(add=ITEMS, last_seq=len(SIZES)))
    store.file.cursor().execute(f"UPDATE {store.file.name}.parts SET number = 7 WHERE seq = 6 AND number = 8")
    assert faults(store) == ["the payloads of 1 items do not have each of their parts once"]


def test_an_item_that_is_removed_while_it_is_read_is_left_out(storage: DuckStorage, store: DuckStore) -> None:
    put(storage, store, batch_of(add=ITEMS, last_seq=len(SIZES)))
    put(storage, store, batch_of(remove=[5]))
    assert payloads(store.file, "items", {4: len(LARGE[4]), 5: len(LARGE[5])}) == {4: LARGE[4]}


def test_when_all_items_of_a_read_are_removed_meanwhile_those_behind_them_are_read(
    storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of waiting items takes an empty answer for the end of the file."""
    put(storage, store, batch_of(add=ITEMS, last_seq=len(SIZES)))
    put(storage, store, batch_of(remove=[1, 2, 3]))
    removals = [batch_of(remove=[4]), batch_of(remove=[5])]
    with_parts = reading._with_parts

    def with_an_apply_before(*args: Any) -> list[Item]:
        if removals:
            put(storage, store, removals.pop(0))
        return with_parts(*args)

    monkeypatch.setattr(reading, "_with_parts", with_an_apply_before)
    assert [one.seq for one in store.ready(0, None, 1, NO_BYTES_MAX)] == [6]


def test_parts_of_items_that_were_deleted_by_hand_are_dropped(storage: DuckStorage, store: DuckStore) -> None:
    put(storage, store, batch_of(add=ITEMS, last_seq=len(SIZES)))
    store.close()
    with duckdb.connect(store.path) as connection:
        connection.execute("DELETE FROM items WHERE seq = 5")
    assert seqs_in_parts(storage.open(UUID, "orders")) == {4, 6}
