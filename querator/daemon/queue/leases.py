"""The leases of one partition: which items are leased, by whom, and when each lease ends."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec

from querator import ids
from querator.daemon.queue import distribution, lifecycle
from querator.daemon.queue.agenda import NEVER, Agenda
from querator.daemon.queue.hands import Hand
from querator.daemon.store import Batch, Leased, Run, joined, spread_lease
from querator.items import ZERO_TIME_US, Hold, Item, Lease
from querator.limits import ATTEMPTS_MAX, LEASE_ENDS_IDS_MIN

# Deadlines that no client can ask for. They are stored for leases that their holder has given up, and say what becomes
# of the item if this process ends before it has moved the item.
TO_DIE_US: Final = ZERO_TIME_US + 1
TO_MOVE_US: Final = ZERO_TIME_US + 2

_MANY_IDS: Final = 16
"""From this number on, ids are encoded together, because those of one produce have consecutive sequences."""

_seq_of = attrgetter("seq")
_hold_of = attrgetter("hold")


def failed(lease: Lease, reason: str, ended_at: int) -> Lease:
    """The lease after its holder gave it up: the history of its item has one more attempt."""
    hold = lease.hold
    if reason or not hold.ended_at:
        hold = Hold(hold.client_id, hold.leased_at, ended_at, reason, hold.token_name)
    history = lifecycle.history_with_attempt(lease.item, lease.attempts, hold)
    return Lease(lease.id, msgspec.structs.replace(lease.item, history=history), lease.attempts, lease.deadline, hold)


def write_leases(batch: Batch, leases: Sequence[Lease], deadline: int | None = None) -> None:
    """Adds the leases to the batch, with their own deadlines or all with the given one."""
    seqs, attempts = [lease.item.seq for lease in leases], [lease.attempts for lease in leases]
    deadlines = [lease.deadline if deadline is None else deadline for lease in leases]
    held = [(hold, len(list(some))) for hold, some in groupby(leases, _hold_of)]
    _write(batch, seqs, attempts, deadlines, [hold for hold, _ in held], [count for _, count in held])


def _write(
    batch: Batch,
    seqs: list[int],
    attempts: list[int],
    deadlines: list[int],
    holds: list[Hold],
    hold_counts: list[int],
) -> None:
    """Adds leases to the batch, which may keep these lists."""
    spread_lease(batch)
    if not batch.lease_seqs:
        batch.lease_seqs, batch.lease_attempts, batch.lease_deadlines = seqs, attempts, deadlines
        batch.holds, batch.hold_counts = holds, hold_counts
        return
    batch.lease_seqs = joined(batch.lease_seqs, seqs)
    batch.lease_attempts = joined(batch.lease_attempts, attempts)
    batch.lease_deadlines = joined(batch.lease_deadlines, deadlines)
    batch.holds = joined(batch.holds, holds)
    batch.hold_counts = joined(batch.hold_counts, hold_counts)


class Leases:
    """Keeps the leases in memory and adds every change to the batch. Planners take leases out of `by_id`."""

    __slots__ = ("_agenda", "_ends", "_ids", "_prefix", "by_id", "ends_ids", "hands", "in_hands")

    def __init__(self, prefix: int, agenda: Agenda | None = None) -> None:
        self._agenda = agenda or Agenda()
        self._prefix = prefix
        self._ids = ids.Ids(prefix)
        self.by_id: dict[str, Lease] = {}
        """The leases that are not in hands."""
        self.hands: dict[str, Hand] = {}
        """By the first of their ids."""
        self.in_hands = 0
        """The number of leases in hands."""
        self._ends: list[tuple[int, int, list[str]]] = []
        """A heap of deadlines and the ids that had them. An id whose lease has ended or was extended is skipped."""
        self.ends_ids = 0
        """The number of ids in the heap."""

    def load(self, leased: Sequence[Leased]) -> None:
        """Takes over the leases that storage has."""
        self.by_id = {lease.id: lease for lease in self._with_ids(leased)}
        self._rebuild_ends()

    @property
    def count(self) -> int:
        return len(self.by_id) + self.in_hands

    def holds(self, text: str) -> bool:
        """Whether the item with this id is leased here."""
        return text in self.by_id or (bool(self.hands) and (text in self.hands or self._hand_with(text) is not None))

    def time_left(self, now_us: int) -> int:
        """The sum of the times that are left until the leases end."""
        left = sum([lease.deadline - now_us for lease in self.by_id.values()])
        return left + sum([(hand.deadline - now_us) * len(hand) for hand in self.hands.values()])

    def _with_ids(self, leased: Sequence[Leased]) -> list[Lease]:
        texts = ids.encode_many(self._prefix, [one.item.seq for one in leased])
        return [Lease(text, *one) for text, one in zip(texts, leased, strict=True)]

    def deal(
        self, batch: Batch, items: Sequence[Item], sizes: Sequence[int], holds: list[Hold], deadline: int
    ) -> list[list[Lease]]:
        """Leases the items until the deadline and deals them to the holds, at most `sizes` each."""
        if len(items) == 1:
            return [[self.deal_one(batch, items[0], holds[0], deadline)]]
        if len(items) < _MANY_IDS:
            texts = [self._ids.encode(item.seq) for item in items]
        else:
            texts = ids.encode_many(self._prefix, list(map(_seq_of, items)))
        by_id = self.by_id
        # Any: compiled code would unbox and box an integer of known type for each item.
        same_deadline: Any = deadline
        seqs: list[Any] = []
        attempts: list[Any] = []
        counts: list[int] = []
        hands: list[list[Lease]] = []
        for own_texts, own, hold in zip(
            distribution.deal(texts, sizes), distribution.deal(items, sizes), holds, strict=True
        ):
            hand: list[Lease] = []
            for at in range(len(own)):
                item, text = own[at], own_texts[at]
                before: int = item.attempts
                count: Any = before + 1 if before < ATTEMPTS_MAX else before
                lease = by_id[text] = Lease(text, item, count, same_deadline, hold)
                hand.append(lease)
                seqs.append(item.seq)
                attempts.append(count)
            hands.append(hand)
            counts.append(len(hand))
        self._expect_end(deadline, items[0].seq, texts)
        _write(batch, seqs, attempts, [same_deadline] * len(seqs), holds, counts)
        return hands

    def deal_one(self, batch: Batch, item: Item, hold: Hold, deadline: int) -> Lease:
        """`deal` for one item and one hold, which is the most common case."""
        # Any: compiled code would turn the integers into numbers and back.
        seq: Any = item.seq
        same_deadline: Any = deadline
        text = self._ids.encode(seq)
        before: int = item.attempts
        attempts: Any = before + 1 if before < ATTEMPTS_MAX else before
        lease = self.by_id[text] = Lease(text, item, attempts, same_deadline, hold)
        self._expect_end(deadline, seq, [text])
        if batch.lease is None and batch.lease_seqs is None:
            batch.lease_seq, batch.lease = seq, (attempts, same_deadline, hold)
        else:
            _write(batch, [seq], [attempts], [same_deadline], [hold], [1])
        return lease

    # -- hands

    def deal_runs(
        self, batch: Batch, pieces: list[tuple[Run, range]], sizes: Sequence[int], holds: list[Hold], deadline: int
    ) -> list[Hand | None]:
        """`deal` for items of runs at these places. None for a request that gets nothing."""
        texts: list[str] = []
        for run, places in pieces:
            texts += ids.encode_run(self._prefix, run.first_seq + places.start, len(places))
        hands: list[Hand | None] = []
        for dealt, hold in zip(distribution.deal_places(len(texts), sizes), holds, strict=True):
            if not dealt:
                hands.append(None)
                continue
            own_texts: list[str] = []
            own: list[tuple[Run, range]] = []
            for one in dealt:
                own_texts += texts[one.start : one.stop : one.step]
                own += _places_in(pieces, one)
            hand = Hand(own_texts, own, deadline, hold)
            self.hands[own_texts[0]] = hand
            self.in_hands += len(own_texts)
            self._expect_end(deadline, hand.first_seq, own_texts)
            hand.write(batch)
            hands.append(hand)
        return hands

    def take_hand(self, wanted: Sequence[str]) -> Hand | None:
        """Removes and returns the hand that has exactly these ids, in this order."""
        hand = self.hands.get(wanted[0])
        if hand is None or hand.ids != wanted:
            return None
        del self.hands[wanted[0]]
        self.in_hands -= len(wanted)
        return hand

    def separate(self, wanted: Sequence[str]) -> None:
        """Makes single leases of the hands that have one of these ids."""
        for text in wanted:
            if not self.hands:
                return
            if text not in self.by_id and (hand := self.hands.get(text) or self._hand_with(text)) is not None:
                self._separate(hand)

    def separate_all(self) -> None:
        for hand in list(self.hands.values()):
            self._separate(hand)

    def _separate(self, hand: Hand) -> None:
        del self.hands[hand.ids[0]]
        self.in_hands -= len(hand)
        self.by_id.update(zip(hand.ids, hand.leases(), strict=True))

    def _hand_with(self, text: str) -> Hand | None:
        try:
            decoded = ids.decode(text)
        except ValueError:
            return None
        if not ids.is_own(self._prefix, text, decoded):
            return None
        return next((hand for hand in self.hands.values() if hand.has(decoded.seq)), None)

    # -- single leases

    def add(self, batch: Batch, leased: Sequence[Leased]) -> None:
        """Adds leases of items that are new here."""
        leases = self._with_ids(leased)
        for lease in leases:
            self._hold(lease)
        write_leases(batch, leases)

    def put_back(self, batch: Batch, lease: Lease) -> None:
        """Returns a lease that a planner took out: its item could not leave."""
        self._hold(lease)
        write_leases(batch, [lease])

    def _hold(self, lease: Lease) -> None:
        self.by_id[lease.id] = lease
        self._expect_end(lease.deadline, lease.item.seq, [lease.id])

    def extend(self, batch: Batch, leases: Sequence[Lease], deadline: int) -> None:
        for lease in leases:
            lease.deadline = deadline
        self._expect_end(deadline, leases[0].item.seq, [lease.id for lease in leases])
        write_leases(batch, leases)

    def take(self, wanted: Sequence[str]) -> list[Lease]:
        """Removes and returns the leases with these ids. Other ids are skipped."""
        self.separate(wanted)
        return [lease for text in wanted if (lease := self.by_id.pop(text, None)) is not None]

    def take_ended(self, now_us: int, leases_max: int) -> list[Lease]:
        """Takes out about `leases_max` leases past their deadline, in the order in which their items come back."""
        ended: list[Lease] = []
        while self._ends and self._ends[0][0] < now_us and len(ended) < leases_max:
            deadline, _, texts = heapq.heappop(self._ends)
            self.ends_ids -= len(texts)
            if texts[0] in self.hands:
                self._separate(self.hands[texts[0]])
            for text in texts:
                lease = self.by_id.get(text)
                if lease is not None and lease.deadline == deadline:
                    del self.by_id[text]
                    ended.append(lease)
        ended.sort(key=lambda lease: (lease.deadline, lease.item.seq))
        return ended

    def clear(self) -> None:
        self.by_id.clear()
        self.hands.clear()
        self.in_hands = 0
        self._ends.clear()
        self.ends_ids = 0

    # -- when leases end

    def next_end(self) -> int:
        """The first deadline; the lease that had it may be gone."""
        return self._ends[0][0] if self._ends else NEVER

    def _expect_end(self, deadline: int, seq: int, texts: list[str]) -> None:
        ends = self._ends
        if ends and self._has_ended(ends[0]):
            # Taking its place keeps the heap of a queue with few leases small, so that it stays in the processor's
            # cache, and the ids of completed leases do not take memory in each of many queues.
            heapq.heapreplace(ends, (deadline, seq, texts))
            self.ends_ids -= 1
        else:
            heapq.heappush(ends, (deadline, seq, texts))
        if deadline < self._agenda.event_us:
            self._agenda.event_us = deadline
        self.ends_ids += len(texts)
        if self.ends_ids > 2 * (len(self.by_id) + self.in_hands) + LEASE_ENDS_IDS_MIN:
            # Most leases are completed long before their deadline. Their ids must not fill the heap until then.
            self._rebuild_ends()

    def _has_ended(self, end: tuple[int, int, list[str]]) -> bool:
        """Whether an entry of the heap is that of a single lease which has ended or was extended. May be False for it,
        which costs memory only.
        """
        deadline, _, texts = end
        if len(texts) > 1 or self.in_hands:
            return False
        lease = self.by_id.get(texts[0])
        return lease is None or lease.deadline != deadline

    def _rebuild_ends(self) -> None:
        by_deadline: dict[int, list[str]] = {}
        for lease in self.by_id.values():
            by_deadline.setdefault(lease.deadline, []).append(lease.id)
        self._ends = [(deadline, 0, texts) for deadline, texts in by_deadline.items()]
        self._ends += [(hand.deadline, hand.first_seq, hand.ids) for hand in self.hands.values()]
        heapq.heapify(self._ends)
        self.ends_ids = self.count
        self._agenda.expect(self.next_end())


def _places_in(pieces: list[tuple[Run, range]], dealt: range) -> list[tuple[Run, range]]:
    """Which places of the runs are meant, if `dealt` counts through all of these pieces."""
    if len(pieces) == 1:
        run, places = pieces[0]
        return [(run, places[dealt.start : dealt.stop : dealt.step])]
    found: list[tuple[Run, range]] = []
    begin = 0
    for run, places in pieces:
        end = begin + len(places)
        start = dealt.start
        if start < begin:
            start += (begin - start + dealt.step - 1) // dealt.step * dealt.step
        own = places[max(start - begin, 0) : max(min(dealt.stop, end) - begin, 0) : dealt.step]
        if start < end and own:
            found.append((run, own))
        begin = end
    return found
