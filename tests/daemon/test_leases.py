"""The leases of a partition: what memory and the batch have, and when leases end."""

from __future__ import annotations

from querator import ids
from querator.daemon.queue import distribution
from querator.daemon.queue.agenda import NEVER
from querator.daemon.queue.hands import Hand
from querator.daemon.queue.leases import TO_DIE_US, Leases, write_leases
from querator.daemon.store import Batch, Leased, Run, others_of
from querator.items import Hold, Item
from querator.limits import ATTEMPTS_MAX, LEASE_ENDS_IDS_MIN

PREFIX = 7
ANN, BOB = Hold("ann", 1), Hold("bob", 1)


def items(first: int, last: int, attempts: int = 0) -> list[Item]:
    return [Item(seq, 1, 9, b"x", attempts=attempts) for seq in range(first, last + 1)]


def ids_of(first: int, last: int) -> list[str]:
    return ids.encode_many(PREFIX, list(range(first, last + 1)))


def test_each_hand_gets_its_own_hold_in_memory_and_in_the_batch():
    leases, batch = Leases(PREFIX), Batch()
    hands = leases.deal(batch, items(1, 3), [2, 2], [ANN, BOB], 50)
    assert [[lease.item.seq for lease in hand] for hand in hands] == [[1, 3], [2]]
    assert [leases.by_id[text].hold for text in ids_of(1, 3)] == [ANN, BOB, ANN]
    assert (batch.lease_seqs, batch.holds, batch.hold_counts) == ([1, 3, 2], [ANN, BOB], [2, 1])


def test_leases_that_are_dealt_one_after_the_other_are_all_in_the_batch():
    leases, batch = Leases(PREFIX), Batch()
    leases.deal(batch, items(1, 1), [1], [ANN], 50)
    assert (batch.lease_seq, batch.lease, batch.lease_seqs) == (1, (1, 50, ANN), None)
    leases.deal(batch, items(2, 2), [1], [BOB], 60)
    leases.deal(batch, items(3, 3), [1], [BOB], 70)
    assert (batch.lease, batch.lease_seqs, batch.lease_attempts) == (None, [1, 2, 3], [1, 1, 1])
    assert (batch.lease_deadlines, batch.holds, batch.hold_counts) == ([50, 60, 70], [ANN, BOB, BOB], [1, 1, 1])


def test_a_lease_counts_as_an_attempt_up_to_the_limit():
    leases = Leases(PREFIX)
    ((lease,),) = leases.deal(Batch(), items(1, 1, attempts=4), [1], [ANN], 50)
    ((last,),) = leases.deal(Batch(), items(2, 2, attempts=ATTEMPTS_MAX), [1], [ANN], 50)
    assert (lease.attempts, last.attempts) == (5, ATTEMPTS_MAX)


def test_leases_end_after_their_deadline_in_the_order_of_deadlines():
    leases = Leases(PREFIX)
    leases.deal(Batch(), items(1, 2), [2], [ANN], 60)
    leases.deal(Batch(), items(3, 3), [1], [ANN], 50)
    assert leases.next_end() == 50
    assert leases.take_ended(50, 10) == []
    assert [lease.item.seq for lease in leases.take_ended(61, 10)] == [3, 1, 2]
    assert (leases.by_id, leases.next_end()) == ({}, NEVER)


def test_an_extended_or_completed_lease_does_not_end_at_its_first_deadline():
    leases, batch = Leases(PREFIX), Batch()
    ((extended, _),) = leases.deal(Batch(), items(1, 2), [2], [ANN], 50)
    leases.extend(batch, [extended], 80)
    assert [lease.item.seq for lease in leases.take(ids_of(2, 3))] == [2]
    assert leases.take_ended(51, 10) == []
    assert (batch.lease_seqs, batch.lease_deadlines) == ([1], [80])
    assert leases.take_ended(81, 10) == [extended]


def test_ids_of_completed_leases_do_not_fill_memory():
    leases = Leases(PREFIX)
    for first in range(1, 3 * LEASE_ENDS_IDS_MIN, 100):
        leases.deal(Batch(), items(first, first + 99), [100], [ANN], 50)
        leases.take(ids_of(first, first + 99))
    assert leases.ends_ids <= LEASE_ENDS_IDS_MIN + 100


def test_the_end_of_a_single_lease_that_was_completed_makes_room_for_the_next():
    leases = Leases(PREFIX)
    leases.deal(Batch(), items(1, 1), [1], [ANN], 50)
    ((extended,),) = leases.deal(Batch(), items(2, 2), [1], [ANN], 51)
    leases.take(ids_of(1, 1))
    leases.extend(Batch(), [extended], 900)
    for seq in range(3, 100):
        leases.deal(Batch(), items(seq, seq), [1], [ANN], 50 + seq)
        leases.take(ids_of(seq, seq))
    assert leases.ends_ids == 2
    ((held,),) = leases.deal(Batch(), items(100, 100), [1], [ANN], 70)
    assert leases.take_ended(71, 10) == [held]
    assert leases.take_ended(901, 10) == [extended]


def test_ends_of_single_leases_that_were_completed_take_one_place():
    leases = Leases(PREFIX)
    for seq in range(1, 100):
        leases.deal(Batch(), items(seq, seq), [1], [ANN], 50 + seq)
        leases.take(ids_of(seq, seq))
    assert leases.ends_ids == 1


def test_leases_that_storage_has_are_loaded_with_their_ends():
    leases = Leases(PREFIX)
    leases.load([Leased(items(1, 1)[0], 3, 50, BOB)])
    (lease,) = leases.take_ended(51, 10)
    assert (lease.id, lease.attempts, lease.hold) == (*ids_of(1, 1), 3, BOB)


def test_a_lease_that_is_put_back_is_written_again():
    leases, batch = Leases(PREFIX), Batch()
    leases.deal(Batch(), items(1, 1), [1], [ANN], 50)
    (lease,) = leases.take(ids_of(1, 1))
    write_leases(batch, [lease], TO_DIE_US)
    leases.put_back(batch, lease)
    assert leases.by_id == {lease.id: lease}
    assert (batch.lease_deadlines, batch.hold_counts) == ([TO_DIE_US, 50], [1, 1])


def dealt_runs(sizes: list[int]) -> tuple[Leases, Batch, list[Hand | None]]:
    leases, batch = Leases(PREFIX), Batch()
    pieces = [(Run(1, 5, 10, 20, [b"a"] * 5), range(2, 5)), (Run(8, 4, 10, 20, [b"b"] * 4), range(4))]
    return leases, batch, leases.deal_runs(batch, pieces, sizes, [ANN, BOB], 50)


def test_items_of_runs_are_dealt_like_single_ones():
    leases, batch, hands = dealt_runs([2, 9])
    seqs = [3, 4, 5, 8, 9, 10, 11]
    dealt = distribution.deal(seqs, [2, 9])
    assert [hand.ids for hand in hands] == [ids.encode_many(PREFIX, own) for own in dealt]
    assert [[lease.item.seq for lease in hand.leases()] for hand in hands] == dealt
    in_batch = [(leased.hold, seq) for leased in others_of(batch).leased_stripes for seq in leased.stripe.seqs]
    assert in_batch == [(hold, seq) for hold, own in zip([ANN, BOB], dealt, strict=True) for seq in own]
    assert (leases.count, leases.by_id, leases.next_end(), leases.time_left(40)) == (7, {}, 50, 70)


def test_a_hand_is_completed_as_a_whole():
    leases, _, (ann, bob) = dealt_runs([2, 9])
    assert leases.take_hand(ann.ids[:1]) is None and leases.take_hand(ann.ids[::-1]) is None
    assert leases.take_hand(bob.ids) is bob
    assert (leases.count, leases.holds(bob.ids[0]), leases.holds(ann.ids[1])) == (2, False, True)
    batch = Batch()
    bob.remove(batch)
    assert [seq for stripe in others_of(batch).removed_stripes for seq in stripe.seqs] == [4, 8, 9, 10, 11]


def test_a_hand_becomes_single_leases_when_one_of_them_is_wanted():
    leases, _, (ann, bob) = dealt_runs([2, 9])
    assert leases.take([ann.ids[1]]) == [ann.leases()[1]]
    assert (list(leases.by_id), list(leases.hands), leases.count) == (ann.ids[:1], bob.ids[:1], 6)
    assert [lease.item.seq for lease in leases.take_ended(51, 9)] == [3, 4, 8, 9, 10, 11]
    assert (leases.count, leases.hands) == (0, {})


def test_an_id_of_nobody_leaves_hands_together():
    leases, _, _ = dealt_runs([2, 9])
    for text in ("no id", ids.encode(PREFIX, 7), ids.encode(PREFIX + 1, 3)):
        assert not leases.holds(text)
        assert leases.take([text]) == []
    assert len(leases.hands) == 2
