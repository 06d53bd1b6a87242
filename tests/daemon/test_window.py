"""The waiting items of a partition: which are in memory, which are only counted, and in which order they leave."""

from __future__ import annotations

import gc

import pyarrow as pa

from querator.config_file import LimitsConfig
from querator.daemon.queue.window import RunChunk, Window
from querator.daemon.store import ItemColumns, Rows, Run
from querator.daemon.store.duck.arrow_rows import item_rows
from querator.items import Item
from querator.limits import READY_UNPACK_ITEMS
from querator.wire.arrow import encode_batches


def items(first: int, last: int) -> list[Item]:
    return [Item(seq, 1_000 + seq, 9_000, b"12345") for seq in range(first, last + 1)]


def columns(first: int, last: int) -> ItemColumns:
    return ItemColumns(pa.table(item_rows(items(first, last))))


def window_with_a_backlog(last: int, ready_max: int = 10_000) -> Window:
    """All items are on disk only."""
    window = window_of(ready_max=ready_max, bytes_max=1_000_000)
    window.waiting = last
    return window


def window_of(ready_max: int = 4, bytes_max: int = 1_000) -> Window:
    return Window(LimitsConfig(ready_window_items=ready_max, ready_window_bytes=bytes_max))


def append(window: Window, first: int, last: int) -> None:
    window.append(items(first, last), 5 * (last + 1 - first), last)


def taken(window: Window, count: int) -> list[int]:
    return [item.seq for item in window.take(count)]


def test_items_leave_in_the_order_in_which_they_came():
    window = window_of()
    append(window, 1, 3)
    assert taken(window, 2) == [1, 2]
    assert taken(window, 9) == [3]
    assert (window.waiting, window.ready_bytes) == (0, 0)


def test_items_leave_one_by_one_as_they_leave_together():
    window = window_of(ready_max=10)
    append(window, 1, 4)
    window.forget(items(2, 2))
    window._follow(RunChunk(Run(5, 2, 1_000, 9_000, [b"12345"] * 2)))
    window.waiting += 2
    left = []
    while (item := window.take_one()) is not None:
        left.append(item.seq)
    assert left == [1, 3, 4, 5, 6]
    assert (window.waiting, window.ready_bytes, window.ahead_bytes) == (0, 0, 0)


def test_items_without_room_wait_in_the_tail():
    window = window_of(ready_max=2)
    append(window, 1, 2)
    append(window, 3, 4)
    assert not window.is_open()
    assert (window.waiting, window.on_disk, window.disk_range()) == (4, 0, (2, 3))
    assert taken(window, 9) == [1, 2]
    assert not window.wants_loading()  # the tail moved to ready at once, because no item is on disk only
    assert taken(window, 9) == [3, 4]


def test_the_bytes_of_payloads_are_bounded_too():
    window = window_of(ready_max=100, bytes_max=10)
    append(window, 1, 2)
    append(window, 3, 3)
    assert window.disk_range() == (2, 3)


def test_large_items_behind_the_head_are_only_counted_and_so_are_those_before_them():
    window = window_of(ready_max=2)
    append(window, 1, 2)
    append(window, 3, 4)
    large = [Item(seq, 1_000, 9_000, b"x" * 70_000) for seq in (5, 6)]
    window.append(large, 140_000, 6)
    assert (window.waiting, window.on_disk, window.disk_range()) == (6, 4, (2, None))
    append(window, 7, 8)
    assert (window.waiting, window.on_disk, window.disk_range()) == (8, 4, (2, 7))
    assert taken(window, 2) == [1, 2]
    assert window.wants_loading()
    window.extend([*items(3, 4), *large])
    assert taken(window, 9) == [3, 4, 5, 6]
    assert not window.wants_loading()
    assert taken(window, 9) == [7, 8]


def test_a_tail_of_many_bytes_is_only_counted():
    window = window_of(ready_max=2, bytes_max=10)
    append(window, 1, 2)
    append(window, 3, 4)
    window.append_rows(run(5, 6))
    assert (window.tail_items, window.tail_bytes) == (4, 20)
    append(window, 7, 7)
    assert (window.waiting, window.tail_items, window.tail_bytes, window.disk_range()) == (7, 0, 0, (2, None))
    append(window, 8, 8)
    assert (window.on_disk, window.disk_range()) == (5, (2, 8))


def test_a_tail_that_the_file_has_is_only_counted():
    window = window_of(ready_max=2)
    append(window, 1, 2)
    append(window, 3, 4)
    append(window, 5, 6)
    window.applied(4)
    assert (window.waiting, window.on_disk, window.disk_range()) == (6, 2, (2, 5))
    assert taken(window, 2) == [1, 2]
    assert window.wants_loading()
    window.extend(items(3, 4))
    assert taken(window, 2) == [3, 4]
    assert not window.wants_loading()
    assert taken(window, 2) == [5, 6]


def test_items_are_read_long_before_the_window_is_empty():
    window = window_of(ready_max=8)
    append(window, 1, 8)
    append(window, 9, 40)
    window.applied(40)
    window.take(1)
    assert not window.wants_loading()
    window.take(1)
    assert window.wants_loading()
    assert window.read_items_max == 4


def test_large_items_are_read_when_half_of_the_bytes_are_left():
    window = window_of(ready_max=100, bytes_max=40)
    append(window, 1, 8)
    append(window, 9, 20)
    window.applied(20)
    window.take(3)
    assert not window.wants_loading()
    window.take(1)
    assert window.wants_loading()


def test_columns_become_items_when_they_are_next():
    window = window_of(ready_max=2)
    append(window, 1, 2)
    table = pa.table({"payload": [b"a", b"b", b"c"]})
    window.append_rows(Rows(3, 3, 77, 9_000, encode_batches(table.to_batches(), table.schema)))
    assert (window.waiting, window.disk_range()) == (5, (2, 3))
    window.take(2)
    assert not window.wants_loading()
    assert [(item.seq, item.payload, item.created_at) for item in window.take(9)] == [
        (3, b"a", 77),
        (4, b"b", 77),
        (5, b"c", 77),
    ]


def test_an_item_that_was_removed_is_skipped():
    window = window_of()
    append(window, 1, 3)
    window.forget(items(2, 2))
    assert window.waiting == 2
    assert [item.seq for item in window.among(items(1, 3), (), lambda seq: seq == 3)] == [1]
    assert taken(window, 9) == [1, 3]
    assert window.ready_bytes == 0


def test_a_removed_item_of_the_tail_is_forgotten_with_it():
    window = window_of(ready_max=1)
    append(window, 1, 1)
    append(window, 2, 3)
    window.forget(items(3, 3))
    window.applied(3)
    assert (window.waiting, window.on_disk, window.gone) == (2, 1, set())


def test_items_that_are_put_back_come_first():
    window = window_of()
    append(window, 1, 3)
    window.put_back(window.take(2))
    assert (window.waiting, window.ready_bytes) == (3, 15)
    assert taken(window, 9) == [1, 2, 3]


def test_a_take_ends_with_the_item_that_reaches_the_bytes():
    window = window_of()
    append(window, 1, 4)
    assert [item.seq for item in window.take(9, bytes_max=6)] == [1, 2]


def test_a_cleared_window_takes_new_items_at_once():
    window = window_of(ready_max=2)
    append(window, 1, 2)
    append(window, 3, 4)
    window.clear(4)
    assert (window.waiting, window.on_disk) == (0, 0)
    append(window, 5, 5)
    assert taken(window, 9) == [5]


# Items that were read from the file as columns.


def test_columns_that_were_read_become_items_a_few_at_a_time():
    count = 3 * READY_UNPACK_ITEMS
    window = window_with_a_backlog(count + 7)
    window.extend_columns(columns(1, count))
    assert (len(window.ready), window.on_disk, window.disk_range()) == (READY_UNPACK_ITEMS, 7, (count, None))
    assert window.take(2) == items(1, 2)
    assert len(window.ready) == READY_UNPACK_ITEMS - 2
    assert window.take(count) == items(3, count)
    assert (window.waiting, window.on_disk, window.ready_bytes, window.ahead_bytes) == (7, 7, 0, 0)


def test_columns_come_after_the_items_before_them_and_before_those_after_them():
    window = window_with_a_backlog(9)
    window.extend(items(1, 2))
    window.extend_columns(columns(3, 4))
    window.extend_columns(columns(5, 6))
    window.extend(items(7, 9))
    assert taken(window, 3) == [1, 2, 3]
    assert taken(window, 9) == [4, 5, 6, 7, 8, 9]


def test_new_items_follow_columns_that_were_read():
    window = window_with_a_backlog(4)
    window.extend(items(1, 1))
    assert not window.is_open(), "items on disk come first"
    window.extend_columns(columns(2, 4))
    assert window.is_open()
    append(window, 5, 6)
    assert (window.waiting, window.on_disk, window.disk_range()) == (6, 0, (6, None))
    assert not window.wants_loading()
    assert taken(window, 9) == [1, 2, 3, 4, 5, 6]
    assert window.is_open()


def test_columns_count_as_items_in_memory():
    window = window_with_a_backlog(40, ready_max=8)
    window.extend_columns(columns(1, 7))
    assert not window.wants_loading()
    window.take(1)
    assert window.wants_loading()


def test_removed_items_of_columns_are_skipped():
    count = 2 * READY_UNPACK_ITEMS
    window = window_with_a_backlog(count)
    window.extend_columns(columns(1, count))
    removed = [*items(2, 2), *items(READY_UNPACK_ITEMS, count - 1)]
    assert window.among(removed, (), lambda seq: False) == removed
    window.forget(removed)
    expected = [seq for seq in range(1, READY_UNPACK_ITEMS) if seq != 2] + [count]
    assert window.waiting == len(expected)
    assert taken(window, 1) == [1]
    assert window.has_next()
    assert [1, *taken(window, count)] == expected
    assert (window.waiting, window.on_disk, window.gone) == (0, 0, set())


def test_a_cleared_window_has_no_columns():
    window = window_with_a_backlog(5)
    window.extend_columns(columns(1, 4))
    window.clear(5)
    append(window, 6, 6)
    assert taken(window, 9) == [6]
    assert (window.waiting, window.on_disk) == (0, 0)


def run(first: int, last: int) -> Run:
    return Run(first, last + 1 - first, 77, 9_000, [b"12345"] * (last + 1 - first))


def test_runs_are_leased_without_objects_for_their_items():
    window = window_of(ready_max=100)
    first, second = run(1, 4), run(5, 8)
    window.append_rows(first)
    window.append_rows(second)
    assert (window.oldest(), window.has_next(), window.on_disk) == (77, True, 0)
    assert window.take_runs(3) == [(first, range(3))]
    assert window.take_runs(3) == [(first, range(3, 4)), (second, range(2))]
    assert (window.waiting, window.ahead_bytes) == (2, 10)
    assert window.take_runs(9) == [(second, range(2, 4))]
    assert (window.waiting, window.ahead_bytes, window.has_next(), window.take_runs(1)) == (0, 0, False, [])


def test_runs_become_items_where_single_items_are_wanted_or_follow():
    window = window_of(ready_max=100)
    window.append_rows(run(1, 4))
    append(window, 5, 5)
    assert window.take_runs(5) == [], "the fifth item is not of a run"
    assert window.take_runs(1) != []
    assert taken(window, 1) == [2]
    assert window.take_runs(1) == [], "the next item is an object already"
    assert taken(window, 9) == [3, 4, 5]
    assert (window.waiting, window.ready_bytes, window.ahead_bytes) == (0, 0, 0)


def test_a_run_without_room_waits_in_the_tail_and_then_moves_up():
    window = window_of(ready_max=2)
    window.append_rows(run(1, 3))
    late = run(4, 6)
    window.append_rows(late)
    assert (window.waiting, window.disk_range()) == (6, (3, 4))
    window.take_runs(3)
    assert not window.wants_loading()
    assert window.take_runs(9) == [(late, range(3))]


def test_items_of_a_run_can_leave_out_of_turn():
    window = window_of(ready_max=100)
    window.append_rows(run(1, 4))
    window.forget(items(2, 2))
    assert (window.waiting, window.take_runs(9)) == (3, [])
    assert taken(window, 9) == [1, 3, 4]


def columns_of_runs(*firsts: int, created_at: tuple[int, ...] = ()) -> ItemColumns:
    """Runs of 20 items with the given first sequences, as a file returns them."""
    found = []
    for first, created in zip(firsts, created_at or (77,) * len(firsts), strict=True):
        found += [Item(seq, created, 9_000, b"%d" % seq) for seq in range(first, first + 20)]
    return ItemColumns(pa.table(item_rows(found)))


def places(pieces: list[tuple[Run, range]]) -> list[tuple[int, range]]:
    return [(run.first_seq, part) for run, part in pieces]


def test_items_of_large_requests_are_runs_again_when_they_are_read_from_the_file():
    window = window_with_a_backlog(100)
    window.extend_columns(columns_of_runs(1, 21, 51, created_at=(77, 78, 78)))
    assert (window.on_disk, window.cursor, window.ahead_bytes) == (40, 70, 31 + 40 + 40)
    first, second = window.take_runs(30)
    assert first == (Run(1, 20, 77, 9_000, [b"%d" % seq for seq in range(1, 21)]), range(20))
    assert places([second]) == [(21, range(10))], "the time of their creation differs, so they are another run"
    assert places(window.take_runs(99)) == [(21, range(10, 20)), (51, range(20))]
    assert (window.ahead_bytes, window.has_next()) == (0, False)


def test_columns_are_freed_without_the_collector_once_their_runs_are_leased():
    window = window_with_a_backlog(40)
    gc.collect()  # what other tests have left would be freed meanwhile
    gc.disable()
    try:
        before = pa.total_allocated_bytes()
        window.extend_columns(columns_of_runs(1, 21))
        assert pa.total_allocated_bytes() > before
        window.take_runs(40)
        assert pa.total_allocated_bytes() == before
    finally:
        gc.enable()


def test_runs_that_were_read_keep_their_texts():
    items_read = [Item(seq, 77, 9_000, b"", kind=f"k{seq}", encoding="json") for seq in range(1, 21)]
    window = window_with_a_backlog(20)
    window.extend_columns(ItemColumns(pa.table(item_rows(items_read))))
    ((run_read, part),) = window.take_runs(20)
    assert run_read.items(part) == items_read


def test_short_runs_and_items_that_came_back_are_read_as_items():
    came_back = [Item(seq, 77, 9_000, b"x", attempts=int(seq == 7)) for seq in range(1, 21)]
    for read in (columns(1, 40), ItemColumns(pa.table(item_rows(came_back)))):
        window = window_with_a_backlog(40)
        window.extend_columns(read)
        assert read.runs() == [] == window.take_runs(20)
        assert len(taken(window, 20)) == 20


def test_a_large_request_takes_single_items_first_and_runs_after_them():
    window = window_of(ready_max=100)
    append(window, 1, 5)
    window.append_rows(run(6, 45))
    assert taken(window, 20) == list(range(1, 21)), "all that were asked for"
    assert places(window.take_runs(20)) == [(6, range(15, 35))], "the rest of the run stayed a run"
    assert taken(window, 2) == [41, 42], "a small request takes items"
    assert window.take_runs(20) == []
    assert (taken(window, 20), window.waiting, window.ready_bytes, window.ahead_bytes) == ([43, 44, 45], 0, 0, 0)
