"""The items of one partition as memory knows them: which ones wait, are leased, are scheduled or are departing.

Every change goes into the pass's batch at the same time as into memory. If the batch cannot be made durable, the
partition drops its contents and reads them again from storage, so nothing here needs to be undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from querator import ids
from querator.daemon.queue.agenda import NEVER
from querator.daemon.queue.departing import DepartingItems
from querator.daemon.queue.expiry import ExpirySearch
from querator.daemon.queue.hands import Hand
from querator.daemon.queue.leases import Leases
from querator.daemon.queue.loading import Snapshot
from querator.daemon.queue.schedule import Schedule
from querator.daemon.queue.window import Window
from querator.daemon.store import Batch, Due, ItemColumns, Leased, Rows, Run, Store, Unapplied, joined, others_of
from querator.items import Hold, Item, Lease
from querator.limits import LOST_LEASE_KEPT_US

if TYPE_CHECKING:
    from querator.daemon.queue.partition import Partition

_seq_of = attrgetter("seq")
_leased_seq_of = attrgetter("item.seq")
_leased_created_at_of = attrgetter("item.created_at")


class Contents:
    """Empty and without a store while the partition is closed."""

    def __init__(self, partition: Partition, last_seq: int = 0) -> None:
        self._partition = partition
        self._agenda = agenda = partition.agenda
        self.store: Store | None = None
        self._unapplied: Unapplied | None = None
        self.last_seq = last_seq
        """The highest sequence that was handed out."""
        self.window = Window(partition.bounds)
        self.schedule = Schedule(agenda)
        self.leases = Leases(partition.prefix, agenda)
        self._departing: DepartingItems | None = None
        self.expiry = ExpirySearch(agenda)
        self.created_sum = 0
        """The sum of the creation times of all items that are not scheduled."""
        self._batch: Batch | None = None

    def load(self, store: Store, snapshot: Snapshot) -> None:
        """Takes over what was read from the store that was opened."""
        self.store = store
        self._unapplied = store.unapplied
        summary = snapshot.summary
        self.last_seq = max(self.last_seq, summary.last_seq)
        self.created_sum = summary.created_sum
        if summary.next_expiry is not None:
            self.expiry.expect(summary.next_expiry)
        if snapshot.expired:
            self.expiry.begin()
            self.expiry.found.append((snapshot.expired, None))
        self.window.waiting = summary.ready
        self.window.extend(snapshot.ready)
        self.leases.load(snapshot.leased)
        self.schedule.count = summary.scheduled
        self.scheduled_loaded(snapshot.scheduled)

    @property
    def departing(self) -> DepartingItems:
        """The items on their way elsewhere. Few partitions ever have any, so the object is made when it is needed."""
        if self._departing is None:
            self._departing = DepartingItems()
        return self._departing

    def counts(self) -> tuple[int, int, int, int]:
        """The fields of Counts, as storage has the items after the batch."""
        ready, leased, departing = self.window.waiting, len(self.leases.by_id) + self.leases.in_hands, self._departing
        if departing is not None and departing.items:
            ready += departing.waiting
            leased += len(departing.leased)
        return ready, leased, self.schedule.count, self.created_sum

    # -- the pass's batch

    def changes(self) -> Batch:
        """The pass's batch. Every change goes through here, so that no changed partition is missed by the pass."""
        batch = self._batch
        if batch is None:
            batch = self._batch = Batch()
            self._agenda.note_change(self._partition)
        return batch

    @property
    def has_changes(self) -> bool:
        return self._batch is not None

    def stage(self) -> bool:
        """Hands the pass's batch to the store, which makes it durable with its next write. False if there is none."""
        batch, unapplied = self._batch, self._unapplied
        self._batch = None
        if batch is None or unapplied is None:
            return False
        batch.last_seq = self.last_seq
        unapplied.commit(batch)
        return True

    def allocate(self, count: int, now_us: int) -> int:
        """Reserves this many new sequences and returns the first."""
        first = ids.next_sequence(self.last_seq, now_us)
        self.last_seq = first + count - 1
        return first

    def remember_keys(self, keys: Sequence[str], until_us: Sequence[int]) -> None:
        others = others_of(self.changes())
        others.request_ids = joined(others.request_ids, list(keys))
        others.request_until = joined(others.request_until, list(until_us))

    def remember_lost(self, items: Sequence[Item], now_us: int, *, stay: bool = False) -> None:
        """Remembers the ids of these items as lost leases.

        Pass `stay` for items that stay in the queue, in another partition. This file cannot see when they leave the
        queue, so it remembers their ids until they expire.
        """
        others = others_of(self.changes())
        others.lost_seqs = joined(others.lost_seqs, [item.seq for item in items])
        others.lost_births = joined(others.lost_births, [item.birth or item.seq for item in items])
        until = [now_us, *[item.expire_deadline for item in items if stay]]
        others.lost_until = max(others.lost_until, max(until) + LOST_LEASE_KEPT_US)

    # -- items come

    def add(self, items: list[Item], size_bytes: int, created_sum: int, first_expiry: int, last_seq: int) -> None:
        """Adds items at the tail. Their sequences come from `allocate`, in order. The sums are over these items. The
        batch may keep the list.
        """
        self.window.append(items, size_bytes, last_seq)
        batch = self.changes()
        batch.add = joined(batch.add, items)
        self.created_sum += created_sum
        if first_expiry < self.expiry.next_expiry:
            self.expiry.expect(first_expiry)

    def add_rows(self, rows: Rows | Run, created_sum: int, first_expiry: int) -> None:
        """`add` for items in columns."""
        others = others_of(self.changes())
        others.rows = joined(others.rows, [rows])
        self.created_sum += created_sum
        self.expiry.expect(first_expiry)
        self.window.append_rows(rows)

    def enter(self, items: list[Item]) -> None:
        """`add` for items that differ from each other."""
        self.add(
            list(items),
            sum([len(item.payload) for item in items]),
            sum([item.created_at for item in items]),
            min([item.expire_deadline for item in items]),
            items[-1].seq,
        )

    def requeue(self, items: Sequence[tuple[Item, int]], now_us: int) -> None:
        """Adds items that come back, each with its number of attempts, at the tail and under new sequences."""
        first = self.allocate(len(items), now_us)
        self.enter([returned(item, seq, attempts) for seq, (item, attempts) in enumerate(items, first)])

    def add_leased(self, leased: Sequence[Leased]) -> None:
        """Adds items that are leased already."""
        batch = self.changes()
        batch.add = joined(batch.add, [one.item for one in leased])
        self.created_sum += sum([one.item.created_at for one in leased])
        self.leases.add(batch, leased)

    # -- items leave

    def lease(self, sizes: Sequence[int], holds: list[Hold], deadline: int) -> list[list[Lease]]:
        """Leases items from the head, as `Leases.deal` says. Returns an empty list if no item waits in memory."""
        items = self.window.take(sizes[0] if len(sizes) == 1 else sum(sizes))
        return self.leases.deal(self.changes(), items, sizes, holds, deadline) if items else []

    def lease_one(self, hold: Hold, deadline: int) -> Lease | None:
        """`lease` for one item, without lists. None if no item waits in memory."""
        item = self.window.take_one()
        return None if item is None else self.leases.deal_one(self.changes(), item, hold, deadline)

    def remove_completed(self, leases: Sequence[Lease]) -> None:
        """Removes the items of leases that were taken out and succeeded."""
        batch = self.changes()
        if len(leases) == 1:
            item: Any = leases[0].item  # Any: otherwise compiled code would unbox and box its integers
            batch.remove = joined(batch.remove, [item.seq])
            self.created_sum -= item.created_at
            return
        batch.remove = joined(batch.remove, list(map(_leased_seq_of, leases)))
        self.created_sum -= sum(map(_leased_created_at_of, leases))

    def remove_lost(self, leases: Sequence[Lease], now_us: int) -> None:
        """Removes the items of leases that were taken out and did not succeed. Their ids are remembered as lost."""
        self.remove_completed(leases)
        self.remember_lost([lease.item for lease in leases], now_us)

    def remove_leased(self, wanted: Sequence[str]) -> set[int]:
        """Removes the items with these ids that are leased. Returns their sequences."""
        leases = self.leases.take(wanted)
        if leases:
            self.remove_completed(leases)
        return set(map(_leased_seq_of, leases))

    def remove(self, items: Sequence[Item]) -> None:
        """Removes items that are no longer counted as waiting, leased or departing."""
        batch = self.changes()
        batch.remove = joined(batch.remove, [item.seq for item in items])
        self.created_sum -= sum([item.created_at for item in items])

    def remove_waiting(self, items: Sequence[Item]) -> None:
        """Removes the items that still wait, in memory or on disk."""
        present = self.waiting_among(items)
        if present:
            self.window.forget(present)
            self.remove(present)

    def waiting_among(self, items: Sequence[Item]) -> list[Item]:
        """Which of these items, as read from storage a moment ago, still wait."""
        store = self.store
        assert store is not None
        return self.window.among(items, self.departing.items, store.is_removed)

    def remove_all(self, *, ready: bool, leased: bool, scheduled: bool) -> None:
        batch = self.changes()
        others = others_of(batch)
        others.clear_ready, others.clear_leased, others.clear_scheduled = ready, leased, scheduled
        self.leases.separate_all()
        # A clear takes effect first in its batch, so it would not remove items that this pass has added so far.
        stay = set() if leased else {lease.item.seq for lease in self.leases.by_id.values()}
        if ready:
            batch.add = [item for item in batch.add or () if item.seq in stay]
            others.rows = None
            self.window.clear(self.last_seq)
            self.expiry.next_expiry = NEVER
        if leased:
            batch.lease = None
            batch.lease_seqs = batch.lease_attempts = batch.lease_deadlines = batch.hold_counts = None
            batch.holds = others.leased_stripes = None
            self.leases.clear()
        if scheduled:
            others.schedule = None
            self.schedule.clear()
        self.departing.clear(ready=ready, leased=leased, scheduled=scheduled)
        if ready:
            left = [*self.departing.items.values(), *[lease.item for lease in self.leases.by_id.values()]]
            self.created_sum = sum([item.created_at for item in left])

    # -- scheduled items

    def add_scheduled(self, items: Sequence[Item]) -> None:
        others = others_of(self.changes())
        others.schedule = joined(others.schedule, list(items))
        self.schedule.add(items)

    def unschedule(self, items: Sequence[Item]) -> None:
        others = others_of(self.changes())
        others.unschedule = joined(others.unschedule, [item.seq for item in items])
        self.schedule.remove(items)

    def remove_scheduled(self, items: Sequence[Item]) -> list[Item]:
        """Removes the items, read from storage a moment ago, that are still scheduled. Returns the removed items."""
        store = self.store
        assert store is not None
        present = [item for item in items if not store.is_removed(item.seq, "scheduled")]
        self.unschedule(present)
        return present

    def wants_scheduled(self) -> bool:
        """Whether scheduled items must be read, because memory has none of them."""
        schedule = self.schedule
        more = schedule.count > len(self.departing.scheduled)
        return more and not schedule.items and not schedule.loading and self.store is not None

    def scheduled_loaded(self, due: Due) -> None:
        """Takes in the scheduled items that are due first, read after everything was applied to the file."""
        store = self.store
        assert store is not None
        horizon = NEVER if due.are_all else due.items[-1].enqueue_at
        departing = self.departing.scheduled
        present = [i for i in due.items if not store.is_removed(i.seq, "scheduled") and i.seq not in departing]
        self.schedule.loaded(present, horizon)

    # -- items depart

    def depart(self, items_max: int, bytes_max: int) -> list[Item]:
        """Takes items from the head, to be sent to another partition. Storage has them until `departed`."""
        taken = self.window.take(items_max, bytes_max)
        self.departing.start(taken)
        return taken

    def depart_scheduled(self, items_max: int) -> list[Item]:
        """The same for scheduled items, in the order in which they are due."""
        taken = self.schedule.take(items_max)
        self.departing.start_scheduled(taken)
        return taken

    def departed(self, items: Sequence[Item], now_us: int) -> set[int]:
        """Removes items that have arrived at their destination. Returns the sequences of the items that it removed."""
        present = self.departing.end(items)
        if present:
            self.remove(present)
        present += self.remove_scheduled(self.departing.end_scheduled(items))
        if came_back := [item for item in present if item.birth]:
            self.remember_lost(came_back, now_us, stay=True)
        self.departures_ended(now_us)
        return {item.seq for item in present}

    def stay(self, items: Sequence[Item], now_us: int) -> None:
        """Puts departing items that did not arrive back to the head, or into the schedule."""
        self.window.put_back(self.departing.end(items))
        self.schedule.remember(self.departing.end_scheduled(items))
        self.departures_ended(now_us)

    def departures_ended(self, now_us: int) -> None:
        """Called when some departures have ended. Resumes the search for expired items if no waiting item departs any
        more.
        """
        if not self.departing.waiting:
            self.expiry.all_departed(now_us)


def add_loaded(contents: Contents, found: list[Item] | ItemColumns) -> None:
    """Takes in waiting items that were read from disk, beginning with the first that is not in memory."""
    store, window = contents.store, contents.window
    assert store is not None
    if not found:
        return
    first_seq, last_seq = _ends(found)
    if first_seq <= window.cursor or contents.departing.items or store.has_removed_from(first_seq):
        items = found.items(0, found.count) if isinstance(found, ItemColumns) else found
        gone = store.removed_among(list(map(_seq_of, items)))
        gone.update(contents.departing.items)
        found = [item for item in items if item.seq > window.cursor and item.seq not in gone]
    if isinstance(found, ItemColumns):
        window.extend_columns(found)
    else:
        window.extend(found)
    window.pass_by(last_seq)


def lease_runs(contents: Contents, sizes: Sequence[int], holds: list[Hold], deadline: int) -> list[Hand | None]:
    """`Contents.lease` without an object for each item. Returns an empty list if this is not possible."""
    pieces = contents.window.take_runs(sum(sizes))
    return contents.leases.deal_runs(contents.changes(), pieces, sizes, holds, deadline) if pieces else []


def remove_hand(contents: Contents, hand: Hand) -> None:
    """Removes the items of a hand that was taken out and succeeded."""
    hand.remove(contents.changes())
    contents.created_sum -= hand.created_sum


def returned(item: Item, seq: int, attempts: int, enqueue_at: int = 0) -> Item:
    """The item under a new sequence, when it comes back after a lease or because it is due."""
    birth = item.birth or item.seq
    return msgspec.structs.replace(
        item, seq=seq, attempts=attempts, enqueue_at=enqueue_at, birth=birth, imported_deadline=0
    )


def _ends(found: list[Item] | ItemColumns) -> tuple[int, int]:
    """The first and the last sequence of these items, which are ascending."""
    return (found.first_seq, found.last_seq) if isinstance(found, ItemColumns) else (found[0].seq, found[-1].seq)
