"""The net effect of batches: changes that cancel each other leave nothing, and changes to the file remain."""

from __future__ import annotations

import time

import pytest

from querator.daemon.store.batches import Batch
from querator.daemon.store.delta import Delta
from querator.daemon.store.runs import LeasedStripe, Rows, Run, Stripe
from querator.items import NOBODY, Hold
from tests.store.store_making import batch_of, item


def delta_of(*batches: Batch) -> Delta:
    delta = Delta(record=0, last_seq=0)
    for batch in batches:
        delta.absorb(batch)
    return delta


def rows(first_seq: int, count: int) -> Rows:
    return Rows(first_seq, count, created_at=1, expire_deadline=2, columns=b"columns")


def lease(*seqs: int, deadline: int = 100) -> Batch:
    return batch_of(lease_seqs=[*seqs], lease_attempts=[1] * len(seqs), lease_deadlines=[deadline] * len(seqs))


class TestItems:
    def test_an_item_that_came_and_went_leaves_nothing(self) -> None:
        delta = delta_of(batch_of(add=[item(1)]), lease(1), batch_of(remove=[1]))
        assert not (delta.added or delta.rows or delta.leases or delta.removed or delta.scheduled)

    def test_the_removal_of_an_item_of_the_file_is_kept(self) -> None:
        delta = delta_of(batch_of(add=[item(8)]), batch_of(remove=[7, 8]))
        assert (delta.added, list(delta.removed)) == ({}, [7])

    def test_removing_an_item_ends_its_lease(self) -> None:
        assert delta_of(lease(7), batch_of(remove=[7])).leases == {}

    def test_a_later_lease_replaces_an_earlier_one(self) -> None:
        assert delta_of(lease(7, deadline=100), lease(7, deadline=200)).leases == {7: (1, 200, NOBODY)}

    def test_each_lease_has_the_hold_of_its_client_and_the_rest_has_none(self) -> None:
        batch = lease(1, 2, 3)
        hold = Hold("worker", 5)
        batch.holds, batch.hold_counts = [hold], [2]
        assert [one for _, _, one in delta_of(batch).leases.values()] == [hold, hold, NOBODY]

    def test_the_highest_sequence_never_falls(self) -> None:
        assert delta_of(batch_of(last_seq=9), batch_of(last_seq=4)).last_seq == 9


class TestRows:
    def test_rows_leave_nothing_once_all_of_them_are_removed(self) -> None:
        delta = delta_of(batch_of(rows=[rows(1, 3)]), batch_of(remove=[1, 2]), batch_of(remove=[3]))
        assert (delta.rows, delta.removed) == ([], {})

    def test_the_file_is_not_asked_to_remove_what_came_and_went_in_rows(self) -> None:
        delta = delta_of(batch_of(rows=[rows(10, 3)]), batch_of(remove=[5, 11]))
        assert list(delta.removed) == [5, 11]
        assert list(delta.removed_from_file()) == [5]

    def test_a_clear_keeps_the_leased_items_among_rows(self) -> None:
        delta = delta_of(batch_of(rows=[rows(1, 3), rows(4, 2)]), lease(2), batch_of(clear_ready=True))
        assert [one.first_seq for one in delta.rows] == [1]
        assert [delta.state_after(seq, "ready") for seq in (1, 2, 3, 4)] == ["", "leased", "", ""]


def stripe_lease(first: int, count: int, step: int = 1) -> Batch:
    return batch_of(leased_stripes=[LeasedStripe(Stripe(first, count, step), 100, NOBODY)])


def stripe_removal(first: int, count: int, step: int = 1) -> Batch:
    return batch_of(removed_stripes=[Stripe(first, count, step)])


def run(first_seq: int, count: int) -> Run:
    return Run(first_seq, count, 1, 2, [b"x"] * count)


class TestStripes:
    def test_items_that_came_and_went_in_stripes_leave_nothing(self) -> None:
        delta = delta_of(batch_of(rows=[run(1, 6)]), stripe_lease(1, 3, 2), stripe_lease(2, 3, 2))
        assert dict(delta.all_leases()).keys() == {1, 2, 3, 4, 5, 6}
        delta.absorb(stripe_removal(2, 3, 2))
        assert [delta.state_after(seq, "ready") for seq in (1, 2, 7)] == ["leased", "", "ready"]
        assert list(delta.gone_from(delta.rows[0]) or ()) == [0, 1, 0, 1, 0, 1]
        delta.absorb(stripe_removal(1, 3, 2))
        assert not (delta.rows or delta.gone or delta.leased_stripes or delta.leases or delta.removed)

    def test_a_stripe_ends_when_one_of_its_leases_does(self) -> None:
        delta = delta_of(batch_of(rows=[run(1, 3)]), stripe_lease(1, 3), batch_of(remove=[2]))
        assert (sorted(delta.leases), delta.leased_stripes) == ([1, 3], {})
        delta.absorb(batch_of(remove=[1, 3]))
        assert not (delta.rows or delta.leases or delta.removed)

    def test_a_single_lease_replaces_that_of_its_stripe(self) -> None:
        delta = delta_of(batch_of(rows=[run(1, 2)]), stripe_lease(1, 2), lease(2, deadline=200))
        assert {seq: deadline for seq, (_, deadline, _) in delta.all_leases()} == {1: 100, 2: 200}

    def test_rows_can_go_partly_in_stripes_and_partly_one_by_one(self) -> None:
        delta = delta_of(batch_of(rows=[run(1, 4)]), batch_of(remove=[1, 3]), stripe_removal(2, 1))
        assert list(delta.gone_from(delta.rows[0]) or ()) == [1, 1, 1, 0]
        delta.absorb(batch_of(remove=[4]))
        assert not (delta.rows or delta.gone or delta.removed)

    def test_the_file_is_asked_to_remove_a_stripe_that_it_has(self) -> None:
        delta = delta_of(stripe_lease(7, 2, 3), stripe_removal(7, 2, 3))
        assert (list(delta.removed_from_file()), delta.removed_upto, dict(delta.all_leases())) == ([7, 10], 10, {})

    def test_a_clear_keeps_the_leased_stripe(self) -> None:
        delta = delta_of(batch_of(rows=[run(1, 4)]), stripe_lease(1, 2, 2), batch_of(clear_ready=True))
        assert [delta.state_after(seq, "ready") for seq in (1, 2, 3, 4)] == ["leased", "", "leased", ""]


class TestClearing:
    def test_clearing_ready_items_keeps_leased_ones(self) -> None:
        delta = delta_of(batch_of(add=[item(1), item(2)]), lease(2), batch_of(clear_ready=True))
        assert (list(delta.added), delta.clear_ready) == ([2], True)

    def test_clearing_leased_items_removes_them_and_their_leases(self) -> None:
        delta = delta_of(batch_of(add=[item(1), item(2)]), lease(2, 7), batch_of(clear_leased=True))
        assert (list(delta.added), delta.leases, list(delta.removed)) == ([1], {}, [7])

    def test_what_is_added_after_a_clear_stays(self) -> None:
        delta = delta_of(
            batch_of(clear_ready=True, clear_scheduled=True, add=[item(1)], schedule=[item(2, enqueue_at=9)])
        )
        assert (list(delta.added), list(delta.scheduled)) == ([1], [2])


class TestSchedule:
    def test_a_scheduled_item_that_came_and_went_leaves_nothing(self) -> None:
        delta = delta_of(batch_of(schedule=[item(1, enqueue_at=9)]), batch_of(unschedule=[1, 2]))
        assert (delta.scheduled, list(delta.unscheduled)) == ({}, [2])


@pytest.mark.parametrize(
    ("batch", "before", "after"),
    [
        (Batch(), "ready", "ready"),
        (batch_of(remove=[7]), "ready", ""),
        (lease(7), "ready", "leased"),
        (batch_of(clear_ready=True), "ready", ""),
        (batch_of(clear_ready=True), "leased", "leased"),
        (batch_of(clear_leased=True), "leased", ""),
        (batch_of(clear_leased=True), "ready", "ready"),
        (batch_of(unschedule=[7]), "scheduled", ""),
        (batch_of(clear_scheduled=True), "scheduled", ""),
        (batch_of(unschedule=[8]), "scheduled", "scheduled"),
    ],
)
def test_what_became_of_an_item_of_the_file(batch: Batch, before: str, after: str) -> None:
    delta = delta_of(batch)
    assert delta.state_after(7, before) == after
    delta.drop_contents()
    assert delta.state_after(7, before) == after, "still known once the net effect was applied"


def test_items_added_after_a_clear_are_still_known_once_the_net_effect_was_applied() -> None:
    delta = delta_of(batch_of(clear_ready=True), batch_of(add=[item(1)], rows=[rows(2, 2)]))
    delta.drop_contents()
    assert [delta.state_after(seq, "ready") for seq in (1, 2, 3, 4)] == ["ready", "ready", "ready", ""]


def test_contents_are_freed_in_steps_that_are_few_and_not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step the thread may have to wait for the interpreter's lock."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    items = [item(seq) for seq in range(1, 25_001)]
    delta_of(batch_of(add=items)).drop_contents()
    delta_of(batch_of(rows=[run(first, 100) for first in range(1, 25_001, 100)])).drop_contents()
    assert pauses == [0] * 4


def test_memory_counts_items_and_the_keys_of_removed_ones() -> None:
    delta = delta_of(batch_of(remove=[1, 2]))
    few = delta.memory_bytes
    delta.absorb(batch_of(remove=[3, 4]))
    assert few > 0
    assert delta.memory_bytes == 2 * few


def test_the_contents_may_be_dropped_while_another_thread_asks_for_a_state() -> None:
    class Asked:
        """Items during whose look-up the contents are dropped."""

        count = 3
        last_seq = 3

        @property
        def first_seq(self) -> int:
            delta.drop_contents()
            return 1

    delta = delta_of()
    delta.rows = [Asked()]  # type: ignore[list-item]
    assert delta.state_after(2, "ready") == "ready"
    assert delta.rows == []
