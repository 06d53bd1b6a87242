"""The contract of `store/base.py`, for every kind of store."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from querator.daemon.store.base import Due, Found, Leased, Storage, StorageError, Store, Summary
from querator.daemon.store.batches import Rows
from querator.daemon.store.fingerprints import fingerprint
from querator.items import NOBODY, ZERO_TIME_US, Hold, Item
from querator.wire.arrow import encode_batches
from tests.store.store_making import (
    NO_BYTES_MAX,
    OTHER_UUID,
    UUID,
    added,
    batch_of,
    item,
    leased,
    put,
    ready_seqs,
    write,
)

YEAR_9999_US = 253_402_300_799_999_999


def rows(first_seq: int, columns: dict[str, Any]) -> Rows:
    table = pa.table(columns)
    return Rows(first_seq, table.num_rows, 50, 60, encode_batches(table.to_batches(), table.schema))


class TestEffects:
    """The changes of a batch, in the order in which they take effect."""

    def test_an_empty_partition_is_empty(self, store: Store) -> None:
        assert store.summary() == Summary(0, 0, 0, 0, 0, None, None)
        assert ready_seqs(store) == []
        assert store.leased() == []
        assert store.scheduled(10) == Due([], True)
        assert store.expired(YEAR_9999_US, 10) == []
        assert store.find([1, 2]) == {}
        assert store.page(False, 0, 10) == store.page(True, 0, 10) == []
        assert store.request_ids(0, 100, ()) == []

    def test_every_field_of_an_item_comes_back(self, storage: Storage, store: Store) -> None:
        full = item(
            7,
            created_at=ZERO_TIME_US,
            expire_deadline=YEAR_9999_US,
            payload=bytes(range(256)),
            kind="kïnd\x00'\"",
            reference="réf",
            encoding="json",
            attempts=3,
            max_attempts=65_536,
            source_id="src",
            birth=5,
            history=b'[{"queue_name":"a"}]',
        )
        later = item(8, enqueue_at=YEAR_9999_US, payload=b"\xff\x00", birth=2)
        put(storage, store, batch_of(add=[full], schedule=[later], last_seq=8))
        assert store.ready(0, None, 10, NO_BYTES_MAX) == [full]
        assert read_ahead(store) == [full]
        assert store.scheduled(10) == Due([later], True)

    def test_items_in_columns_come_back_like_all_others(self, storage: Storage, store: Store) -> None:
        times = pa.array([None, ZERO_TIME_US, YEAR_9999_US], pa.int64()).view(pa.timestamp("us"))
        full = {
            "payload": [b"", b"\x00\xff", bytes(range(256))],
            "kind": ["k", "", "kïnd\x00'"],
            "reference": ["r", "", "réf"],
            "encoding": ["", "json", ""],
            "attempts": pa.array([0, 1, 3], pa.int64()),
            "max_attempts": pa.array([0, 0, 7], pa.int64()),
            "created_at": times,
            "expire_deadline": times,
            "source_id": ["", "a", "b"],
            "history": [b"", b"[]", b""],
        }
        put(storage, store, added(1), batch_of(rows=[rows(2, {"payload": [b"x", b"y"]}), rows(4, full)], last_seq=6))
        unsaid = {"created_at": 50, "expire_deadline": 60}
        first = {
            "created_at": ZERO_TIME_US,
            "expire_deadline": ZERO_TIME_US,
            "payload": b"\x00\xff",
            "encoding": "json",
        }
        last = {"created_at": YEAR_9999_US, "expire_deadline": YEAR_9999_US, "payload": bytes(range(256))}
        assert store.ready(1, None, 10, NO_BYTES_MAX) == [
            item(2, payload=b"x", **unsaid),
            item(3, payload=b"y", **unsaid),
            item(4, payload=b"", kind="k", reference="r", **unsaid),
            item(5, attempts=1, source_id="a", history=b"[]", **first),
            item(6, kind="kïnd\x00'", reference="réf", attempts=3, max_attempts=7, source_id="b", **last),
        ]

    def test_items_are_ready_in_the_order_of_their_sequences(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(3, 4), added(5))
        assert ready_seqs(store) == [3, 4, 5]

    def test_a_lease_takes_an_item_out_of_the_ready_ones(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2, 3), leased((2, 1, 900)))
        assert ready_seqs(store) == [1, 3]
        assert store.leased() == [Leased(item(2), 1, 900)]

    @pytest.mark.parametrize("flushed", [False, True])
    def test_a_second_lease_replaces_the_first(self, storage: Storage, store: Store, flushed: bool) -> None:
        write(storage, store, added(1), leased((1, 1, 900)))
        if flushed:
            store.flush()
        put(storage, store, leased((1, 1, 1500)))
        assert store.leased() == [Leased(item(1), 1, 1500)]
        assert store.summary().leased == 1

    @pytest.mark.parametrize("flushed", [False, True])
    def test_removing_takes_the_lease_along(self, storage: Storage, store: Store, flushed: bool) -> None:
        write(storage, store, added(1, 2), leased((1, 1, 900)))
        if flushed:
            store.flush()
        put(storage, store, batch_of(remove=[1]))
        assert ready_seqs(store) == [2]
        assert store.leased() == []
        assert store.find([1]) == {}

    def test_an_item_can_come_and_go_in_one_batch(self, storage: Storage, store: Store) -> None:
        batch = added(1, 2)
        batch.lease_seqs, batch.lease_attempts, batch.lease_deadlines = [1], [1], [50]
        batch.remove = [1]
        put(storage, store, batch)
        assert ready_seqs(store) == [2]
        assert store.leased() == []
        assert store.summary().last_seq == 2

    def test_an_item_can_be_written_as_leased_already(self, storage: Storage, store: Store) -> None:
        batch = added(1)
        batch.lease_seqs, batch.lease_attempts, batch.lease_deadlines = [1], [1], [50]
        put(storage, store, batch)
        assert store.leased() == [Leased(item(1), 1, 50)]

    def test_a_retried_item_goes_to_the_tail(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2), leased((1, 1, 900)))
        put(storage, store, batch_of(remove=[1], add=[item(3, attempts=1, birth=1)], last_seq=3))
        assert ready_seqs(store) == [2, 3]

    @pytest.mark.parametrize("flushed", [False, True])
    def test_unscheduling(self, storage: Storage, store: Store, flushed: bool) -> None:
        write(storage, store, batch_of(schedule=[item(1, enqueue_at=5), item(2, enqueue_at=4)], last_seq=2))
        if flushed:
            store.flush()
        put(storage, store, batch_of(unschedule=[2], add=[item(3)], last_seq=3))
        assert [found.seq for found in store.scheduled(10).items] == [1]
        assert ready_seqs(store) == [3]

    def test_removing_what_is_not_there_does_nothing(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1), batch_of(remove=[99], unschedule=[98]))
        assert ready_seqs(store) == [1]


class TestClear:
    """Clears delete the items that were stored before the batch, and not those that the batch adds."""

    @pytest.mark.parametrize("flushed", [False, True])
    def test_items_in_columns_are_cleared_like_all_others(self, storage: Storage, store: Store, flushed: bool) -> None:
        write(storage, store, batch_of(rows=[rows(1, {"payload": [b"x", b"y"]})], last_seq=2))
        if flushed:
            store.flush()
        put(storage, store, batch_of(clear_ready=True, rows=[rows(3, {"payload": [b"z"]})], last_seq=3))
        assert ready_seqs(store) == [3]
        assert not store.is_removed(3)
        assert store.is_removed(1)

    @pytest.fixture(params=[False, True], ids=["unapplied", "applied"])
    def full(self, storage: Storage, store: Store, request: pytest.FixtureRequest) -> Store:
        scheduled = batch_of(schedule=[item(5, enqueue_at=1)], last_seq=5)
        write(storage, store, added(1, 2), leased((1, 1, 900)), scheduled)
        if request.param:
            store.flush()
        return store

    @pytest.mark.parametrize("ready", [False, True])
    @pytest.mark.parametrize("leases", [False, True])
    @pytest.mark.parametrize("scheduled", [False, True])
    def test_every_combination(self, storage: Storage, full: Store, ready: bool, leases: bool, scheduled: bool) -> None:
        clear = batch_of(
            clear_ready=ready,
            clear_leased=leases,
            clear_scheduled=scheduled,
            add=[item(6)],
            schedule=[item(7, enqueue_at=1)],
            last_seq=7,
        )
        put(storage, full, clear)
        assert ready_seqs(full) == ([6] if ready else [2, 6])
        assert [found.item.seq for found in full.leased()] == ([] if leases else [1])
        assert [found.seq for found in full.scheduled(10).items] == ([7] if scheduled else [5, 7])
        summary = full.summary()
        assert (summary.ready, summary.leased, summary.scheduled) == (
            1 if ready else 2,
            0 if leases else 1,
            1 if scheduled else 2,
        )

    def test_a_lease_that_is_not_applied_protects_an_item(self, storage: Storage, full: Store) -> None:
        put(storage, full, leased((2, 1, 900)), batch_of(clear_ready=True))
        assert [found.item.seq for found in full.leased()] == [1, 2]

    def test_a_lease_that_is_not_applied_is_cleared(self, storage: Storage, full: Store) -> None:
        put(storage, full, leased((2, 1, 900)), batch_of(clear_leased=True))
        assert full.leased() == []
        assert ready_seqs(full) == []

    def test_one_clear_after_the_other(self, storage: Storage, full: Store) -> None:
        put(
            storage,
            full,
            batch_of(clear_leased=True),
            leased((2, 1, 900)),
            added(8),
            batch_of(clear_ready=True),
            added(9),
        )
        assert [found.item.seq for found in full.leased()] == [2]
        assert ready_seqs(full) == [9]


def read_ahead(store: Store, after: int = 0) -> list[Item]:
    found = store.ready_ahead(after, None, 1_000, NO_BYTES_MAX)
    return found if isinstance(found, list) else found.items(0, found.count)


class TestReading:
    def test_the_summary_counts_and_sums_exactly(self, storage: Storage, store: Store) -> None:
        far = [item(seq, created_at=YEAR_9999_US) for seq in range(1, 101)]
        put(storage, store, batch_of(add=far, last_seq=500), leased((1, 1, 5), (2, 1, 5)))
        put(storage, store, batch_of(schedule=[item(600, enqueue_at=70), item(601, enqueue_at=60)], last_seq=601))
        assert store.summary() == Summary(98, 2, 2, YEAR_9999_US * 100, 601, 3000, 60)

    def test_the_last_sequence_outlives_its_item(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 7), batch_of(remove=[1, 7], last_seq=9))
        assert store.summary().last_seq == 9

    def test_ready_within_bounds(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(*range(1, 11)), leased((4, 1, 5)))
        assert [found.seq for found in store.ready(2, 7, 100, NO_BYTES_MAX)] == [3, 5, 6]
        assert [found.seq for found in store.ready(0, None, 4, NO_BYTES_MAX)] == [1, 2, 3, 5]

    def test_ready_reads_past_a_long_run_of_leases(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(*range(1, 30)), leased(*((seq, 1, 5) for seq in range(1, 25))))
        assert [found.seq for found in store.ready(0, None, 3, NO_BYTES_MAX)] == [25, 26, 27]

    def test_ready_stops_at_the_bytes(self, storage: Storage, store: Store) -> None:
        put(storage, store, batch_of(add=[item(seq, payload=b"x" * 100) for seq in (1, 2, 3)], last_seq=3))
        assert [found.seq for found in store.ready(0, None, 10, 250)] == [1, 2]
        assert [found.seq for found in store.ready(0, None, 10, 5)] == [1]

    def test_leases_by_deadline(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2, 3), leased((1, 1, 30), (2, 4, 10), (3, 1, 20)))
        assert store.leased() == [Leased(item(2), 4, 10), Leased(item(3), 1, 20), Leased(item(1), 1, 30)]

    def test_scheduled_by_due_time(self, storage: Storage, store: Store) -> None:
        items = [item(1, enqueue_at=9), item(2, enqueue_at=3), item(3, enqueue_at=3)]
        put(storage, store, batch_of(schedule=items, last_seq=3))
        assert [found.seq for found in store.scheduled(2).items] == [2, 3]

    def test_expired(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2, 3, 4), leased((1, 1, 5)))
        assert [found.seq for found in store.expired(3001, 10)] == [2, 3]
        assert [found.seq for found in store.expired(3000, 10)] == [2]
        assert [found.seq for found in store.expired(9999, 1)] == [2]
        assert store.next_expiry() == 2000

    def test_find(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2), leased((2, 3, 50)), batch_of(schedule=[item(3, enqueue_at=9)], last_seq=3))
        put(storage, store, batch_of(lost_seqs=[4], lost_births=[1], lost_until=100))
        assert store.find([1, 2, 3, 4, 5]) == {
            1: Found("ready", item(1), 0, 0),
            2: Found("leased", item(2), 3, 50),
            3: Found("scheduled", item(3, enqueue_at=9), 0, 0),
            4: Found("lost", None, 0, 0),
        }

    def test_pages(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2, 3), leased((2, 3, 50)), batch_of(schedule=[item(4, enqueue_at=9)], last_seq=4))
        assert store.page(False, 2, 10) == [Leased(item(2), 3, 50), Leased(item(3), 0, 0)]
        assert store.page(False, 0, 1) == [Leased(item(1), 0, 0)]
        assert store.page(True, 0, 10) == [Leased(item(4, enqueue_at=9), 0, 0)]
        assert store.page(True, 5, 10) == []

    def test_sources(self, storage: Storage, store: Store) -> None:
        items = [item(1, source_id="a"), item(2, source_id="b"), item(3)]
        put(storage, store, batch_of(add=items, schedule=[item(4, source_id="c", enqueue_at=1)], last_seq=4))
        put(storage, store, leased((2, 1, 5)))
        assert store.sources(["a", "b", "c", "d", ""]) == {"a", "b", "c"}

    def test_size(self, storage: Storage, store: Store) -> None:
        put(storage, store, batch_of(add=[item(1, payload=b"x" * 1000)], last_seq=1))
        assert store.size_bytes() >= 1000


class TestForgetting:
    def test_request_ids(self, storage: Storage, store: Store) -> None:
        put(storage, store, batch_of(request_ids=["a", "b"], request_until=[10, 20]))
        put(storage, store, batch_of(request_ids=["a"], request_until=[15]))
        assert sorted(store.request_ids(0, 100, ())) == [("a", 15), ("b", 20)]
        assert store.request_ids(16, 100, ()) == [("b", 20)]
        store.forget(16)
        assert store.request_ids(0, 100, ()) == [("b", 20)]

    def test_the_newest_request_ids_and_those_that_are_always_wanted(self, storage: Storage, store: Store) -> None:
        names = ["move x", "a", "b", "lost y", "c"]
        put(storage, store, batch_of(request_ids=names, request_until=[10, 20, 30, 40, 50]))
        assert store.request_ids(0, 2, ("move ", "lost ")) == [("move x", 10), ("lost y", 40), ("c", 50)]
        assert store.request_ids(45, 2, ("move ", "lost ")) == [("c", 50)]
        assert store.remembered(["a", "c", "d"], 0) == {"a", "c"}
        assert store.remembered(["a", "c"], 21) == {"c"}

    def test_fingerprints_of_request_ids(self, storage: Storage, store: Store) -> None:
        names = [f"id {n}" for n in range(3_000)] + ["\u00e9\U0001f600", ""]
        put(storage, store, batch_of(request_ids=names, request_until=[50 + n for n in range(len(names))]))
        found = store.request_fingerprints(60)
        assert len(found) == len(names) - 10 and found.until == 50 + len(names) - 1
        assert all(fingerprint(name) in found for name in names[10:])
        assert not any(fingerprint(name) in found for name in names[:10])
        assert not store.request_fingerprints(50 + len(names))

    def test_a_lost_lease_is_remembered_until_its_time(self, storage: Storage, store: Store) -> None:
        put(storage, store, batch_of(lost_seqs=[4, 5], lost_births=[0, 2], lost_until=100))
        store.forget(100)
        assert set(store.find([4, 5])) == {4, 5}
        store.forget(101)
        assert store.find([4, 5]) == {}

    def test_lost_leases_of_one_item_are_remembered_together(self, storage: Storage, store: Store) -> None:
        put(storage, store, batch_of(lost_seqs=[5], lost_births=[5], lost_until=10, last_seq=9))
        put(storage, store, batch_of(lost_seqs=[7], lost_births=[5], lost_until=1000))
        store.forget(500)
        assert set(store.find([5, 7])) == {5, 7}
        store.forget(1001)
        assert store.find([5, 7]) == {}

    def test_a_lost_lease_is_remembered_while_its_item_stays(self, storage: Storage, store: Store) -> None:
        put(storage, store, batch_of(add=[item(10, birth=2)], schedule=[item(11, birth=3, enqueue_at=1)], last_seq=11))
        put(storage, store, batch_of(lost_seqs=[2, 5, 6], lost_births=[0, 2, 3], lost_until=100))
        store.forget(1000)
        assert set(store.find([2, 5, 6])) == {2, 5, 6}
        put(storage, store, batch_of(remove=[10]))
        store.forget(1000)
        assert set(store.find([2, 5, 6])) == {6}


class TestStages:
    """A batch is committed, then written, then applied."""

    def test_nothing_is_taken_when_nothing_was_committed(self, storage: Storage, store: Store) -> None:
        assert storage.take() is None
        store.unapplied.commit(added(1))
        assert storage.take() is not None
        assert storage.take() is None

    def test_batches_of_one_write_have_a_record_each(self, storage: Storage, store: Store) -> None:
        other = storage.create(OTHER_UUID, "orders")
        write(storage, store, added(1))
        for batch in (added(2), added(3), added(4)):
            store.unapplied.commit(batch)
        write(storage, other, added(1), added(2))
        assert (store.record_written, other.record_written) == (4, 2)
        assert not store.has_staged and not other.has_staged

    def test_what_is_not_written_is_not_applied(self, storage: Storage, store: Store) -> None:
        write(storage, store, added(1))
        store.unapplied.commit(added(2))
        store.flush()
        assert ready_seqs(store) == [1]
        write(storage, store)
        store.flush()
        assert ready_seqs(store) == [1, 2]

    def test_what_is_frozen_is_applied_and_no_more(self, storage: Storage, store: Store) -> None:
        assert not store.freeze()
        write(storage, store, added(1))
        assert store.freeze()
        write(storage, store, added(2))
        assert store.applied_through == 0
        store.apply()
        assert ready_seqs(store) == [1]
        assert store.applied_through == 1
        store.flush()
        assert ready_seqs(store) == [1, 2]
        assert store.applied_through == 2

    def test_applied_through_follows_the_last_sequence(self, storage: Storage, store: Store) -> None:
        put(storage, store, batch_of(last_seq=44))
        assert store.applied_through == 44

    def test_only_records_that_add_items_count_as_held(self, storage: Storage, store: Store) -> None:
        write(storage, store, added(1, 2, 3))
        added_bytes = store.held_bytes
        assert added_bytes > 0
        write(storage, store, leased((1, 1, 50), (2, 1, 50)), batch_of(remove=[1]))
        assert store.held_bytes == added_bytes
        write(storage, store, batch_of(remove=[2, 3]))
        assert store.held_bytes == 0

    def test_removed_from_commit_to_apply(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2), batch_of(schedule=[item(3, enqueue_at=1), item(4, enqueue_at=1)], last_seq=4))
        assert not store.is_removed(1)
        store.unapplied.commit(batch_of(remove=[1], unschedule=[3]))
        assert store.is_removed(1)
        assert store.is_removed(3, "scheduled")
        assert not store.is_removed(2)
        assert not store.is_removed(4, "scheduled")
        write(storage, store)
        assert store.is_removed(1)
        store.freeze()
        assert store.is_removed(1)
        write(storage, store, batch_of(remove=[2]))
        assert store.is_removed(1)
        assert store.is_removed(2)
        assert store.removed_among([1, 2, 9]) == {1, 2}
        assert (store.has_removed_from(2), store.has_removed_from(3)) == (True, False)
        store.apply()
        assert (store.has_removed_from(2), store.has_removed_from(3)) == (True, False)
        assert store.is_removed(2)
        # A reader may have read the item just before the apply.
        assert store.is_removed(1)

    def test_cleared_items_are_removed(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2, 3), leased((2, 1, 5)), batch_of(schedule=[item(4, enqueue_at=1)], last_seq=4))
        write(storage, store, leased((3, 1, 5)))
        write(storage, store, batch_of(clear_ready=True))
        write(storage, store, added(5))
        assert store.is_removed(1)
        assert not store.is_removed(2, "leased")
        assert not store.is_removed(3)
        assert not store.is_removed(5)
        assert not store.is_removed(4, "scheduled")
        assert store.removed_among([1, 3, 5]) == {1}
        assert store.has_removed_from(1)
        write(storage, store, batch_of(clear_leased=True, clear_scheduled=True))
        assert store.is_removed(2, "leased")
        assert store.is_removed(3)
        assert store.is_removed(4, "scheduled")

    def test_a_lease_in_what_is_frozen_protects_from_a_clear(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2))
        write(storage, store, leased((1, 1, 5)))
        store.freeze()
        write(storage, store, batch_of(clear_ready=True))
        assert not store.is_removed(1)
        assert store.is_removed(2)
        store.apply()
        assert not store.is_removed(1)
        write(storage, store, batch_of(clear_leased=True))
        assert store.is_removed(1)

    def test_unapplied_bytes(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1))
        assert store.unapplied_bytes == storage.unapplied_bytes == 0

    def test_partitions_are_written_together(self, storage: Storage, store: Store) -> None:
        other = storage.create(OTHER_UUID, "orders")
        store.unapplied.commit(added(1))
        other.unapplied.commit(added(2))
        write(storage, store)
        store.flush()
        other.flush()
        assert (ready_seqs(store), ready_seqs(other)) == ([1], [2])


class TestPartitions:
    def test_a_prefix_comes_from_the_uuid(self, store: Store) -> None:
        assert store.uuid == UUID
        assert store.prefix == 0x0190A1B2C3D47E5F

    def test_a_partition_is_created_once(self, storage: Storage, store: Store) -> None:
        with pytest.raises(StorageError) as raised:
            storage.create(UUID, "orders")
        assert raised.value.uuids == {UUID}

    def test_one_that_does_not_exist_is_not_opened(self, storage: Storage) -> None:
        with pytest.raises(StorageError) as raised:
            storage.open(UUID, "orders")
        assert raised.value.uuids == {UUID}

    def test_closing_and_opening_keeps_everything(self, storage: Storage, store: Store) -> None:
        write(
            storage, store, added(1, 2, 3), leased((2, 1, 900)), batch_of(schedule=[item(4, enqueue_at=8)], last_seq=4)
        )
        write(
            storage,
            store,
            batch_of(lost_seqs=[9], lost_births=[9], lost_until=50, request_ids=["r"], request_until=[7]),
        )
        store.close()
        again = storage.open(UUID, "orders")
        assert ready_seqs(again) == [1, 3]
        assert again.leased() == [Leased(item(2), 1, 900)]
        assert again.scheduled(5) == Due([item(4, enqueue_at=8)], True)
        assert again.find([9]) == {9: Found("lost", None, 0, 0)}
        assert again.request_ids(0, 100, ()) == [("r", 7)]
        assert again.summary().last_seq == again.applied_through == 4
        put(storage, again, added(5))
        assert ready_seqs(again) == [1, 3, 5]

    @pytest.mark.parametrize("is_applied", [True, False])
    def test_a_lease_keeps_its_holder(self, storage: Storage, store: Store, is_applied: bool) -> None:
        ann, bob = Hold("ann", 70), Hold("bob", 80)
        batch = leased((1, 1, 900), (2, 1, 900), (3, 1, 901), (4, 1, 902))
        batch.holds, batch.hold_counts = [ann, bob], [2, 1]
        (put if is_applied else write)(storage, store, added(1, 2, 3, 4), batch)
        store.close()
        again = storage.open(UUID, "orders")
        assert [(one.item.seq, one.hold) for one in again.leased()] == [(1, ann), (2, ann), (3, bob), (4, NOBODY)]
        assert again.find([3])[3].hold == again.page(False, 3, 1)[0].hold == bob

    def test_a_deleted_partition_is_gone(self, storage: Storage, store: Store) -> None:
        write(storage, store, added(1))
        storage.delete(UUID)
        with pytest.raises(StorageError):
            storage.open(UUID, "orders")
        storage.delete(UUID)
        assert ready_seqs(storage.create(UUID, "orders")) == []

    def test_a_checkpoint_changes_nothing(self, storage: Storage, store: Store) -> None:
        put(storage, store, added(1, 2))
        store.checkpoint(force=True)
        store.checkpoint()
        assert ready_seqs(store) == [1, 2]
