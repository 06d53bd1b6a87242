"""Random batches, writes, applies, failures and crashes: every store agrees with a simple model in Python."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from querator import limits
from querator.daemon.store import unapplied
from querator.daemon.store.base import StorageError
from querator.daemon.store.batches import Batch, decode, encode, others_of
from querator.daemon.store.columnar import items_in
from querator.daemon.store.duck.storage import DuckStorage
from querator.daemon.store.runs import LeasedStripe, Rows, Run, Stripe
from querator.items import Hold, Item
from querator.wire.arrow import encode_batches
from tests.memory_storage import MemoryStorage


class Oracle:
    """The model of a partition: it applies one batch after another in the simplest way."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        self.leases: dict[int, tuple[int, int, Hold]] = {}
        self.never_leased: set[int] = set()
        """Sequences of items of runs."""
        self.stripes: list[Stripe] = []
        """Leased stripes of which every item still has this lease."""
        self.scheduled: dict[int, Item] = {}
        self.lost: set[int] = set()
        self.requests: dict[str, int] = {}
        self.last_seq = 0

    def take(self, batch: Batch) -> None:
        others = others_of(batch)
        was_leased = set(self.leases)
        for seq in list(self.items):
            if (others.clear_leased and seq in was_leased) or (others.clear_ready and seq not in was_leased):
                self._remove(seq)
        if others.clear_scheduled:
            self.scheduled.clear()
        self.items.update((item.seq, item) for item in batch.add or ())
        self.items.update((item.seq, item) for rows in others.rows or () for item in items_in(rows))
        self.scheduled.update((item.seq, item) for item in others.schedule or ())
        for rows in others.rows or ():
            if isinstance(rows, Run):
                self.never_leased.update(range(rows.first_seq, rows.last_seq + 1))
        for leased in others.leased_stripes or ():
            self.leases.update(leased.leases())
            self.never_leased.difference_update(leased.stripe.seqs)
            self.stripes.append(leased.stripe)
        held = zip(batch.holds or (), batch.hold_counts or (), strict=True)
        holds = [hold for hold, count in held for _ in range(count)]
        for at, seq in enumerate(batch.lease_seqs or ()):
            self._end_stripe(seq)
            self.leases[seq] = (batch.lease_attempts[at], batch.lease_deadlines[at], holds[at])
        for seq in others.unschedule or ():
            self.scheduled.pop(seq, None)
        for seq in batch.remove or ():
            self._remove(seq)
        for stripe in others.removed_stripes or ():
            for seq in stripe.seqs:
                self._remove(seq)
        self.lost.update(others.lost_seqs or ())
        self.requests.update(zip(others.request_ids or (), others.request_until or (), strict=True))
        self.last_seq = max(self.last_seq, batch.last_seq)

    def _remove(self, seq: int) -> None:
        self.items.pop(seq, None)
        self.leases.pop(seq, None)
        self._end_stripe(seq)

    def _end_stripe(self, seq: int) -> None:
        self.never_leased.discard(seq)
        self.stripes = [stripe for stripe in self.stripes if seq not in stripe.seqs]

    def contents(self) -> dict[str, Any]:
        return {
            "items": sorted((seq, item, self.leases.get(seq)) for seq, item in self.items.items()),
            "scheduled": sorted(self.scheduled.items()),
            "lost": sorted(self.lost),
            "requests": sorted(self.requests.items()),
            "last_seq": self.last_seq,
        }


def contents(store: Any, lost: set[int]) -> dict[str, Any]:
    """The contents of a store, read in several ways."""
    page = store.page(False, 0, 10_000)
    leases = {leased.item.seq: (leased.attempts, leased.deadline, leased.hold) for leased in store.leased()}
    ready = store.ready(0, None, 10_000, 1 << 40)
    assert [leased.item for leased in page if leased.item.seq not in leases] == ready
    summary = store.summary()
    scheduled = store.scheduled(10_000).items
    assert (summary.ready, summary.leased, summary.scheduled) == (len(ready), len(leases), len(scheduled))
    assert summary.created_sum == sum(leased.item.created_at for leased in page)
    assert summary.next_expiry == store.next_expiry() == min((item.expire_deadline for item in ready), default=None)
    found = store.find([*(leased.item.seq for leased in page), *lost])
    assert {seq for seq, where in found.items() if where.state == "leased"} == set(leases)
    return {
        "items": [(leased.item.seq, leased.item, leases.get(leased.item.seq)) for leased in page],
        "scheduled": [(leased.item.seq, leased.item) for leased in store.page(True, 0, 10_000)],
        "lost": sorted(seq for seq, where in found.items() if where.state == "lost"),
        "requests": sorted(store.request_ids(0, 100, ())),
        "last_seq": summary.last_seq,
    }


class Stores(RuleBasedStateMachine):
    """The model, the memory store and the DuckDB store get the same calls."""

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.directory = self.place / "0"
        self.uuid = str(uuid4())
        self.memory = MemoryStorage("memory")
        self.disk = DuckStorage("disk", self.directory)
        self.disk.recover()
        self.in_memory = self.memory.create(self.uuid, "orders")
        self.on_disk = self.disk.create(self.uuid, "orders")
        self.other = self.disk.create(str(uuid4()), "orders")
        self.written = Oracle()
        self.committed = Oracle()
        self.next_seq = 1
        self.run_of: dict[int, int] = {}
        """By the sequence of an item: the first sequence of its run."""

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.disk.close()
            shutil.rmtree(self.place)

    @rule(
        data=st.data(),
        added=st.integers(0, 4),
        in_columns=st.integers(0, 3),
        in_run=st.integers(0, 5),
        scheduled=st.integers(0, 2),
        written_as_leased=st.booleans(),
    )
    def commit(
        self,
        data: st.DataObject,
        added: int,
        in_columns: int,
        in_run: int,
        scheduled: int,
        written_as_leased: bool,
    ) -> None:
        state = self.committed
        batch = Batch()
        others = others_of(batch)
        if data.draw(st.integers(0, 6)) == 0:
            others.clear_ready, others.clear_leased, others.clear_scheduled = data.draw(
                st.tuples(st.booleans(), st.booleans(), st.booleans())
            )
        after_clear = deepcopy(state)
        after_clear.take(batch)
        first_seq = self.next_seq
        comes_last = data.draw(st.integers(0, added))
        batch.add = [self.new_item() for _ in range(added - comes_last)]
        if in_columns:
            others.rows = [self.new_rows(in_columns, data.draw(st.booleans()))]
        if in_run:
            others.rows = [*(others.rows or ()), self.new_run(in_run, data.draw(st.booleans()))]
        run_ends = self.next_seq
        batch.add += [self.new_item() for _ in range(comes_last)]
        others.schedule = [self.new_item(enqueue_at=data.draw(st.integers(1, 50))) for _ in range(scheduled)]
        new = list(range(first_seq, self.next_seq - scheduled))
        free = after_clear.never_leased | set(range(run_ends - in_run, run_ends))
        others.leased_stripes = self.some_stripes(data, free)
        there = [*after_clear.items, *(new if written_as_leased else ())]
        batch.lease_seqs = self.some(data, there)
        batch.lease_attempts = [data.draw(st.integers(1, 9)) for _ in batch.lease_seqs]
        batch.lease_deadlines = [data.draw(st.integers(0, 99)) for _ in batch.lease_seqs]
        batch.holds = [
            Hold(data.draw(st.sampled_from(["", "ann", "bób"])), data.draw(st.integers(0, 9))) for _ in batch.lease_seqs
        ]
        batch.hold_counts = [1] * len(batch.lease_seqs)
        others.unschedule = self.some(data, [*after_clear.scheduled, *(item.seq for item in others.schedule or ())])
        batch.remove = self.some(data, [*after_clear.items, *new])
        untouched = deepcopy(after_clear)
        for seq in [*batch.lease_seqs, *batch.remove]:
            untouched._end_stripe(seq)
        others.removed_stripes = [one for one in untouched.stripes if data.draw(st.booleans())]
        others.lost_seqs = self.some(data, batch.remove)
        others.lost_births = [0] * len(others.lost_seqs)
        others.lost_until = 1_000
        if data.draw(st.booleans()):
            others.request_ids, others.request_until = ["request", f"request {self.next_seq}"], [self.next_seq, 7]
        batch.last_seq = self.next_seq - 1
        state.take(batch)
        self.in_memory.unapplied.commit(batch)
        self.on_disk.unapplied.commit(decode(encode(batch)))

    def new_item(self, enqueue_at: int = 0) -> Item:
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        return Item(seq, seq * 3, seq * 7 % 50, bytes([seq % 256]) * (seq % 5), enqueue_at=enqueue_at)

    def new_rows(self, count: int, with_times: bool) -> Rows:
        first, self.next_seq = self.next_seq, self.next_seq + count
        columns: dict[str, Any] = {
            "payload": [b"%d" % seq for seq in range(first, first + count)],
            "kind": [f"kind {seq}" for seq in range(first, first + count)],
        }
        if with_times:
            times = pa.array([None, *range(1, count)], pa.int64()).view(pa.timestamp("us"))
            columns |= {"created_at": times, "expire_deadline": times}
        table = pa.table(columns)
        return Rows(first, count, first * 3, first * 7 % 50, encode_batches(table.to_batches(), table.schema))

    def new_run(self, count: int, with_texts: bool) -> Run:
        first, self.next_seq = self.next_seq, self.next_seq + count
        self.run_of.update(dict.fromkeys(range(first, first + count), first))
        payloads = [b"%d" % seq for seq in range(first, first + count)]
        texts = [f"kïnd {seq % 2}" for seq in range(first, first + count)] if with_texts else None
        return Run(first, count, first * 3, first * 7 % 50, payloads, texts)

    def some_stripes(self, data: st.DataObject, free: set[int]) -> list[LeasedStripe]:
        found = []
        for _ in range(data.draw(st.integers(0, 2))):
            if not free:
                break
            first, step = data.draw(st.sampled_from(sorted(free))), data.draw(st.integers(1, 3))
            count = 1
            own = {seq for seq in free if self.run_of[seq] == self.run_of[first]}
            while first + count * step in own and data.draw(st.integers(0, 3)):
                count += 1
            stripe = Stripe(first, count, step)
            free = free.difference(stripe.seqs)
            found.append(LeasedStripe(stripe, data.draw(st.integers(0, 99)), Hold("ann", 1)))
        return found

    def some(self, data: st.DataObject, seqs: list[int]) -> list[int]:
        return data.draw(st.lists(st.sampled_from(seqs), unique=True, max_size=6)) if seqs else []

    @rule()
    def write(self) -> None:
        for storage in (self.memory, self.disk):
            taken = storage.take()
            if taken is not None:
                storage.write(taken)
                storage.absorb(taken)
        self.written = deepcopy(self.committed)

    @rule()
    def fail_to_write(self) -> None:
        taken = self.memory.take()
        if taken is not None:
            self.memory.drop(taken)
        self.disk._journal.refuse("for a test")
        taken = self.disk.take()
        if taken is not None:
            try:
                self.disk.write(taken)
            except StorageError:
                pass
            else:
                raise AssertionError("it was refused and written all the same")
        self.disk._journal.reopen()
        self.committed = deepcopy(self.written)

    @rule()
    def freeze(self) -> None:
        assert self.in_memory.freeze() == self.on_disk.freeze()

    @rule()
    def apply(self) -> None:
        self.in_memory.apply()
        self.on_disk.apply()

    @rule(checkpointed=st.booleans())
    def flush_and_compare(self, checkpointed: bool) -> None:
        self.in_memory.flush()
        self.on_disk.flush()
        if checkpointed:
            self.on_disk.checkpoint(force=True)
        self.compare()

    def compare(self) -> None:
        expected = self.written.contents()
        assert contents(self.in_memory, self.written.lost) == expected
        assert contents(self.on_disk, self.written.lost) == expected
        assert self.on_disk.file.rows("SELECT seq FROM {file}.leases ORDER BY seq") == [
            (seq,) for seq in sorted(self.written.leases)
        ], "a lease without an item"

    @rule()
    def roll(self) -> None:
        self.disk.roll()

    @rule()
    def close_and_open(self) -> None:
        self.write()
        self.in_memory.close()
        self.on_disk.close()
        self.in_memory = self.memory.open(self.uuid, "orders")
        self.on_disk = self.disk.open(self.uuid, "orders")
        self.compare()

    @rule()
    def crash(self) -> None:
        """Crashes: only what is on disk at this moment remains."""
        crashed = self.place / str(uuid4())
        shutil.copytree(self.directory, crashed)
        taken = self.memory.take()
        if taken is not None:
            self.memory.drop(taken)
        self.disk.close()
        self.directory = crashed
        self.disk = DuckStorage("disk", crashed)
        self.disk.recover()
        self.on_disk = self.disk.open(self.uuid, "orders")
        self.in_memory.flush()
        self.committed = deepcopy(self.written)
        self.compare()

    @invariant()
    def rows_that_are_gone_are_known(self) -> None:
        if not hasattr(self, "place"):
            return
        for store in (self.in_memory, self.on_disk):
            for leased in store.page(False, 0, 10_000):
                state = "leased" if store.find([leased.item.seq])[leased.item.seq].state == "leased" else "ready"
                gone = leased.item.seq not in self.committed.items
                assert store.is_removed(leased.item.seq, state) == gone
            for leased in store.page(True, 0, 10_000):
                gone = leased.item.seq not in self.committed.scheduled
                assert store.is_removed(leased.item.seq, "scheduled") == gone


class StoresThatLeaveItems(Stores):
    """The same with a DuckDB store that leaves all items in the journal, and applies them a few at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.patched = contextlib.ExitStack()
        for place, name, value in (
            (unapplied, "LEFT_RECORD_BYTES_MIN", 0),
            (unapplied, "LEFT_ITEM_BYTES_MIN", 0),
            (limits, "LEFT_DELTA_BYTES", 300),
        ):
            self.patched.enter_context(mock.patch.object(place, name, value))

    def teardown(self) -> None:
        super().teardown()
        self.patched.close()

    @rule()
    def freeze(self) -> None:
        self.in_memory.freeze()
        self.on_disk.freeze()

    @rule()
    def catch_up(self) -> None:
        self.on_disk.catch_up()

    @rule(items_max=st.sampled_from([1, 2, 5, 1_000]), before=st.integers(0, 40))
    def read_ahead(self, items_max: int, before: int) -> None:
        """Finds every waiting item, and nothing else but rows of the file that are known to be leased or gone."""
        found: dict[int, Item] = {}
        upto = before or self.next_seq
        while read := self.on_disk.ready_ahead(max(found, default=0), before or None, items_max, 1 << 40):
            items = read if isinstance(read, list) else read.items(0, read.count)
            found.update((item.seq, item) for item in items)
        ready = self.written.items.keys() - self.written.leases.keys()
        waiting = {seq: self.written.items[seq] for seq in ready if seq < upto}
        assert {seq: item for seq, item in found.items() if seq in waiting} == waiting
        stay = sorted(waiting.keys() & self.committed.items.keys())
        assert not self.on_disk.removed_among(stay)
        for seq in found.keys() - waiting.keys():
            assert seq in self.written.leases or self.on_disk.is_removed(seq)


for machine in (Stores, StoresThatLeaveItems):
    machine.TestCase.settings = settings(
        max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
TestStores = Stores.TestCase
TestStoresThatLeaveItems = StoresThatLeaveItems.TestCase
