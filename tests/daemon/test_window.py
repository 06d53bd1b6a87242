"""The waiting items of a partition: which are in memory, which are only counted, and in which order they leave."""

from __future__ import annotations

import pyarrow as pa

from querator.config_file import LimitsConfig
from querator.daemon.queue.window import Window
from querator.daemon.store import Rows
from querator.items import Item
from querator.wire.arrow import encode_batches


def items(first: int, last: int) -> list[Item]:
    return [Item(seq, 1_000 + seq, 9_000, b"12345") for seq in range(first, last + 1)]


def window_of(ready_max: int = 4, bytes_max: int = 1_000) -> Window:
    return Window(LimitsConfig(ready_window_items=ready_max, ready_window_bytes=bytes_max))


def append(window: Window, first: int, last: int) -> None:
    window.append(items(first, last), 5 * (last + 1 - first))


def taken(window: Window, count: int) -> list[int]:
    return [item.seq for item in window.take(count)]


def test_items_leave_in_the_order_in_which_they_came():
    window = window_of()
    append(window, 1, 3)
    assert taken(window, 2) == [1, 2]
    assert taken(window, 9) == [3]
    assert (window.waiting, window.ready_bytes) == (0, 0)


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
