"""Payloads that need more memory than DuckDB's first limit when they are unpacked."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from querator import limits
from querator.daemon.store.duck import arrow_rows
from querator.daemon.store.duck.copies import contents, write_snapshot
from querator.daemon.store.duck.database import is_lack_of_memory
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.instance import Instance
from querator.daemon.store.duck.snapshot import SnapshotLost
from querator.daemon.store.duck.storage import DuckStorage
from tests.store.store_making import UUID, batch_of, item, leased, put


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[DuckStorage]:
    storage = DuckStorage("disk", directory)
    storage.recover()
    try:
        yield storage
    finally:
        storage.close()


def text_of(size_bytes: int) -> bytes:
    """A payload that DuckDB compresses well."""
    return json.dumps(
        [{"id": n, "name": f"customer {n % 7}", "active": True} for n in range(size_bytes // 50)]
    ).encode()


class TestCompressiblePayloads:
    """DuckDB unpacks the payloads of 2,048 rows together, which can take many times its first memory limit."""

    PAYLOAD = text_of(40_000)
    ITEMS = 1_200

    @pytest.fixture
    def tight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "DUCKDB_MEMORY_BYTES", 24_000_000)
        monkeypatch.setattr(limits, "DUCKDB_JOB_MEMORY_BYTES", 24_000_000)

    @pytest.fixture
    def filled(self, tight: None, tmp_path: Path) -> Iterator[DuckStore]:
        """Items 1 to 400 are ready, 401 to 800 are leased, and 801 to 1,200 are scheduled. The storage was reopened."""
        with opened(tmp_path) as storage:
            store = storage.create(UUID, "orders")
            for first in range(1, 401, 100):
                ready, held, later = (range(first + start, first + start + 100) for start in (0, 400, 800))
                put(
                    storage,
                    store,
                    batch_of(
                        add=[item(seq, payload=self.PAYLOAD) for seq in (*ready, *held)],
                        schedule=[item(seq, payload=self.PAYLOAD, enqueue_at=2_000 - seq) for seq in later],
                        last_seq=self.ITEMS,
                    ),
                    leased(*((seq, 1, 10_000 - seq) for seq in held)),
                )
        with opened(tmp_path) as storage:
            yield storage.open(UUID, "orders")

    def test_all_waiting_items_are_read_in_turns(self, filled: DuckStore) -> None:
        seqs: list[int] = []
        while read := filled.ready(seqs[-1] if seqs else 0, None, 20_000, 5_000_000):
            assert sum(len(one.payload) for one in read) <= 5_000_000
            assert {one.payload for one in read} == {self.PAYLOAD}
            seqs += [one.seq for one in read]
        assert seqs == list(range(1, 401))

    def test_all_leases_are_read(self, filled: DuckStore) -> None:
        assert [one.item.seq for one in filled.leased()] == list(range(800, 400, -1))
        assert {one.item.payload for one in filled.leased()} == {self.PAYLOAD}

    def test_the_scheduled_items_that_are_due_first_are_read_as_far_as_memory_keeps_them(
        self, filled: DuckStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert [one.seq for one in filled.scheduled(400).items] == list(range(1_200, 800, -1))
        assert filled.scheduled(400).are_all and not filled.scheduled(399).are_all
        monkeypatch.setattr(limits, "SCHEDULED_WINDOW_BYTES_MAX", 10 * len(self.PAYLOAD))
        due = filled.scheduled(400)
        assert [one.seq for one in due.items] == list(range(1_200, 1_190, -1)) and not due.are_all

    def test_expired_items_are_read_in_turns(self, filled: DuckStore) -> None:
        expired = filled.expired(10_000_000, 1_000)
        assert [one.seq for one in expired] == list(range(1, len(expired) + 1))
        assert 0 < sum(len(one.payload) for one in expired) <= limits.SLICE_BYTES_MAX

    def test_pages_are_read_in_turns(self, filled: DuckStore) -> None:
        for is_scheduled, wanted in ((False, range(1, 801)), (True, range(801, 1_201))):
            seqs: list[int] = []
            while page := filled.page(is_scheduled, seqs[-1] + 1 if seqs else 0, 1_000):
                assert sum(len(one.item.payload) for one in page) <= limits.PAGE_BYTES_MAX
                assert {one.deadline for one in page} <= {0, *(10_000 - one.item.seq for one in page)}
                seqs += [one.item.seq for one in page]
            assert seqs == list(wanted)

    def test_many_are_found_with_and_without_payloads(self, filled: DuckStore) -> None:
        found = filled.find(range(1, 1_300))
        assert list(found) == list(range(1, 1_201)) and {one.item.payload for one in found.values()} == {self.PAYLOAD}  # type: ignore[union-attr]
        assert [found[seq].state for seq in (1, 401, 801)] == ["ready", "leased", "scheduled"]
        bare = filled.find(range(1, 1_300), payloads=False)
        assert {seq: one.state for seq, one in bare.items()} == {seq: one.state for seq, one in found.items()}
        assert {one.item.payload for one in bare.values()} == {b""}  # type: ignore[union-attr]

    def test_a_file_is_compacted_and_copied(self, filled: DuckStore, tmp_path: Path) -> None:
        filled.compact()
        assert filled.summary().ready == 400
        copy = tmp_path / "copy" / "copy.duckdb"
        copy.parent.mkdir()
        while True:
            snapshot = filled.snapshot()
            try:
                written = write_snapshot(snapshot, copy, lambda done: None)
                break
            except SnapshotLost:
                copy.unlink(missing_ok=True)
            finally:
                snapshot.close()
        assert written.rows["items"] == 800 and contents(copy) == written

    @pytest.mark.parametrize("statement", ["a read", "a commit"])
    def test_a_lack_of_memory_is_recognised_whatever_its_words(
        self, tight: None, tmp_path: Path, statement: str
    ) -> None:
        instance = Instance(tmp_path)
        cursor = instance.cursor()
        file = instance.attach("p", tmp_path / "p.duckdb")
        file.create_tables()
        cursor.execute("BEGIN")
        with pytest.raises(duckdb.Error) as raised:
            if statement == "a read":
                cursor.execute("SELECT list(repeat('x', 1_000_000)) FROM range(100)").fetchall()
            else:
                for seq in range(60):
                    rows = pa.table(arrow_rows.item_rows([item(seq)]))
                    at = rows.column_names.index("payload")
                    file.add_rows("items", rows.set_column(at, "payload", pa.array([os.urandom(1_000_000)])))
                cursor.execute("COMMIT")
        assert is_lack_of_memory(raised.value), raised.value
        instance.close()

    def test_what_another_thread_has_got_is_not_asked_for_again(self, tight: None, tmp_path: Path) -> None:
        instance = Instance(tmp_path)
        had = instance.memory_bytes
        assert instance.make_room(had, 0) and instance.make_room(had, 0)
        assert instance.memory_bytes == 2 * had
        instance.close()

    def test_blocks_are_not_forgotten_while_a_file_changes(self, tmp_path: Path) -> None:
        """DuckDB has little memory for that moment, and an apply that runs out of memory cannot always be undone."""
        instance = Instance(tmp_path)
        file = instance.attach("p", tmp_path / "p.duckdb")
        file.create_tables()
        with file.transaction():
            instance.forget_blocks()
            assert instance.forgotten == 0
        instance.forget_blocks()
        assert instance.forgotten == 1
        instance.close()

    def test_a_read_that_lacked_memory_while_blocks_were_forgotten_is_only_repeated(self, tmp_path: Path) -> None:
        instance = Instance(tmp_path)
        had, forgotten = instance.memory_bytes, instance.forgotten
        instance.forget_blocks()
        assert instance.make_room(had, forgotten) and instance.memory_bytes == had
        instance.close()
