"""What the loop remembers of one partition: the head of its items, its leases, what is due, and its counters.

Every change goes into the pass's batch at the same time as into memory. If that batch cannot be made durable, the whole
memory is thrown away and read again from storage, so nothing here needs to be undone.
"""

from __future__ import annotations

import enum
import heapq
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import Final

import msgspec

from querator import ids, limits
from querator.config_file import LimitsConfig
from querator.daemon.queue import distribution, lifecycle
from querator.daemon.queue.requests import EXACT_PREFIXES
from querator.daemon.queue.schedule import NEVER, Schedule
from querator.daemon.queue.states import ALLOWS, HELD, LEAVING, Allows, restricted
from querator.daemon.queue.window import Window
from querator.daemon.store import Batch, Due, Fingerprints, Leased, Rows, Store, Summary
from querator.items import NOBODY, ZERO_TIME_US, Counts, Hold, Item, Placement, State
from querator.limits import (
    ATTEMPTS_MAX,
    LEASE_ENDS_IDS_MIN,
    LOST_LEASE_KEPT_US,
    SCHEDULED_WINDOW_ITEMS_MAX,
)

# Deadlines that nobody asks for. They stand in storage for leases whose holder has let go of them, and say what becomes
# of the item, in case this process does not live to see to it.
TO_DIE_US: Final = ZERO_TIME_US + 1
TO_MOVE_US: Final = ZERO_TIME_US + 2
DEFAULT_BOUNDS: Final = LimitsConfig()

_seq_of = attrgetter("seq")
_attempts_of = attrgetter("attempts")
_hold_of = attrgetter("hold")
_leased_seq_of = attrgetter("item.seq")
_leased_created_at_of = attrgetter("item.created_at")


class Sweep(enum.Enum):
    """Where the search for expired items stands."""

    IDLE = 0
    READING = 1
    LEAVING = 2
    """What was found is on its way to the dead queue; the next search waits for that."""


class Lease(msgspec.Struct, gc=False):
    """An item in somebody's hands. `attempts` counts this lease."""

    id: str
    item: Item
    attempts: int
    deadline: int
    hold: Hold = NOBODY


def failed(lease: Lease, reason: str, ended_at: int) -> Lease:
    """The lease as its holder gave it up: its item remembers the attempt."""
    hold = lease.hold
    if reason or not hold.ended_at:
        hold = Hold(hold.client_id, hold.leased_at, ended_at, reason)
    history = lifecycle.history_with_attempt(lease.item, lease.attempts, hold)
    return Lease(lease.id, msgspec.structs.replace(lease.item, history=history), lease.attempts, lease.deadline, hold)


class Snapshot(msgspec.Struct):
    """Everything a partition needs to start, read from its store in one go."""

    summary: Summary
    leased: list[Leased]
    scheduled: Due
    ready: list[Item]
    newest_keys: list[tuple[str, int]]
    keys: Fingerprints
    """All keys that are remembered, the newest ones among them."""


def read_snapshot(store: Store, bounds: LimitsConfig, now_us: int) -> Snapshot:
    """Blocking: the full read of a partition that is opened."""
    store.flush()
    summary = store.summary()
    keys = store.request_fingerprints(now_us)
    # A query takes milliseconds even if it finds nothing, which adds up when a thousand empty partitions are opened.
    newest_keys = store.request_ids(now_us, limits.REQUEST_IDS_NEWEST_MAX, EXACT_PREFIXES) if keys else []
    if not (summary.ready or summary.leased or summary.scheduled):
        return Snapshot(summary, [], Due([], True), [], newest_keys, keys)
    return Snapshot(
        summary=summary,
        leased=store.leased(),
        scheduled=store.scheduled(SCHEDULED_WINDOW_ITEMS_MAX),
        ready=store.ready(0, None, bounds.ready_window_items, bounds.ready_window_bytes),
        newest_keys=newest_keys,
        keys=keys,
    )


def empty_snapshot() -> Snapshot:
    """What there is to know of a partition that was created just now; reading that from its file takes milliseconds."""
    return Snapshot(Summary(0, 0, 0, 0, 0, None, None), [], Due([], True), [], [], Fingerprints(array("Q")))


class Partition:
    """One partition of one queue, as its Logical sees it."""

    def __init__(self, placement: Placement, bounds: LimitsConfig = DEFAULT_BOUNDS) -> None:
        self.placement = placement
        self.bounds = bounds
        self.number = placement.number
        self.prefix = int(placement.uuid.replace("-", "")[:16], 16)
        self.store: Store | None = None
        self.error = ""
        self.error_since = 0
        """When it failed; 0 once it has recovered."""
        self.recovered_at = 0
        """When it last recovered from an error, in this process."""
        self.failures = 0
        self.relapses = 0
        """Failures since anything was last made durable. That a file can be opened says nothing of a full disk."""
        self.retry_at_ns = 0
        self.opening = False
        self.closed_for = ""
        """What keeps it closed at present, whatever the operator asked for: a reload, a job."""
        self.closed_since = 0
        self.is_noted = False
        """Whether the catalog has what its file remembers, because the file is offline."""
        self.unwanted: Store | None = None
        """A store that was opened while the partition was already to be closed again."""
        self.leaving = False
        """Whether a job moves its items into other partitions."""
        self.overlay: Allows | None = None
        """What that job leaves it of what its state allows."""
        self.congested = False
        """Whether its storage cannot follow: it takes no new items for now."""
        self.opened_at = 0
        self.apply_failures = 0
        self.apply_after = 0.0
        """When applying to its file is tried again, after failures."""
        self.apply_error = ""
        """Why its file could not be brought up to date the last time."""
        self.shortage = ""
        """Why nothing can be written to its storage at present: it is full."""
        self.shortage_since = 0
        self.storage_warning = ""
        """What may be wrong with its storage soon."""
        self.forgot_at = 0
        """When its file was last rid of lost leases and request ids that are too old."""
        self.batch: Batch | None = None
        self.last_seq = 0
        self.settled_counts = Counts(0, 0, 0, 0)
        self._empty()

    def _empty(self) -> None:
        self.window = Window(self.bounds)
        self.schedule = Schedule()
        self.leased: dict[str, Lease] = {}
        self.lease_ends: list[tuple[int, int, list[str]]] = []
        """A heap of deadlines and the ids that had them; an id that is no longer leased until then is passed over."""
        self.lease_ends_ids = 0
        self.dying: dict[int, Item] = {}
        """Items on their way to the dead queue, in storage until they have arrived there."""
        self.dying_leased: set[int] = set()
        """Those of them that are leased."""
        self.last_leased = 0
        self.created_sum = 0
        self.next_expiry = NEVER
        self.sweep = Sweep.IDLE
        self.swept: list[tuple[list[Item], int | None]] = []
        """Results of sweeps that the next pass acts on."""
        self.departing: dict[int, Item] = {}
        """Scheduled items on their way to another partition, in storage until they have arrived there."""

    # -- state

    @property
    def state(self) -> State:
        if self.error:
            return State.ERROR
        return self.placement.requested if self.store is not None else State.UNAVAILABLE

    @property
    def blocked(self) -> str:
        """Why it takes no items although it should: its storage fails or is full, or its file cannot follow."""
        if self.error or self.store is None:
            return self.error
        return self.shortage or (self.apply_error if self.congested else "")

    @property
    def trouble(self) -> str:
        """What an operator should know: why it is blocked, or what may block it soon."""
        return self.blocked or self.apply_error or self.storage_warning

    @property
    def told_state(self) -> State:
        """The state as operators see it. A full storage is told as an error, also while nobody tries to write."""
        return State.ERROR if self.blocked else self.state

    @property
    def allows(self) -> Allows:
        is_open = self.store is not None and not self.error
        allows = ALLOWS[self.placement.requested if is_open else self.state]
        return allows if self.overlay is None else restricted(allows, self.overlay)

    @property
    def should_be_open(self) -> bool:
        return not self.closed_for and self.placement.requested is not State.UNAVAILABLE

    @property
    def drained(self) -> bool:
        return not self.total and not self.scheduled_count

    @property
    def total(self) -> int:
        """Everything but the scheduled items, as storage has it."""
        return self.waiting + len(self.dying) - len(self.dying_leased) + self.total_leased

    @property
    def total_leased(self) -> int:
        return len(self.leased) + len(self.dying_leased) + self.last_leased

    @property
    def ready(self) -> deque[Item]:
        return self.window.ready

    @property
    def waiting(self) -> int:
        return self.window.waiting

    @waiting.setter
    def waiting(self, count: int) -> None:
        self.window.waiting = count

    @property
    def load(self) -> int:
        """What it has to give out, now or later: new items go to the partition that has the least of it."""
        return self.window.waiting + self.schedule.count

    def oldest(self) -> int | None:
        """When the oldest of the items that are next to be leased was made; None if no item waits."""
        return self.window.oldest()

    @property
    def scheduled_count(self) -> int:
        return self.schedule.count

    # -- what operators, jobs and the storage ask for

    def change_placement(self, placement: Placement) -> None:
        """Its storage or its requested state is another one, which the catalog has recorded."""
        self.placement = placement

    def keep_closed(self, reason: str, now_us: int | None = None) -> None:
        """Nothing opens the file until `allow_opening`. Pass no time if the partition was closed before."""
        self.closed_for = reason
        if now_us is not None:
            self.closed_since = now_us

    def allow_opening(self) -> None:
        self.closed_for = ""

    def keys_noted(self) -> None:
        """The catalog has the keys of the file, which is offline."""
        self.is_noted = True

    def begin_leaving(self) -> None:
        """A job moves the items into other partitions: this one takes no new items."""
        if not self.leaving:
            self.leaving = True
            self.overlay = LEAVING

    def hold(self) -> None:
        """Nobody gets an item until the job knows which items have arrived elsewhere."""
        self.overlay = HELD

    def release(self) -> None:
        self.overlay = LEAVING

    def end_leaving(self) -> None:
        self.leaving = False
        self.overlay = None

    @property
    def is_held(self) -> bool:
        return self.overlay is HELD

    def set_congested(self, congested: bool) -> None:
        self.congested = congested

    def set_room(self, shortage: str, since_us: int, warning: str) -> None:
        """Whether the storage is full, since when, and whether it is nearly full."""
        self.shortage, self.shortage_since, self.storage_warning = shortage, since_us, warning

    def apply_failed(self, reason: str, retry_at: float) -> None:
        """The file could not be brought up to date; the engine tries again at this monotonic time."""
        self.apply_failures += 1
        self.apply_error = reason
        self.apply_after = retry_at

    def old_keys_dropped(self, now_us: int) -> None:
        self.forgot_at = now_us

    def fail(self, reason: str, now_us: int, retry_at_ns: int) -> None:
        """The storage failed: nothing in memory can be trusted any more. Counters stay as the last that were known."""
        self.close()
        if not self.error:
            self.error_since = now_us
        self.error = reason
        self.failures += 1
        self.relapses += 1
        self.retry_at_ns = retry_at_ns

    def settled(self) -> None:
        """What was counted so far is durable: this is what is told of a partition that fails or is closed."""
        self.settled_counts = Counts(
            self.total - self.total_leased,
            self.total_leased,
            self.scheduled_count,
            self.created_sum,
        )

    def close(self) -> None:
        """Forgets everything but the last counts, which are still told while the partition is closed."""
        counts = self.settled_counts
        self.store = None
        self.batch = None
        self._empty()
        self.settled_counts = counts
        self.waiting, self.last_leased, self.schedule.count, self.created_sum = counts

    def recall(self, counts: Counts) -> None:
        """What was counted when it was closed, by an earlier process."""
        self.settled_counts = counts
        self.close()

    def opened(self, store: Store, snapshot: Snapshot, now_us: int) -> None:
        self._empty()
        self.opened_at = now_us
        self.is_noted = False
        self.store = store
        if self.leaving:
            # Something that was moved away may still be here: the job must see to that before anyone gets it.
            self.overlay = HELD
        if self.error_since and not self.shortage:
            self.recovered_at = now_us
        self.error, self.error_since, self.failures = "", 0, 0
        self.apply_failures, self.apply_error = 0, ""  # whoever opens a file brings it up to date
        summary = snapshot.summary
        self.last_seq = max(self.last_seq, summary.last_seq)
        self.waiting = summary.ready
        self.created_sum = summary.created_sum
        self.next_expiry = NEVER if summary.next_expiry is None else summary.next_expiry
        self.window.extend(snapshot.ready)
        seqs = [leased.item.seq for leased in snapshot.leased]
        for text, leased in zip(ids.encode_many(self.prefix, seqs), snapshot.leased, strict=True):
            self.leased[text] = Lease(text, *leased)
        self._rebuild_lease_ends()
        self.schedule.count = summary.scheduled
        self.scheduled_loaded(snapshot.scheduled)
        self.settled()

    # -- the pass's batch

    def changes(self) -> Batch:
        if self.batch is None:
            self.batch = Batch()
        return self.batch

    def remember_keys(self, keys: Sequence[str], until_us: Sequence[int]) -> None:
        batch = self.changes()
        batch.request_ids += keys
        batch.request_until += until_us

    def commit(self) -> bool:
        """Hands the pass's batch to the store; False if there is none."""
        batch, self.batch = self.batch, None
        if batch is None or self.store is None:
            return False
        batch.last_seq = self.last_seq
        self.store.commit(batch)
        return True

    def allocate(self, count: int, now_us: int) -> int:
        """The first of so many new sequences."""
        first = ids.next_sequence(self.last_seq, now_us)
        self.last_seq = first + count - 1
        return first

    # -- items come

    def add(self, items: list[Item], size_bytes: int, created_sum: int, first_expiry: int) -> None:
        """New items at the tail; their sequences come from `allocate`, in order. The sums are over these items."""
        self.changes().add += items
        self.created_sum += created_sum
        if first_expiry < self.next_expiry:
            self.next_expiry = first_expiry
        self.window.append(items, size_bytes)

    def add_rows(self, rows: Rows, created_sum: int, first_expiry: int) -> None:
        """`add` for items in columns."""
        self.changes().rows.append(rows)
        self.created_sum += created_sum
        self.next_expiry = min(self.next_expiry, first_expiry)
        self.window.append_rows(rows)

    def requeue(self, items: Iterable[tuple[Item, int]], now_us: int) -> None:
        """Items come back at the tail under new sequences, with the attempts that are told."""
        moved = list(items)
        first = self.allocate(len(moved), now_us)
        self.enter([_again(item, seq, attempts) for seq, (item, attempts) in enumerate(moved, first)])

    def enter(self, items: list[Item]) -> None:
        """`add` for items that differ from each other."""
        self.add(
            items,
            sum([len(item.payload) for item in items]),
            sum([item.created_at for item in items]),
            min([item.expire_deadline for item in items]),
        )

    # -- between memory and disk

    def wants_loading(self) -> bool:
        return self.store is not None and self.window.wants_loading()

    def loaded(self, items: list[Item]) -> None:
        """A stretch of what waits on disk has been read, from its start."""
        store = self.store
        assert store is not None
        cursor, dying = self.window.cursor, self.dying
        self.window.extend([i for i in items if i.seq > cursor and not store.is_removed(i.seq) and i.seq not in dying])
        if items:
            self.window.pass_by(items[-1].seq)

    def applied(self) -> None:
        """The file has caught up."""
        self.apply_failures, self.apply_error = 0, ""
        if self.store is not None:
            self.window.applied(self.store.applied_through)

    # -- leases

    def lease(self, sizes: Sequence[int], holds: Sequence[Hold], deadline: int) -> list[list[Lease]]:
        """Items from the head, leased until the deadline: up to so many for each hold. Empty hands come last."""
        items = self.window.take(sum(sizes))
        if not items:
            return []
        seqs = list(map(_seq_of, items))
        texts = ids.encode_many(self.prefix, seqs)
        attempts = [before + 1 if before < ATTEMPTS_MAX else before for before in map(_attempts_of, items)]
        leases = list(map(Lease, texts, items, attempts, repeat(deadline), repeat(holds[0])))
        self.leased.update(zip(texts, leases, strict=True))
        self._expect_end(deadline, seqs[0], texts)
        hands = distribution.deal(leases, sizes)
        if len(hands) > 1:
            for hand, hold in zip(hands, holds, strict=True):
                deque(map(setattr, hand, repeat("hold"), repeat(hold)), maxlen=0)
            leases = list(chain.from_iterable(hands))
            seqs, attempts = list(map(_leased_seq_of, leases)), list(map(_attempts_of, leases))
        batch = self.changes()
        batch.lease_seqs += seqs
        batch.lease_attempts += attempts
        batch.lease_deadlines += repeat(deadline, len(seqs))
        batch.holds += holds
        batch.hold_counts += map(len, hands)
        return hands

    def _expect_end(self, deadline: int, seq: int, texts: list[str]) -> None:
        heapq.heappush(self.lease_ends, (deadline, seq, texts))
        self.lease_ends_ids += len(texts)
        if self.lease_ends_ids > 2 * len(self.leased) + LEASE_ENDS_IDS_MIN:
            # Most of them were completed in time, which is the rule; they must not pile up until then.
            self._rebuild_lease_ends()

    def _rebuild_lease_ends(self) -> None:
        by_deadline: dict[int, list[str]] = {}
        for lease in self.leased.values():
            by_deadline.setdefault(lease.deadline, []).append(lease.id)
        self.lease_ends = [(deadline, 0, texts) for deadline, texts in by_deadline.items()]
        heapq.heapify(self.lease_ends)
        self.lease_ends_ids = len(self.leased)

    def _write_leases(self, leases: Sequence[Lease], deadline: int | None = None) -> None:
        batch = self.changes()
        batch.lease_seqs += [lease.item.seq for lease in leases]
        batch.lease_attempts += [lease.attempts for lease in leases]
        batch.lease_deadlines += [lease.deadline if deadline is None else deadline for lease in leases]
        for hold, held in groupby(leases, _hold_of):
            batch.holds.append(hold)
            batch.hold_counts.append(len(list(held)))

    def let_go(self, leases: Sequence[Lease], fate: int) -> None:
        """Their holder wants these to die or to move, and storage knows it from now on."""
        self._write_leases(leases, fate)

    def extend(self, leases: list[Lease], deadline: int) -> None:
        for lease in leases:
            lease.deadline = deadline
        self._expect_end(deadline, leases[0].item.seq, [lease.id for lease in leases])
        self._write_leases(leases)

    def add_leased(self, items: Sequence[tuple[Item, int, Hold]]) -> None:
        """Imported items that are leased already; `attempts` of the item counts the lease it is in."""
        seqs = [item.seq for item, _, _ in items]
        batch = self.changes()
        leases = []
        for text, (item, deadline, hold) in zip(ids.encode_many(self.prefix, seqs), items, strict=True):
            lease = Lease(text, item, item.attempts, deadline, hold)
            leases.append(lease)
            self.leased[text] = lease
            self.created_sum += item.created_at
            self._expect_end(deadline, item.seq, [text])
            batch.add.append(item)
        self._write_leases(leases)

    def completed(self, leases: Sequence[Lease]) -> None:
        """These have left `leased` for good, with success."""
        self.changes().remove += map(_leased_seq_of, leases)
        self.created_sum -= sum(map(_leased_created_at_of, leases))

    def remove_leased(self, wanted: Iterable[str]) -> set[int]:
        """Removes the items with these ids that are leased. Returns their sequences."""
        leases = [lease for text in wanted if (lease := self.leased.pop(text, None)) is not None]
        if leases:
            self.completed(leases)
        return set(map(_leased_seq_of, leases))

    def lost(self, leases: Sequence[Lease], now_us: int) -> None:
        """These have left `leased` without success: their ids are remembered as lost."""
        self.completed(leases)
        self.remember_lost([lease.item for lease in leases], now_us)

    def remember_lost(self, items: Sequence[Item], now_us: int, *, stay: bool = False) -> None:
        """Their ids are lost ones. Those that `stay` in the queue, in another partition, cannot be seen from here."""
        batch = self.changes()
        batch.lost_seqs += [item.seq for item in items]
        batch.lost_births += [item.birth or item.seq for item in items]
        until = [now_us, *(item.expire_deadline for item in items if stay)]
        batch.lost_until = max(batch.lost_until, max(until) + LOST_LEASE_KEPT_US)

    def ended_leases(self, now_us: int, leases_max: int) -> list[Lease]:
        """Leases past their deadline, taken out of `leased`, in the order to come back in; at most about so many."""
        ended: list[Lease] = []
        ends = self.lease_ends
        while ends and ends[0][0] < now_us and len(ended) < leases_max:
            deadline, _, texts = heapq.heappop(ends)
            self.lease_ends_ids -= len(texts)
            for text in texts:
                lease = self.leased.get(text)
                if lease is not None and lease.deadline == deadline:
                    del self.leased[text]
                    ended.append(lease)
        ended.sort(key=lambda lease: (lease.deadline, lease.item.seq))
        return ended

    # -- waiting items leave out of turn

    def remove_waiting(self, items: Sequence[Item]) -> list[Item]:
        """Those of these items that still wait, here or on disk, leave; returns them."""
        present = self.waiting_among(items)
        if present:
            self.changes().remove += [item.seq for item in present]
            self.forget_waiting(present)
        return present

    def waiting_among(self, items: Sequence[Item]) -> list[Item]:
        """Which of these items, as read from storage a moment ago, still wait."""
        store = self.store
        assert store is not None
        return self.window.among(items, self.dying, store.is_removed)

    def start_dying(self, items: Sequence[Item], leased: bool) -> None:
        """These are on their way out, taken out of `leased` or of what waits; storage still has them."""
        if not leased:
            self.forget_waiting(items)
            self.created_sum += sum([item.created_at for item in items])
        for item in items:
            self.dying[item.seq] = item
            if leased:
                self.dying_leased.add(item.seq)

    def stop_dying(self, items: Sequence[Item]) -> list[Item]:
        """They have arrived elsewhere, or are taken back; returns those that were still dying."""
        present = [item for item in items if self.dying.get(item.seq) is item]
        for item in present:
            del self.dying[item.seq]
            self.dying_leased.discard(item.seq)
        return present

    def take_back(self, lease: Lease) -> None:
        """A lease that was on its way out is held again."""
        self.leased[lease.id] = lease
        self._write_leases([lease])
        self._expect_end(lease.deadline, lease.item.seq, [lease.id])

    def sweep_ended(self, now_us: int) -> None:
        """Looks again at once, when everything that the last sweep found has left."""
        if self.sweep is Sweep.LEAVING and len(self.dying) == len(self.dying_leased):
            self.sweep = Sweep.IDLE
            self.next_expiry = min(self.next_expiry, now_us - 1)

    def forget_waiting(self, items: Sequence[Item]) -> None:
        self.window.forget(items)
        self.created_sum -= sum([item.created_at for item in items])

    # -- scheduled items

    def add_scheduled(self, items: Sequence[Item]) -> None:
        self.changes().schedule += items
        self.schedule.add(items)

    def unschedule(self, items: Sequence[Item]) -> None:
        self.changes().unschedule += [item.seq for item in items]
        self.schedule.remove(items)

    def wants_scheduled(self) -> bool:
        schedule = self.schedule
        more = schedule.count > len(self.departing)
        return more and not schedule.items and not schedule.loading and self.store is not None

    def scheduled_loaded(self, due: Due) -> None:
        """The items that are due first have been read, everything stored taken into account."""
        store = self.store
        assert store is not None
        horizon = NEVER if due.are_all else due.items[-1].enqueue_at
        present = [i for i in due.items if not store.is_removed(i.seq, "scheduled") and i.seq not in self.departing]
        self.schedule.loaded(present, horizon)

    # -- moving into another partition

    def depart(self, items_max: int, bytes_max: int) -> list[Item]:
        """Items from the head that nobody gets here any more; storage has them until `departed`."""
        taken = self.window.take(items_max, bytes_max)
        self.dying.update([(item.seq, item) for item in taken])
        return taken

    def depart_scheduled(self, items_max: int) -> list[Item]:
        """The same for scheduled items, those that are due first."""
        taken = self.schedule.take(items_max)
        self.departing.update([(item.seq, item) for item in taken])
        return taken

    def departed(self, items: Sequence[Item], now_us: int) -> set[int]:
        """They have arrived elsewhere. Returns the sequences of those that leave with that."""
        present = self.stop_dying(items)
        if present:
            self.changes().remove += [item.seq for item in present]
            self.created_sum -= sum([item.created_at for item in present])
        scheduled = [item for item in items if self.departing.pop(item.seq, None) is item]
        store = self.store
        assert store is not None
        scheduled = [item for item in scheduled if not store.is_removed(item.seq, "scheduled")]
        self.unschedule(scheduled)
        if returned := [item for item in (*present, *scheduled) if item.birth]:
            self.remember_lost(returned, now_us, stay=True)
        self.sweep_ended(now_us)
        return {item.seq for item in (*present, *scheduled)}

    def stay(self, items: Sequence[Item], now_us: int) -> None:
        """They have not arrived and come back, in front of what waits."""
        self.window.put_back(self.stop_dying(items))
        self.schedule.remember([item for item in items if self.departing.pop(item.seq, None) is item])
        self.sweep_ended(now_us)

    # -- clearing

    def clear(self, ready: bool, leased: bool, scheduled: bool) -> None:
        batch = self.changes()
        batch.clear_ready, batch.clear_leased, batch.clear_scheduled = ready, leased, scheduled
        # A clear comes first in its batch: what the same pass has added so far would survive it.
        in_hands = set() if leased else {lease.item.seq for lease in self.leased.values()}
        if ready:
            batch.add = [item for item in batch.add if item.seq in in_hands]
            batch.rows = []
        if leased:
            batch.lease_seqs, batch.lease_attempts, batch.lease_deadlines = [], [], []
            batch.holds, batch.hold_counts = [], []
        if scheduled:
            batch.schedule = []
        if ready:
            self.window.clear(self.last_seq)
            self.next_expiry = NEVER
        if leased:
            self.leased.clear()
            self.lease_ends.clear()
            self.lease_ends_ids = 0
            self.dying_leased.clear()
        self.dying = {seq: item for seq, item in self.dying.items() if seq in self.dying_leased or not ready}
        held = [lease.item for lease in self.leased.values()] + [self.dying[seq] for seq in self.dying_leased]
        if ready:
            self.created_sum = sum([item.created_at for item in held])
        if scheduled:
            self.schedule.clear()
            self.departing.clear()

    # -- time

    def next_event_us(self) -> int:
        """When this partition next has something to do by itself."""
        if not self.allows.lifecycle:
            return NEVER
        soonest = self.next_expiry if self.sweep is Sweep.IDLE else NEVER
        if self.lease_ends and self.lease_ends[0][0] < soonest:
            soonest = self.lease_ends[0][0]
        if self.schedule.next_due < soonest and self.state is not State.PAUSED:
            soonest = self.schedule.next_due
        return soonest


def _again(item: Item, seq: int, attempts: int) -> Item:
    return msgspec.structs.replace(
        item, seq=seq, attempts=attempts, enqueue_at=0, birth=item.birth or item.seq, imported_deadline=0
    )
