"""The scheduled items of a partition: memory has those that are due first, and the others are counted."""

from __future__ import annotations

from querator.daemon.queue.agenda import NEVER
from querator.daemon.queue.schedule import Schedule
from querator.items import Item
from querator.limits import SCHEDULED_WINDOW_ITEMS_MAX


def item(seq: int, at: int) -> Item:
    return Item(seq, 0, 9_000, b"x", enqueue_at=at)


def seqs(items: list[Item]) -> list[int]:
    return [one.seq for one in items]


def test_due_items_come_in_the_order_of_their_times():
    schedule = Schedule()
    schedule.add([item(1, 30), item(2, 10), item(3, 20)])
    assert schedule.next_due == 10
    assert schedule.due(21, 9) == [item(2, 10), item(3, 20)]
    assert schedule.next_due == 30


def test_a_time_that_is_now_is_not_due_yet():
    schedule = Schedule()
    schedule.add([item(1, 10)])
    assert schedule.due(10, 9) == []


def test_no_more_are_due_than_were_asked_for():
    schedule = Schedule()
    schedule.add([item(seq, seq) for seq in range(1, 6)])
    assert seqs(schedule.due(100, 2)) == [1, 2]
    assert seqs(schedule.due(100, 9)) == [3, 4, 5]


def test_an_item_counts_until_it_is_removed():
    schedule = Schedule()
    schedule.add([item(1, 10), item(2, 20)])
    due = schedule.due(15, 9)
    assert schedule.count == 2
    schedule.remove(due)
    assert (schedule.count, seqs(list(schedule.items.values()))) == (1, [2])


def test_a_removed_item_never_comes_due():
    schedule = Schedule()
    one = item(1, 10)
    schedule.add([one])
    schedule.remove([one])
    assert schedule.due(100, 9) == []


def test_items_that_are_taken_are_still_counted():
    schedule = Schedule()
    schedule.add([item(1, 30), item(2, 10)])
    assert seqs(schedule.take(1)) == [2]
    assert schedule.count == 2


def test_memory_keeps_the_items_that_are_due_first_and_reads_the_others_later():
    schedule = Schedule()
    many = 2 * SCHEDULED_WINDOW_ITEMS_MAX + 1
    schedule.add([item(seq, seq) for seq in range(1, many + 1)])
    assert (schedule.count, len(schedule.items)) == (many, SCHEDULED_WINDOW_ITEMS_MAX)
    schedule.add([item(many + 1, many + 1)])  # due after the items in memory
    assert (schedule.count, len(schedule.items)) == (many + 1, SCHEDULED_WINDOW_ITEMS_MAX)
    schedule.add([item(many + 2, 0)])
    assert schedule.next_due == 0
    schedule.loaded([item(many + 1, many + 1)], NEVER)
    assert len(schedule.items) == SCHEDULED_WINDOW_ITEMS_MAX + 2


def test_a_cleared_schedule_has_nothing_due():
    schedule = Schedule()
    schedule.add([item(1, 10)])
    schedule.clear()
    assert (schedule.count, schedule.next_due, schedule.due(100, 9)) == (0, NEVER, [])
