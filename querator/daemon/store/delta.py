"""The net effect of a run of batches on a partition file.

An item that was added, leased and removed within one Delta leaves nothing here, so it never reaches SQL. A Delta is
relative to the file as it was when the Delta began, and does not know that file. A change that concerns the file (a
clear, the removal of an older item) is kept as an instruction.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, compress, filterfalse, repeat
from operator import attrgetter, itemgetter, not_
from typing import Any, NamedTuple

from querator.daemon.store.batches import Batch, Others, holds_of, others_of
from querator.daemon.store.journal import Place
from querator.daemon.store.runs import LeasedStripe, Rows, Run, Stripe
from querator.items import NOBODY, Hold, Item
from querator.limits import FREED_AT_ONCE_MAX, KEY_BYTES

_seq_of = attrgetter("seq")
_first_seq_of = attrgetter("first_seq")


def _consume(steps: Iterable[Any]) -> None:
    """Runs an iterator for its side effects, without a loop in Python."""
    deque(steps, maxlen=0)


class Left(NamedTuple):
    """A record whose items are left in the journal: memory has the place of the record, and not the contents."""

    place: Place
    item_bytes: int
    """The bytes of the record for each of its items."""


class Delta:
    """The net effect of batches on a file.

    The clear flags concern the file only, and are applied before everything else. This is exact because a lease never
    ends without the removal of its item: an item of the file that has an entry in `leases` was leased when the ready
    items were cleared, and so was not cleared.
    """

    __slots__ = (
        "added", "clear_leased", "clear_ready", "clear_scheduled", "gone", "held_bytes", "is_plain",
        "journal_bytes", "last_seq", "leased_stripes", "leases", "left", "left_bytes", "lost", "record",
        "removed", "removed_upto", "requests", "rows", "scheduled", "unscheduled",
    )  # fmt: skip

    def __init__(self, record: int, last_seq: int) -> None:
        self.record = record
        """The number of the last journal record that the Delta contains."""
        self.last_seq = last_seq
        self.journal_bytes = 0
        self.held_bytes = 0
        """The bytes of the records that added items since the Delta last held none: an upper bound of what its items
        take. Other records add only keys, which `memory_bytes` counts.
        """
        self.is_plain = True
        """Whether each batch so far had only items, leases and removals one by one. Then there are no rows, no items
        left in the journal, no stripes and no scheduled items, and these fields need not be looked at.
        """
        self.added: dict[int, Item] = {}
        self.leases: dict[int, tuple[int, int, Hold]] = {}
        """Attempts, deadline and hold of each leased item, by sequence."""
        self.removed: dict[int, None] = {}
        """Removed items of the file and of `rows`, in the order of removal, which is nearly the order of the file."""
        self.removed_upto = 0
        """No removed item has a higher sequence."""
        self.left_bytes = 0
        # The fields above are those of a plain batch. Together they take few lines of the processor's cache.
        self.clear_ready = False
        self.clear_leased = False
        self.clear_scheduled = False
        self.rows: list[Rows | Run] = []
        """Items added in columnar form. `gone` and `removed` name those that were removed since."""
        self.gone: dict[int, bytearray] = {}
        """By the first sequence of such items: a 1 for each item that was removed with a stripe."""
        self.left: dict[int, Left] = {}
        """Further items, which are left in the journal. `left_bytes` is their size."""
        self.leased_stripes: dict[int, LeasedStripe] = {}
        """Further leases, by the first sequence of their stripe."""
        self.scheduled: dict[int, Item] = {}
        self.unscheduled: dict[int, None] = {}
        """Unscheduled items of the file."""
        self.lost: dict[int, tuple[int, int]] = {}
        """The birth of the item and the time until which the lost lease is remembered, by sequence."""
        self.requests: dict[str, int] = {}

    @property
    def is_nothing(self) -> bool:
        """Whether the batches change nothing in the file, all in all."""
        changes = (self.added, self.left, self.rows, self.removed, self.leases, self.scheduled, self.unscheduled)
        return not (
            any(changes) or self.lost or self.requests or self.clear_ready or self.clear_leased or self.clear_scheduled
        )

    @property
    def memory_bytes(self) -> int:
        """Roughly an upper bound of the memory of the items and of the keys that an apply looks for."""
        keys = len(self.removed) + len(self.leases) + len(self.unscheduled) + len(self.lost) + len(self.requests)
        keys += len(self.left)
        return self.held_bytes + keys * KEY_BYTES

    def absorb(self, batch: Batch, left: Left | None = None) -> None:
        """Adds a batch, which takes a small fraction of a microsecond per item. Most batches have one change. With
        `left`, the added items are left in the journal.
        """
        others = batch.others
        if others is not None or left is not None:
            self.is_plain = False
        if others is not None and (others.clear_ready or others.clear_leased or others.clear_scheduled):
            _clear(self, others)
        add = batch.add
        if left is not None:
            _leave(self, batch, left)
        elif add is not None:
            if len(add) == 1:
                item: Any = add[0]  # Any: otherwise compiled code would unbox and box the integer
                self.added[item.seq] = item
            else:
                self.added.update(zip(map(_seq_of, add), add, strict=True))
        if others is not None:
            self._enter(others, left is not None)
        if batch.lease is not None:
            self._lease_one(batch.lease_seq, batch.lease)
        elif batch.lease_seqs:
            self._lease(batch, batch.lease_seqs)
        if others is not None and others.unschedule:
            _move_out(others.unschedule, self.scheduled, self.unscheduled)
        remove = batch.remove
        if remove:
            if len(remove) == 1:
                self._remove(remove)
            else:
                self.removed_upto = max(self.removed_upto, max(remove))
                self._end_leases(remove)
                if self.left:
                    remove = list(filterfalse(self._drop_left, remove))
                _move_out(remove, self.added, self.removed)
            if not self.is_plain and self.rows:
                self._drop_spent_rows()
        if others is not None:
            self._leave_with(others)
        if batch.last_seq > self.last_seq:
            self.last_seq = batch.last_seq

    def _enter(self, others: Others, are_left: bool) -> None:
        """Adds the items and leases of `others`. `are_left` says that the items are left in the journal."""
        if others.rows is not None and not are_left:
            self.rows += others.rows
        if others.schedule is not None:
            self.scheduled.update(zip(map(_seq_of, others.schedule), others.schedule, strict=True))
        for leased in others.leased_stripes or ():
            self.leased_stripes[leased.stripe.first_seq] = leased

    def _leave_with(self, others: Others) -> None:
        """Adds the removals of `others`, and what is remembered of items that left."""
        if others.removed_stripes is not None:
            for stripe in others.removed_stripes:
                _remove_stripe(self, stripe)
            self._drop_spent_rows()
        if others.lost_seqs:
            lost = zip(others.lost_births or (), repeat(others.lost_until, len(others.lost_seqs)), strict=True)
            self.lost.update(zip(others.lost_seqs, lost, strict=True))
        if others.request_ids:
            self.requests.update(zip(others.request_ids, others.request_until or (), strict=True))

    def _lease_one(self, seq: Any, lease: Any) -> None:
        if not self.is_plain and self.leased_stripes:
            self._end_leases([seq])  # the new lease replaces that of a stripe
        self.leases[seq] = lease

    def _lease(self, batch: Batch, seqs: list[int]) -> None:
        if not self.is_plain and self.leased_stripes:
            self._end_leases(seqs)  # the new leases replace theirs
        keys: list[Any] = seqs
        attempts: list[Any] | None = batch.lease_attempts
        deadlines: list[Any] | None = batch.lease_deadlines
        assert attempts is not None and deadlines is not None
        if len(keys) == 1:
            hold = batch.holds[0] if batch.holds else NOBODY
            self.leases[keys[0]] = (attempts[0], deadlines[0], hold)
        else:
            self.leases.update(zip(seqs, zip(attempts, deadlines, holds_of(batch), strict=False), strict=True))

    def _remove(self, only: list[Any]) -> None:
        seq = only[0]
        number: int = seq
        if number > self.removed_upto:
            self.removed_upto = number
        if seq in self.added:
            del self.added[seq]
        elif not self._drop_left(seq):
            self.removed[seq] = None
        if seq in self.leases:
            del self.leases[seq]
        elif self.leased_stripes:
            self._end_leases([seq])

    def _end_leases(self, seqs: Sequence[int]) -> None:
        """Drops the leases of these items. Stripes that may have some of them become single leases first."""
        if self.leased_stripes:
            low, high = min(seqs), max(seqs)
            for leased in list(self.leased_stripes.values()):
                if leased.stripe.first_seq <= high and low <= leased.stripe.seqs[-1]:
                    # In this order, because `state_after` may run meanwhile, in another thread.
                    self.leases.update(leased.leases())
                    del self.leased_stripes[leased.stripe.first_seq]
        if self.leases:
            _consume(map(self.leases.pop, seqs, repeat(None)))

    def all_leases(self) -> Iterator[tuple[int, tuple[int, int, Hold]]]:
        """The sequence of each leased item with its attempts, deadline and hold."""
        return chain(self.leases.items(), *[leased.leases() for leased in self.leased_stripes.values()])

    def _drop_left(self, seq: int) -> bool:
        """Drops an item that is left in the journal. False if this is none."""
        left = self.left.pop(seq, None)
        if left is None:
            return False
        self.left_bytes -= left.item_bytes
        return True

    def _drop_spent_rows(self) -> None:
        """Forgets rows that were removed entirely, oldest first."""
        while self.rows and _is_spent(self, self.rows[0]):
            self.gone.pop(self.rows[0].first_seq, None)
            del self.rows[0]

    def cancel(self, later: Sequence[Delta]) -> None:
        """Forgets items that later Deltas, oldest first, remove from the file: here and there, and their leases too."""
        for at, remover in enumerate(later):
            seqs = [seq for items in (self.left, self.added) for seq in items.keys() & remover.removed.keys()]
            if not seqs:
                continue
            for seq in seqs:
                if not self._drop_left(seq):
                    del self.added[seq]
                del remover.removed[seq]
            for delta in (self, *later[:at]):
                delta._end_leases(seqs)

    def gone_from(self, rows: Rows | Run) -> bytes | bytearray | None:
        """A 1 for each of these items that was removed. None if none was."""
        gone = self.gone.get(rows.first_seq)
        if self.removed and self.removed_upto >= rows.first_seq:
            places = range(rows.first_seq, rows.last_seq + 1)
            removed = bytes(map(self.removed.__contains__, places))
            return removed if gone is None else bytes(map(max, removed, gone))
        return gone

    def state_after(self, seq: int, state: str) -> str:
        """The state of a sequence after this Delta, given its state before; "" when it is gone."""
        if state == "scheduled":
            if seq in self.scheduled:
                return state
            return "" if self.clear_scheduled or seq in self.unscheduled else state
        if seq in self.removed:
            return ""
        rows = self._rows_with(seq)
        if rows is not None:
            gone = self.gone.get(rows.first_seq)
            if gone is not None and gone[seq - rows.first_seq]:
                return ""
        if seq in self.leases or any([seq in leased.stripe.seqs for leased in list(self.leased_stripes.values())]):
            return "leased"
        if seq in self.added or seq in self.left or rows is not None:
            return "ready"
        if self.clear_leased if state == "leased" else self.clear_ready:
            return ""
        return state

    def removed_from_file(self) -> Iterable[int]:
        """The removed items of the file, without those of `rows`."""
        came_and_went: set[int] = set()
        for rows in self.rows:
            if rows.first_seq > self.removed_upto:
                break
            came_and_went |= self.removed.keys() & set(range(rows.first_seq, rows.last_seq + 1))
        return filterfalse(came_and_went.__contains__, self.removed) if came_and_went else self.removed

    def waiting(self, after: int, before: int) -> Iterator[tuple[int, Item | Rows | Run | Left]]:
        """The added items with after < seq < before that are not leased, ascending, each with what has its contents."""
        rows = (
            (seq, one)
            for one in self.rows
            if one.last_seq > after and one.first_seq < before
            for seq in _left_of(one, self.gone_from(one))
        )
        leased = dict(self.all_leases()) if self.leased_stripes else self.leases
        others: Iterable[tuple[int, Any]] = merge(self.added.items(), self.left.items(), rows, key=itemgetter(0))
        for seq, contents in others:
            if seq >= before:
                return
            if seq > after and seq not in leased:
                yield seq, contents

    def _rows_with(self, seq: int) -> Rows | Run | None:
        rows = self.rows  # another thread may put an empty list there meanwhile
        at = bisect_right(rows, seq, key=_first_seq_of) - 1
        return rows[at] if at >= 0 and seq <= rows[at].last_seq else None

    def drop_contents(self) -> None:
        """Frees the contents after an apply, except what `state_after` needs."""
        applied: tuple[dict[int, Any], ...] = (self.added, self.scheduled)
        rows = list(self.rows)  # `state_after` may look at the list itself meanwhile, in another thread
        if self.clear_ready or self.clear_leased or self.clear_scheduled:
            self.added = dict.fromkeys(self.added, _NOTHING)
            self.scheduled = dict.fromkeys(self.scheduled, _NOTHING)
            self.rows = [Rows(one.first_seq, one.count, 0, 0, b"") for one in rows]
        else:
            applied += (self.left,)
            self.added, self.scheduled, self.rows, self.left = {}, {}, [], {}
        self.left_bytes = 0
        self.lost, self.requests = {}, {}
        for items in applied:
            _empty(items)
        freed = 0
        while rows:
            freed += rows.pop().count
            if freed >= FREED_AT_ONCE_MAX:
                freed = 0
                time.sleep(0)

    def drop_keys(self) -> None:
        """Frees the rest, when nobody calls `state_after` any more."""
        self.gone, self.leased_stripes = {}, {}
        for keys in (self.removed, self.leases, self.unscheduled):
            _empty(keys)


def _remove_stripe(delta: Delta, stripe: Stripe) -> None:
    leased = delta.leased_stripes.pop(stripe.first_seq, None)
    if leased is None and delta.leases:
        _consume(map(delta.leases.pop, stripe.seqs, repeat(None)))
    seqs = stripe.seqs
    delta.removed_upto = max(delta.removed_upto, seqs[-1])
    rows = delta._rows_with(stripe.first_seq)
    if rows is None:
        # They are in the file, or left in the journal.
        delta.removed.update(dict.fromkeys(filterfalse(delta._drop_left, seqs) if delta.left else seqs))
        return
    gone = delta.gone.get(rows.first_seq)
    if gone is None:
        gone = delta.gone[rows.first_seq] = bytearray(rows.count)
    at = stripe.first_seq - rows.first_seq
    gone[at : at + stripe.count * stripe.step : stripe.step] = b"\1" * stripe.count


def _is_spent(delta: Delta, rows: Rows | Run) -> bool:
    removed, first = delta.removed, rows.first_seq
    gone = delta.gone.get(first)
    if gone is None:
        if rows.last_seq not in removed or not all(map(removed.__contains__, range(first, rows.last_seq + 1))):
            return False
        _consume(map(removed.pop, range(first, rows.last_seq + 1)))
        return True
    at = gone.find(0)
    while at >= 0 and first + at in removed:
        del removed[first + at]
        gone[at] = 1
        at = gone.find(0, at)
    return at < 0


def _clear(delta: Delta, others: Others) -> None:
    delta.leases = dict(delta.all_leases())
    delta.leased_stripes = {}
    if others.clear_ready:
        delta.clear_ready = True
        leases = delta.leases
        delta.added = {seq: item for seq, item in delta.added.items() if seq in leases}
        _consume(map(delta._drop_left, [seq for seq in delta.left if seq not in leases]))
        _clear_rows(delta)
    if others.clear_leased:
        delta.clear_leased = True
        delta.removed_upto = max(delta.removed_upto, max(delta.leases, default=0))
        _move_out(list(filterfalse(delta._drop_left, delta.leases)), delta.added, delta.removed)
        delta.leases = {}
    if others.clear_scheduled:
        delta.clear_scheduled = True
        delta.scheduled = {}


def _clear_rows(delta: Delta) -> None:
    kept = []
    for rows in delta.rows:
        seqs = range(rows.first_seq, rows.last_seq + 1)
        if not delta.leases.keys().isdisjoint(seqs):
            delta.removed.update(dict.fromkeys(filterfalse(delta.leases.__contains__, seqs)))
            delta.removed_upto = max(delta.removed_upto, rows.last_seq)
            kept.append(rows)
    delta.rows = kept


def _leave(delta: Delta, batch: Batch, left: Left) -> None:
    """Notes added items that are left in the journal."""
    seqs = [item.seq for item in batch.add or ()]
    for rows in others_of(batch).rows or ():
        seqs += range(rows.first_seq, rows.last_seq + 1)
    seqs.sort()  # columns of a batch may come before its items; `waiting` needs the order
    delta.left.update(zip(seqs, repeat(left)))
    delta.left_bytes += len(seqs) * left.item_bytes


def _left_of(rows: Rows | Run, gone: bytes | bytearray | None) -> Iterable[int]:
    """The sequences of the items that are not gone."""
    seqs = range(rows.first_seq, rows.last_seq + 1)
    return seqs if gone is None else compress(seqs, map(not_, gone))


def _empty(entries: dict[int, Any]) -> None:
    """Frees entries in steps, so that other threads can run. Freeing a million at once would hold them up."""
    for done in range(1, len(entries) + 1):
        entries.popitem()
        if done % FREED_AT_ONCE_MAX == 0:
            time.sleep(0)  # compiled code does not give up the interpreter's lock by itself


_NOTHING = Item(seq=0, created_at=0, expire_deadline=0)


def _move_out(seqs: Sequence[int], inside: dict[int, Item], outside: dict[int, None]) -> None:
    """Drops items that this Delta added, and notes the others as items to remove from the file."""
    if inside:
        outside.update(dict.fromkeys(filterfalse(inside.__contains__, seqs)))
        _consume(map(inside.pop, seqs, repeat(None)))
    else:
        outside.update(dict.fromkeys(seqs))
