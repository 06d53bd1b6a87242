"""Tests for storages on disk only: crashes, full disks, damage, and files that are not partitions."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest

from querator import limits
from querator.daemon.store.base import Leased, StorageError, Summary
from querator.daemon.store.batches import Batch
from querator.daemon.store.delta import Delta
from querator.daemon.store.duck import applying, reading, tables
from querator.daemon.store.duck.attached import log_path
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.instance import ROW_GROUP_ROWS, Instance
from querator.daemon.store.duck.partition_file import PartitionFile
from querator.daemon.store.duck.storage import DuckStorage
from querator.daemon.store.journal import records
from querator.items import ZERO_TIME_US
from tests import ROOT
from tests.store.store_making import (
    NO_BYTES_MAX,
    OTHER_UUID,
    THIRD_UUID,
    UUID,
    added,
    batch_of,
    in_a_process_that_is_killed,
    item,
    leased,
    put,
    ready_seqs,
    write,
)


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


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "journal").glob("*.seg"))


def magic(segment: Path) -> bytes:
    """The bytes that begin every record of this segment."""
    return records.magic_of(int(segment.stem)).to_bytes(4, "little")


class TestCrashes:
    def test_what_was_written_and_not_applied_is_replayed(self, tmp_path: Path) -> None:
        in_a_process_that_is_killed(
            tmp_path,
            """
            put(storage, store, added(1, 2, 3), leased((1, 1, 900)))
            write(storage, store, batch_of(remove=[2]), leased((3, 1, 950)), added(4, 5))
            store.unapplied.commit(added(6))
            """,
        )
        with opened(tmp_path) as storage:
            store = storage.open(UUID, "orders")
            assert ready_seqs(store) == [4, 5]
            assert store.leased() == [Leased(item(1), 1, 900), Leased(item(3), 1, 950)]
            assert store.summary().last_seq == store.applied_through == 5
            put(storage, store, added(6))
            assert ready_seqs(store) == [4, 5, 6]

    def test_again_and_again(self, tmp_path: Path) -> None:
        for seq in range(1, 5):
            in_a_process_that_is_killed(
                tmp_path, f"(put if {seq} % 2 else write)(storage, store, added({seq}), batch_of(remove=[{seq - 2}]))"
            )
        with opened(tmp_path) as storage:
            assert ready_seqs(storage.open(UUID, "orders")) == [3, 4]

    def test_a_crash_between_applying_and_deleting_the_segment(self, tmp_path: Path) -> None:
        in_a_process_that_is_killed(
            tmp_path,
            """
            write(storage, store, added(1), added(2))
            store.report_applied = lambda: None
            store.flush()
            """,
        )
        assert len(segments(tmp_path)) == 1
        with opened(tmp_path) as storage:
            store = storage.open(UUID, "orders")
            assert ready_seqs(store) == [1, 2]
            assert segments(tmp_path) == []

    def test_records_that_are_copied_out_before_they_are_replayed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two partitions have records in the same segments. The other partition is opened first, and then no longer
        needs its records.
        """
        in_a_process_that_is_killed(
            tmp_path,
            """
            from querator import limits
            limits.SEGMENT_BYTES_MAX = 1
            other = storage.create(OTHER_UUID, "orders")
            for seq in range(1, 8):
                write(storage, store, added(seq))
                write(storage, other, added(seq))
            """,
        )
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 0)
        with opened(tmp_path) as storage:
            assert ready_seqs(storage.open(OTHER_UUID, "orders")) == list(range(1, 8))
            assert ready_seqs(storage.open(UUID, "orders")) == list(range(1, 8))

    def test_a_log_that_ends_in_the_middle_of_a_commit(self, tmp_path: Path) -> None:
        """A process that is killed while DuckDB commits leaves such a log. The journal still has the records."""
        in_a_process_that_is_killed(
            tmp_path / "killed",
            """
            put(storage, store, added(1, 2))
            store.checkpoint(force=True)
            put(storage, store, batch_of(remove=[1]), added(3))
            put(storage, store, batch_of(remove=[2]), added(4))
            """,
        )
        log = log_path(tmp_path / "killed" / f"{UUID}.duckdb")
        for size in range(1, log.stat().st_size, 431):
            directory = tmp_path / str(size)
            shutil.copytree(tmp_path / "killed", directory)
            os.truncate(directory / log.name, size)
            with opened(directory) as storage:
                store = storage.open(UUID, "orders")
                assert ready_seqs(store) == [3, 4]
                assert not (directory / "quarantine").exists()

    def test_killed_at_any_moment_nothing_acknowledged_is_lost(self, tmp_path: Path) -> None:
        """Items are added and removed, applied by another thread, and the process is killed in the middle of it."""
        script = f"""
import sys, threading
sys.path.insert(0, {str(ROOT)!r})
from querator import limits
from querator.daemon.store.duck.storage import DuckStorage
from tests.store.store_making import *
limits.SEGMENT_BYTES_MAX = 20_000
storage = DuckStorage("disk", {str(tmp_path)!r})
storage.recover()
store = storage.create(UUID, "orders") if not list(storage.directory.glob("*.duckdb")) else storage.open(UUID, "orders")
seqs = ready_seqs(store)
assert seqs == list(range(seqs[0], seqs[-1] + 1)) if seqs else True, seqs
print(seqs[0] if seqs else 1, seqs[-1] if seqs else 0, flush=True)
seq = store.summary().last_seq

def keep_applying():
    while True:
        store.flush()
        store.checkpoint(force=store.applied_through % 3 == 0)

threading.Thread(target=keep_applying, daemon=True).start()
while True:
    seq += 1
    gone = [seq - 20] if seq > 20 else []
    write(storage, store, batch_of(add=[item(seq, payload=b"x" * 300)], remove=gone, last_seq=seq))
    print(seq, flush=True)
"""
        acknowledged = 0
        for round_ in range(5):
            daemon = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
            assert daemon.stdout is not None
            first, last = (int(word) for word in daemon.stdout.readline().split())
            # The last write may have become durable without having been acknowledged.
            assert acknowledged <= last <= acknowledged + 1
            assert first == max(1, last - 19)
            for _ in range(40 + round_ * 37):
                acknowledged = int(daemon.stdout.readline())
            daemon.kill()
            for line in daemon.stdout.read().split():
                acknowledged = int(line)
            daemon.wait()

    def test_everything_can_be_read_by_another_process_after_closing(self, tmp_path: Path) -> None:
        with opened(tmp_path) as storage:
            store = storage.create(UUID, "orders")
            write(storage, store, batch_of(add=[item(1, created_at=ZERO_TIME_US)], last_seq=1), leased((1, 2, 0)))
            store.close()
            script = (
                f"import duckdb; c = duckdb.connect({str(tmp_path / UUID)!r} + '.duckdb');"
                "print(c.execute('select seq, created_at::varchar, leases.attempts, deadline::varchar"
                " from items join leases using (seq)').fetchall());"
                "print(c.execute('select uuid, queue from meta').fetchall())"
            )
            ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
            assert "(1, '0001-01-01 00:00:00', 2, '1970-01-01 00:00:00')" in ran.stdout
            assert f"('{UUID}', 'orders')" in ran.stdout
        assert not log_path(tmp_path / f"{UUID}.duckdb").exists()
        assert segments(tmp_path) == []


class TestReadyItems:
    @pytest.fixture
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The numbers of rows whose sizes were measured before a read."""
        measured: list[int] = []
        count_fitting = reading.count_fitting

        def watched(file: PartitionFile, table: str, seqs: Sequence[int], bytes_max: int) -> int:
            measured.append(len(seqs))
            return count_fitting(file, table, seqs, bytes_max)

        monkeypatch.setattr(reading, "count_fitting", watched)
        return measured

    def test_small_items_are_not_measured(self, storage: DuckStorage, store: DuckStore, measured: list[int]) -> None:
        put(storage, store, batch_of(add=[item(seq, payload=b"x" * 100) for seq in range(1, 41)], last_seq=40))
        assert [one.seq for one in store.ready(10, 31, 15, 2_000)] == list(range(11, 26))
        store.checkpoint(force=True)
        assert [one.seq for one in store.ready(10, 31, 15, 2_000)] == list(range(11, 26))
        assert measured == []

    def test_items_are_measured_once_a_large_one_was_added(
        self, storage: DuckStorage, store: DuckStore, measured: list[int]
    ) -> None:
        put(storage, store, added(1, 2, 3))
        put(storage, store, batch_of(add=[item(4, history=b"x" * 1_000)], last_seq=4), added(5))
        assert [one.seq for one in store.ready(0, None, 9, 1_500)] == [1, 2, 3, 4, 5]
        assert [one.seq for one in store.ready(0, None, 9, 999)] == [1, 2, 3]
        assert measured == [5, 5]

    def test_leased_items_and_rows_out_of_order_are_no_obstacle(self, storage: DuckStorage, store: DuckStore) -> None:
        put(storage, store, added(5, 6, 7, 8), leased((6, 1, 9)))
        assert [one.seq for one in store.ready(0, None, 2, NO_BYTES_MAX)] == [5, 7]
        put(storage, store, added(1, 2))
        assert [one.seq for one in store.ready(0, None, 3, NO_BYTES_MAX)] == [1, 2, 5]


class TestReadingOn:
    """Reads that begin where the last one ended."""

    @pytest.fixture
    def queries(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        queries: list[str] = []
        select, rows = PartitionFile.select, PartitionFile.rows

        def watched_select(
            file: PartitionFile, query: str, *parameters: object, wanted: Sequence[int] = ()
        ) -> pa.Table:
            queries.append(query)
            return select(file, query, *parameters, wanted=wanted)

        def watched_rows(file: PartitionFile, query: str, *parameters: object) -> list[tuple[Any, ...]]:
            queries.append(query)
            return rows(file, query, *parameters)

        monkeypatch.setattr(PartitionFile, "select", watched_select)
        monkeypatch.setattr(PartitionFile, "rows", watched_rows)
        return queries

    def read(self, store: DuckStore, after: int, before: int | None = None) -> list[int]:
        found = store.ready_ahead(after, before, 10, NO_BYTES_MAX)
        return [one.seq for one in found] if isinstance(found, list) else found.seqs()

    def test_it_takes_one_query(self, storage: DuckStorage, store: DuckStore, queries: list[str]) -> None:
        put(storage, store, added(*range(1, 101)))
        assert self.read(store, 0) == list(range(1, 11))
        queries.clear()
        assert self.read(store, 10) == list(range(11, 21))
        assert self.read(store, 20, before=25) == [21, 22, 23, 24]
        assert len(queries) == 2

    @pytest.mark.parametrize(
        "field",
        [
            "kind",
            "reference",
            "encoding",
            "source_id",
            "history",
            "attempts",
            "max_attempts",
            "birth",
            "imported_deadline",
        ],
    )
    def test_it_reads_only_columns_with_values(
        self, storage: DuckStorage, store: DuckStore, queries: list[str], field: str
    ) -> None:
        plain = [item(seq, payload=b"%d" % seq) for seq in range(1, 21)]
        put(storage, store, batch_of(add=plain, last_seq=20))
        assert store.ready(0, None, 20, NO_BYTES_MAX) == plain
        assert not any(field in query.partition("FROM")[0] for query in queries if "payload" in query[:60])
        value: Any = {"kind": "7", "reference": "7", "encoding": "7", "source_id": "7", "history": b"7"}.get(field, 7)
        others = [item(21, **{field: value}), item(22)]
        put(storage, store, batch_of(add=others, last_seq=22))
        store.checkpoint(force=True)
        assert store.ready(0, None, 22, NO_BYTES_MAX) == plain + others

    def test_it_does_not_see_what_an_apply_has_removed(self, storage: DuckStorage, store: DuckStore) -> None:
        put(storage, store, added(*range(1, 41)))
        assert self.read(store, 0) == list(range(1, 11))
        put(storage, store, batch_of(remove=[*range(1, 13), 15]), added(*range(50, 60)))
        assert self.read(store, 10) == [13, 14, *range(16, 24)]

    def test_it_ends_with_the_last_item(self, storage: DuckStorage, store: DuckStore) -> None:
        put(storage, store, added(*range(1, 16)))
        assert self.read(store, 0) == list(range(1, 11))
        assert self.read(store, 10) == [11, 12, 13, 14, 15]
        assert self.read(store, 15) == []
        put(storage, store, added(16, 17))
        assert self.read(store, 15) == [16, 17]

    def test_items_that_were_leased_since_are_not_read_again(self, storage: DuckStorage, store: DuckStore) -> None:
        put(storage, store, added(*range(1, 41)))
        assert self.read(store, 0) == list(range(1, 11))
        put(storage, store, leased((2, 1, 9), (12, 1, 9)))
        assert self.read(store, 0) == [1, *range(3, 12)]
        assert self.read(store, 11) == list(range(13, 23))

    def test_items_behind_the_first_that_are_out_of_order_or_leased(
        self, storage: DuckStorage, store: DuckStore
    ) -> None:
        put(storage, store, added(*range(1, 26), *range(30, 41)), leased((35, 1, 9)))
        put(storage, store, added(26, 27))
        read: list[int] = []
        while some := self.read(store, read[-1] if read else 0):
            read += some
        assert read == [*range(1, 28), *range(30, 35), *range(36, 41)]


class TestApplying:
    def test_an_item_that_came_and_went_never_meets_sql(self, storage: DuckStorage, store: DuckStore) -> None:
        batch = batch_of(add=[item(seq) for seq in range(1, 1001)], last_seq=1000)
        write(storage, store, batch)
        write(storage, store, leased(*((seq, 1, 5) for seq in range(1, 1001))))
        write(storage, store, batch_of(remove=list(range(1, 1001))))
        store.freeze()
        frozen = store.unapplied.frozen
        assert frozen is not None
        assert not frozen.added
        assert not frozen.leases
        assert not frozen.removed
        store.apply()
        assert store.summary() == Summary(0, 0, 0, 0, 1000, None, None)

    def test_many_items_are_written_to_the_file_and_not_to_its_log_first(
        self, storage: DuckStorage, store: DuckStore
    ) -> None:
        payloads = {seq: os.urandom(2_000) for seq in range(1, 2 * ROW_GROUP_ROWS + 1)}
        write(storage, store, batch_of(add=[item(seq, payload=payload) for seq, payload in payloads.items()]))
        store.flush()
        assert log_path(store.path).stat().st_size < 100_000
        assert {one.seq: one.payload for one in store.ready(0, None, 10_000, NO_BYTES_MAX)} == payloads

    def test_more_than_one_insert(
        self, storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "APPLY_ROWS_PER_INSERT_MAX", 3)
        put(storage, store, added(*range(1, 11)))
        assert ready_seqs(store) == list(range(1, 11))

    def test_rows_that_were_read_before_two_applies_of_one_flush_are_known_to_be_removed(
        self, storage: DuckStorage, store: DuckStore
    ) -> None:
        put(storage, store, added(1, 2, 3))
        write(storage, store, batch_of(remove=[1]))
        store.freeze()
        write(storage, store, batch_of(remove=[2]))
        # A read beside the flush may see the file as it was before the first apply.
        store.flush()
        assert store.removed_among([1, 2, 3]) == {1, 2}
        write(storage, store, batch_of(remove=[3]))
        store.flush()
        assert store.removed_among([1, 2, 3]) == {3}

    def test_commits_go_on_while_applying_fails(
        self, storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(storage, store, added(1, 2, 3))
        write(storage, store, batch_of(remove=[1]), added(4))
        with monkeypatch.context() as patched:
            patched.setattr(PartitionFile, "insert", _no_space)
            with pytest.raises(StorageError, match="No space left") as raised:
                store.flush()
            assert raised.value.uuids == {UUID}
            assert ready_seqs(store) == [1, 2, 3]
            assert store.is_removed(1)
            assert store.applied_through == 3
            write(storage, store, batch_of(remove=[2, 4]), added(5), leased((3, 1, 9)))
            assert store.is_removed(2)
            with pytest.raises(StorageError):
                store.flush()
            assert store.unapplied_bytes > 0
        store.flush()
        assert ready_seqs(store) == [5]
        assert [found.item.seq for found in store.leased()] == [3]
        assert store.unapplied_bytes == 0

    def test_a_real_full_disk(self, tmp_path: Path) -> None:
        """A limit on file sizes makes writes to DuckDB's log fail, while the journal can still grow."""
        in_a_process_that_is_killed(
            tmp_path,
            """
            import resource
            from querator.daemon.store.base import StorageError
            put(storage, store, added(1, 2))
            items = [item(seq, payload=os.urandom(4000)) for seq in range(3, 300)]
            write(storage, store, batch_of(add=items, last_seq=300))
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            for _ in range(2):
                try:
                    store.flush()
                except StorageError as error:
                    assert error.uuids == {UUID}, error
                else:
                    raise AssertionError("there was room")
                assert ready_seqs(store) == [1, 2]
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            write(storage, store, batch_of(remove=[1, 3]), added(301))
            store.flush()
            assert ready_seqs(store) == [2, *range(4, 300), 301]
            """,
        )
        with opened(tmp_path) as storage:
            assert ready_seqs(storage.open(UUID, "orders")) == [2, *range(4, 300), 301]

    def test_a_full_disk_in_a_checkpoint(self, tmp_path: Path) -> None:
        in_a_process_that_is_killed(
            tmp_path,
            """
            import resource
            from querator.daemon.store.base import StorageError
            large = [item(seq, payload=os.urandom(4000)) for seq in range(1, 300)]
            put(storage, store, batch_of(add=large, last_seq=300))
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            try:
                store.checkpoint(force=True)
            except StorageError as error:
                assert error.uuids == {UUID}, error
            else:
                raise AssertionError("there was room")
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            put(storage, store, batch_of(remove=[1]), added(301))
            assert ready_seqs(store) == [*range(2, 300), 301]
            store.checkpoint(force=True)
            """,
        )
        with opened(tmp_path) as storage:
            assert ready_seqs(storage.open(UUID, "orders")) == [*range(2, 300), 301]

    def test_an_apply_that_reports_failure_and_is_durable_is_not_repeated(
        self, storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(storage, store, added(1))
        apply = applying.apply
        with monkeypatch.context() as patched:

            def unlucky(file: PartitionFile, delta: Delta, left: Iterable[Batch]) -> None:
                apply(file, delta, left)
                raise duckdb.IOException("the answer was lost")

            patched.setattr(applying, "apply", unlucky)
            with pytest.raises(StorageError):
                store.flush()
        store.flush()
        assert ready_seqs(store) == [1]

    def test_a_file_is_attached_again_after_a_transaction_that_could_not_be_undone(
        self, storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(storage, store, added(1, 2))
        store.flush()
        write(storage, store, batch_of(remove=[1]))
        file = store.file
        with monkeypatch.context() as patched:

            def conflicting(file: PartitionFile, delta: Delta, left: Iterable[Batch]) -> None:
                raise duckdb.TransactionException("Conflict on tuple deletion!")

            patched.setattr(applying, "apply", conflicting)
            with pytest.raises(StorageError, match="Conflict"):
                store.flush()
        assert store.file is not file
        store.flush()
        assert ready_seqs(store) == [2]

    def test_commits_while_another_thread_applies(self, storage: DuckStorage, store: DuckStore) -> None:
        is_over = threading.Event()

        def keep_flushing() -> None:
            while not is_over.is_set():
                store.flush()

        worker = threading.Thread(target=keep_flushing)
        worker.start()
        try:
            for seq in range(1, 1001):
                write(storage, store, batch_of(add=[item(seq)], remove=[seq - 5], last_seq=seq))
        finally:
            is_over.set()
            worker.join()
        store.flush()
        assert ready_seqs(store) == [996, 997, 998, 999, 1000]

    def test_a_partition_that_does_not_get_on_does_not_hold_the_journal(
        self, storage: DuckStorage, store: DuckStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 2)
        monkeypatch.setattr(limits, "SEGMENTS_WAITING_MAX", 1)
        other = storage.create(OTHER_UUID, "orders")
        for seq in range(1, 11):
            write(storage, other, added(seq))
            write(storage, store, added(seq))
            storage.roll()
            store.flush()
        assert len(segments(tmp_path)) == 2
        assert storage.lagging() == {OTHER_UUID}
        storage.release(OTHER_UUID)
        assert ready_seqs(storage.open(OTHER_UUID, "orders")) == list(range(1, 11))
        assert segments(tmp_path) == []

    def test_a_segment_that_is_spoilt_meanwhile_does_not_go(
        self, storage: DuckStorage, store: DuckStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If its records were not copied, their loss would go unnoticed."""
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 2)
        write(storage, store, added(1))
        storage.roll()
        (spoilt,) = segments(tmp_path)
        spoilt.write_bytes(spoilt.read_bytes()[:-20] + b"spoilt by somebody..")
        other = storage.create(OTHER_UUID, "orders")
        for seq in range(1, 6):
            put(storage, other, added(seq))
            storage.roll()
        assert segments(tmp_path)[0] == spoilt
        assert ready_seqs(store) == []
        store.flush()
        assert ready_seqs(store) == [1]
        storage.roll()
        assert segments(tmp_path) == []


class TestLargePayloads:
    """DuckDB loads the payloads of neighbouring rows together, which takes more memory than its first limit."""

    PAYLOAD_BYTES = 4_000_000
    SEQS = tuple(range(1, 41))

    def large(self, seq: int) -> Batch:
        return batch_of(add=[item(seq, payload=os.urandom(self.PAYLOAD_BYTES))], last_seq=seq)

    def test_they_are_applied_and_read_again(self, tmp_path: Path) -> None:
        with opened(tmp_path) as storage:
            store = storage.create(UUID, "orders")
            for seq in self.SEQS:
                put(storage, store, self.large(seq))
                store.checkpoint()
            assert tuple(ready_seqs(store)) == self.SEQS
        with opened(tmp_path) as storage:
            assert storage.open(UUID, "orders").summary().ready == len(self.SEQS)

    def test_a_log_that_is_large_is_not_taken_for_damaged(self, tmp_path: Path) -> None:
        in_a_process_that_is_killed(
            tmp_path,
            f"""
            for seq in {self.SEQS}:
                payload = os.urandom({self.PAYLOAD_BYTES})
                put(storage, store, batch_of(add=[item(seq, payload=payload)], last_seq=seq))
            """,
        )
        with opened(tmp_path) as storage:
            assert storage.open(UUID, "orders").summary().ready == len(self.SEQS)
        assert not (tmp_path / "quarantine").exists()


class TestFailedStorage:
    def test_nothing_is_taken_after_a_failed_sync_until_reopened(
        self, storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.create(OTHER_UUID, "orders")
        put(storage, store, added(1))
        write(storage, store, added(2))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", _input_output_error)
            with pytest.raises(StorageError) as raised:
                write(storage, store, batch_of(remove=[1]), added(3))
            assert raised.value.uuids == set()
        assert not store.is_removed(1)
        with pytest.raises(StorageError, match="reopened"):
            write(storage, store, added(3))
        assert storage.failure
        storage.reopen()
        assert not storage.failure
        again = storage.open(UUID, "orders")
        storage.open(OTHER_UUID, "orders")
        assert ready_seqs(again) == [1, 2]
        put(storage, again, added(3))
        assert ready_seqs(again) == [1, 2, 3]
        with pytest.raises(StorageError, match="closed meanwhile"):
            write(storage, store, added(4))

    def test_a_failed_write_leaves_the_store_as_it_was(
        self, storage: DuckStorage, store: DuckStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(storage, store, added(1))
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", lambda *_: _raise(OSError(errno.ENOSPC, "No space left on device")))
            with pytest.raises(StorageError, match="No space left"):
                write(storage, store, batch_of(remove=[1]), added(2))
        assert not storage.failure
        assert not store.is_removed(1)
        store.flush()
        assert ready_seqs(store) == [1]
        put(storage, store, added(2))
        assert ready_seqs(store) == [1, 2]


class TestDamage:
    @pytest.fixture
    def killed(self, tmp_path: Path) -> Path:
        """Two partitions have records that are only in the journal. The third one has none."""
        in_a_process_that_is_killed(
            tmp_path,
            """
            other, third = storage.create(OTHER_UUID, "orders"), storage.create(THIRD_UUID, "orders")
            put(storage, store, added(1))
            write(storage, store, batch_of(add=[item(2, payload=b"findme")], last_seq=2))
            write(storage, other, batch_of(add=[item(1, payload=b"andme")], last_seq=1))
            write(storage, store, added(3))
            """,
        )
        return tmp_path

    def damage(self, directory: Path, before: bytes, after: bytes) -> None:
        (path,) = segments(directory)
        data = path.read_bytes()
        assert before in data
        end = data.rindex(magic(path))
        path.write_bytes(data[:end].replace(before, after) + data[end:])

    def test_a_damaged_record_puts_its_partition_aside(self, killed: Path) -> None:
        self.damage(killed, b"findme", b"FINDme")
        for _ in range(2):
            with opened(killed) as storage:
                for _ in range(2):
                    with pytest.raises(StorageError, match="damaged") as raised:
                        storage.open(UUID, "orders")
                assert raised.value.uuids == {UUID}
                assert ready_seqs(storage.open(OTHER_UUID, "orders")) == [1]
                assert ready_seqs(storage.open(THIRD_UUID, "orders")) == []
        kept = list((killed / "quarantine").iterdir())
        assert any(b"FINDme" in path.read_bytes() for path in kept)
        assert any("damaged" in path.read_text() for path in kept if path.suffix == ".reason")

    def test_a_damaged_header_puts_everybody_aside_who_may_be_concerned(self, killed: Path) -> None:
        (path,) = segments(killed)
        data = bytearray(path.read_bytes())
        at = data.index(b"findme")
        header = data.rindex(magic(path), 0, at)
        data[header + 5] ^= 1
        path.write_bytes(bytes(data))
        with opened(killed) as storage:
            for uuid in (UUID, THIRD_UUID):
                with pytest.raises(StorageError, match="cannot be trusted"):
                    storage.open(uuid, "orders")
            # The file holds no record, and the first record is after the damage, so none can be missing.
            assert ready_seqs(storage.open(OTHER_UUID, "orders")) == [1]

    def test_records_of_one_put_aside_are_not_lost_when_its_segment_goes(
        self, killed: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "SEGMENTS_KEPT_MAX", 0)
        self.damage(killed, b"findme", b"FINDme")
        with opened(killed) as storage:
            other = storage.open(OTHER_UUID, "orders")
            put(storage, other, added(2))
            storage.roll()
            assert segments(killed) == []
        with opened(killed) as storage:
            with pytest.raises(StorageError, match="damaged"):
                storage.open(UUID, "orders")
            store = storage.open(UUID, "orders", accept_loss=True)
            assert ready_seqs(store) == [1, 3]
            put(storage, store, added(4))
        with opened(killed) as storage:
            assert ready_seqs(storage.open(UUID, "orders")) == [1, 3, 4]

    def test_loss_is_accepted_once_and_for_all(self, killed: Path) -> None:
        self.damage(killed, magic(segments(killed)[0]), b"QJR2")
        with opened(killed) as storage:
            for uuid in (UUID, OTHER_UUID, THIRD_UUID):
                with pytest.raises(StorageError, match="cannot be trusted"):
                    storage.open(uuid, "orders")
            assert ready_seqs(storage.open(THIRD_UUID, "orders", accept_loss=True)) == []
        with opened(killed) as storage:
            assert ready_seqs(storage.open(THIRD_UUID, "orders")) == []
            with pytest.raises(StorageError, match="cannot be trusted"):
                storage.open(OTHER_UUID, "orders")

    def test_a_damaged_log_puts_its_partition_aside(self, tmp_path: Path) -> None:
        in_a_process_that_is_killed(
            tmp_path,
            """
            storage.create(OTHER_UUID, "orders")
            put(storage, store, added(1))
            put(storage, store, added(2))
            storage.roll()
            """,
        )
        log = log_path(tmp_path / f"{UUID}.duckdb")
        original = log.read_bytes()
        for at in range(20, len(original), 97):
            data = bytearray(original)
            data[at] ^= 0xFF
            log.write_bytes(bytes(data))
            shutil.rmtree(tmp_path / "quarantine", ignore_errors=True)
            with opened(tmp_path) as storage:
                for _ in range(2):
                    with pytest.raises(StorageError, match="damaged") as raised:
                        storage.open(UUID, "orders")
                    assert raised.value.uuids == {UUID}
                storage.open(OTHER_UUID, "orders")
            assert log.read_bytes() == bytes(data)
            assert any(path.read_bytes() == bytes(data) for path in (tmp_path / "quarantine").iterdir())

    @pytest.mark.parametrize("reason", ["Could not fsync file", "Could not write file: No space left on device"])
    def test_a_disk_that_fails_while_a_file_is_opened_is_no_damage(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
    ) -> None:
        in_a_process_that_is_killed(tmp_path, "put(storage, store, added(1)); storage.roll()")
        assert log_path(tmp_path / f"{UUID}.duckdb").exists()
        with opened(tmp_path) as storage:
            with monkeypatch.context() as failing:
                failing.setattr(Instance, "attach", lambda *_: _raise(duckdb.IOException(reason)))
                with pytest.raises(StorageError, match=reason):
                    storage.open(UUID, "orders")
            assert ready_seqs(storage.open(UUID, "orders")) == [1]

    def test_a_file_that_lost_its_log_is_noticed(self, tmp_path: Path) -> None:
        in_a_process_that_is_killed(
            tmp_path,
            """
            put(storage, store, added(1))
            store.checkpoint(force=True)
            put(storage, store, added(2))
            storage.roll()
            write(storage, store, added(3))
            """,
        )
        log_path(tmp_path / f"{UUID}.duckdb").unlink()
        with opened(tmp_path) as storage, pytest.raises(StorageError, match="records 2 to 2 are missing"):
            storage.open(UUID, "orders")


class TestMissingSegments:
    """Segments are deleted from the journal of a daemon that was killed."""

    @pytest.fixture
    def killed(self, tmp_path: Path) -> Path:
        """Of three segments, the first partition has records only in the first one, the second only in the last."""
        in_a_process_that_is_killed(
            tmp_path,
            """
            other, third = storage.create(OTHER_UUID, "orders"), storage.create(THIRD_UUID, "orders")
            for one, seq in ((store, 1), (third, 2), (other, 3)):
                write(storage, one, added(seq))
                storage.roll()
            """,
        )
        assert len(segments(tmp_path)) == 3
        return tmp_path

    @pytest.mark.parametrize("gone", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]])
    def test_no_partition_is_opened_without_what_was_acknowledged(self, killed: Path, gone: list[int]) -> None:
        for path in [segments(killed)[number] for number in gone]:
            path.unlink()
        concerned = [(UUID, OTHER_UUID, THIRD_UUID)[(0, 2, 1)[number]] for number in gone]
        with opened(killed) as storage:
            for uuid in concerned:
                with pytest.raises(StorageError, match="are missing"):
                    storage.open(uuid, "orders")
            fresh = str(uuid4())
            put(storage, storage.create(fresh, "orders"), added(9))
            empty = str(uuid4())
            storage.create(empty, "orders")
        with opened(killed) as storage:
            assert ready_seqs(storage.open(fresh, "orders")) == [9]
            with pytest.raises(StorageError, match="are missing"):
                storage.open(concerned[0], "orders")

    def test_segments_that_nobody_needed_are_not_missed(self, tmp_path: Path) -> None:
        for kill in (False, True, False):
            with contextlib.ExitStack() as stack:
                if kill:
                    in_a_process_that_is_killed(tmp_path, "put(storage, store, added(7)); storage.roll()")
                storage = stack.enter_context(opened(tmp_path))
                store = storage.open(UUID, "orders") if kill else storage.create(str(uuid4()), "orders")
                put(storage, store, added(8))
                storage.roll()
                put(storage, store, added(9))
            assert segments(tmp_path) == []
            assert not (tmp_path / "quarantine").exists()

    @pytest.mark.parametrize("at", [8, 4096 + 8])
    def test_a_head_that_was_being_written(self, killed: Path, at: int) -> None:
        head = killed / "journal" / "HEAD"
        whole = head.read_bytes()
        head.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with opened(killed) as storage:
            assert ready_seqs(storage.open(UUID, "orders")) == [1]


class TestFiles:
    def test_a_missing_file_is_not_made_up(self, storage: DuckStorage, store: DuckStore, tmp_path: Path) -> None:
        store.close()
        (tmp_path / f"{UUID}.duckdb").unlink()
        with pytest.raises(StorageError, match="missing"):
            storage.open(UUID, "orders")
        assert not (tmp_path / f"{UUID}.duckdb").exists()

    def test_the_file_of_another_partition_is_refused(
        self, storage: DuckStorage, store: DuckStore, tmp_path: Path
    ) -> None:
        store.close()
        (tmp_path / f"{UUID}.duckdb").rename(tmp_path / f"{OTHER_UUID}.duckdb")
        with pytest.raises(StorageError, match="another partition"):
            storage.open(OTHER_UUID, "orders")

    def test_a_file_of_another_schema_version_is_refused(
        self, storage: DuckStorage, store: DuckStore, tmp_path: Path
    ) -> None:
        store.close()
        with duckdb.connect(str(tmp_path / f"{UUID}.duckdb")) as connection:
            for table in ("items", "scheduled"):
                connection.execute(f"ALTER TABLE {table} DROP COLUMN imported_deadline")
            connection.execute("UPDATE meta SET schema_version = 2")
        with pytest.raises(StorageError, match="has schema version 2, not 6"):
            storage.open(UUID, "orders")

    def test_the_version_belongs_to_these_columns(self, store: DuckStore, tmp_path: Path) -> None:
        """If this fails, raise SCHEMA_VERSION and change the fingerprint here in the same commit."""
        store.close()
        with duckdb.connect(str(tmp_path / f"{UUID}.duckdb"), read_only=True) as connection:
            columns = connection.sql(
                "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal ORDER BY ALL"
            ).fetchall()
        fingerprint = hashlib.sha256(repr(columns).encode()).hexdigest()[:16]
        assert (tables.SCHEMA_VERSION, fingerprint) == (6, "a6fbb44c7886775b")

    @pytest.mark.parametrize("garbage", [b"", b"garbage" * 1000])
    def test_garbage_is_refused(self, storage: DuckStorage, store: DuckStore, tmp_path: Path, garbage: bytes) -> None:
        store.close()
        (tmp_path / f"{UUID}.duckdb").write_bytes(garbage)
        with pytest.raises(StorageError) as raised:
            storage.open(UUID, "orders")
        assert raised.value.uuids == {UUID}
        put(storage, storage.create(OTHER_UUID, "orders"), added(1))

    def test_a_replaced_file_is_noticed(self, storage: DuckStorage, store: DuckStore, tmp_path: Path) -> None:
        assert not store.file_replaced()
        (tmp_path / "else").write_bytes(b"")
        (tmp_path / "else").rename(store.path)
        assert store.file_replaced()

    def test_a_file_put_back_from_a_backup(self, tmp_path: Path) -> None:
        path = tmp_path / f"{UUID}.duckdb"
        with opened(tmp_path) as storage:
            store = storage.create(UUID, "orders")
            other = storage.create(OTHER_UUID, "orders")
            put(storage, store, added(1))
            store.close()
            shutil.copy(path, tmp_path / "backup")
            store = storage.open(UUID, "orders")
            put(storage, store, added(2), added(3))
            write(storage, other, added(1))  # a record that is still needed, so that the segment stays
            store.close()
            shutil.copy(tmp_path / "backup", path)
            store = storage.open(UUID, "orders")
            assert ready_seqs(store) == [1]
            write(storage, store, added(4))
            shutil.copytree(tmp_path, tmp_path.parent / "copied")  # the files that a crash would leave
        with opened(tmp_path.parent / "copied") as storage:
            assert ready_seqs(storage.open(UUID, "orders")) == [1, 4]
            assert ready_seqs(storage.open(OTHER_UUID, "orders")) == [1]

    def test_rows_that_were_changed_by_hand(self, storage: DuckStorage, store: DuckStore) -> None:
        put(storage, store, added(10, 20, 30), leased((10, 1, 5), (20, 1, 5)))
        store.close()
        connection = duckdb.connect(store.path)
        connection.execute("DELETE FROM items WHERE seq = 10")
        connection.execute(
            "INSERT INTO items (seq, created_at, expire_deadline) VALUES (99, now(), now()), (5, now(), now())"
        )
        connection.close()
        store = storage.open(UUID, "orders")
        assert ready_seqs(store) == [5, 30, 99]
        assert [found.seq for found in store.ready(0, None, 2, NO_BYTES_MAX)] == [5, 30]
        assert [found.item.seq for found in store.leased()] == [20]
        summary = store.summary()
        assert (summary.ready, summary.leased, summary.last_seq) == (3, 1, 99)

    def test_nobody_else_can_read_them(self, storage: DuckStorage, store: DuckStore) -> None:
        assert store.path.stat().st_mode & 0o077 == 0
        assert not list(storage.directory.glob("*.creating"))

    def test_a_file_that_another_process_has_open_is_refused(
        self, storage: DuckStorage, store: DuckStore, tmp_path: Path
    ) -> None:
        put(storage, store, added(1))
        store.close()
        script = (
            f"import duckdb, sys; c = duckdb.connect({str(store.path)!r}); c.execute('DELETE FROM requests');"
            "print('open', flush=True); sys.stdin.read()"
        )
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) as shell:
            assert shell.stdin is not None
            assert shell.stdout is not None
            assert shell.stdout.readline() == "open\n"
            with pytest.raises(StorageError, match=str(shell.pid)):
                storage.open(UUID, "orders")
            shell.stdin.close()
        assert ready_seqs(storage.open(UUID, "orders")) == [1]
        assert not (tmp_path / "quarantine").exists()

    def test_other_files_in_the_directory_do_no_harm(self, tmp_path: Path) -> None:
        (tmp_path / "notes.duckdb").write_bytes(b"somebody's own")
        with opened(tmp_path) as storage:
            assert ready_seqs(storage.create(UUID, "orders")) == []

    def test_a_half_made_partition_is_swept_up(self, tmp_path: Path) -> None:
        (tmp_path / f"{UUID}.creating").mkdir()
        with opened(tmp_path) as storage:
            assert ready_seqs(storage.create(UUID, "orders")) == []

    def test_sql_cannot_leave_the_directory(
        self, storage: DuckStorage, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        cursor = storage._files.instance.cursor()
        outside = tmp_path_factory.mktemp("outside") / "x"
        for statement in (
            f"COPY (SELECT 1) TO '{outside}.csv'",
            f"ATTACH '{outside}.duckdb' AS outside",
            "SELECT * FROM read_text('/etc/passwd')",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "INSTALL httpfs",
        ):
            with pytest.raises(duckdb.Error):
                cursor.execute(statement)

    def test_a_storage_in_use_is_refused(self, storage: DuckStorage, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="in use"):
            DuckStorage("disk", tmp_path)

    def test_a_directory_with_a_quote_in_its_name(self, tmp_path: Path) -> None:
        with opened(tmp_path / "it's") as storage:
            store = storage.create(UUID, "it's")
            put(storage, store, added(1))
            assert ready_seqs(store) == [1]


def test_what_is_drained_from_a_file_counts_until_the_file_knows(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        store = storage.create(UUID, "orders")
        put(storage, store, added(*range(1, 101)))
        assert store.memory_bytes == 0
        write(storage, store, batch_of(remove=list(range(1, 101))))
        assert store.held_bytes == 0
        assert store.memory_bytes == 100 * limits.KEY_BYTES
        store.flush()
        assert store.memory_bytes == 0


def test_a_queue_that_comes_and_goes_leaves_a_small_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES_MAX", 10_000)
    with opened(tmp_path) as storage:
        store = storage.create(UUID, "orders")
        for seq in range(1, 500):
            write(storage, store, batch_of(add=[item(seq, payload=b"x" * 100)], remove=[seq], last_seq=seq))
            if storage.lagging():
                store.flush()
        assert len(segments(tmp_path)) <= 2 + limits.SEGMENTS_WAITING_MAX


def test_recovery_reads_the_journal_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_process_that_is_killed(
        tmp_path,
        """
        other = storage.create(OTHER_UUID, "orders")
        write(storage, store, added(1))
        write(storage, other, added(2))
        """,
    )
    reads: list[str] = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (reads.append(path.suffix), original(path))[1])
    with opened(tmp_path) as storage:
        assert reads.count(".seg") == 1
        assert ready_seqs(storage.open(UUID, "orders")) == [1]
        assert ready_seqs(storage.open(OTHER_UUID, "orders")) == [2]
        assert reads.count(".seg") == 1


def _raise(error: Exception) -> None:
    raise error


def _no_space(*_: object) -> None:
    raise duckdb.IOException("IO Error: No space left on device")


def _input_output_error(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")
