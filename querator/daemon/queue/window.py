"""The items of one partition that wait: the head of them in memory, the rest counted.

    ready (memory) ── on disk, not in memory ── tail (memory, not applied to the file yet)

Items enter at the tail end and leave at the head, in the order of their sequence. Memory holds a window of the head
and whatever the file does not have yet; what lies between is only counted. What came in columns stays so in the tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import islice
from operator import attrgetter

from querator.config_file import LimitsConfig
from querator.daemon.store import Rows, items_in
from querator.items import Item
from querator.limits import OLDEST_AMONG_ITEMS_MAX, READY_WINDOW_LOW_PERCENT

_payload_of = attrgetter("payload")


class ItemChunk:
    """A part of the tail as items."""

    __slots__ = ("_items", "count", "first_seq", "last_seq")

    def __init__(self, items: list[Item]) -> None:
        self._items = items
        self.count = len(items)
        self.first_seq, self.last_seq = items[0].seq, items[-1].seq

    def items(self) -> list[Item]:
        return self._items

    def removable(self) -> list[int]:
        """Sequences of the items that can be removed out of turn."""
        return [item.seq for item in self._items]


class ColumnChunk:
    """A part of the tail as columns, which take less memory. Its items exist from when they are next."""

    __slots__ = ("_rows", "count", "first_seq", "last_seq")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.count = rows.count
        self.first_seq, self.last_seq = rows.first_seq, rows.last_seq

    def items(self) -> list[Item]:
        return items_in(self._rows)

    def removable(self) -> list[int]:
        """None: an item is removed out of turn after it was read from the file, and then it has left the tail."""
        return []


class Window:
    def __init__(self, bounds: LimitsConfig) -> None:
        self.bounds = bounds
        self.ready: deque[Item] = deque()
        self.ready_bytes = 0
        self.tail: deque[ItemChunk | ColumnChunk] = deque()
        self.tail_items = 0
        self.gone: set[int] = set()
        """Sequences in ready or tail that were removed where they stand."""
        self.cursor = 0
        """Everything up to this sequence has been in memory; what waits on disk lies beyond it."""
        self.loading = False
        self.waiting = 0
        """All waiting items, in memory and on disk."""

    @property
    def on_disk(self) -> int:
        """The number of waiting items that are on disk only."""
        return self.waiting - (len(self.ready) + self.tail_items - len(self.gone))

    def oldest(self) -> int | None:
        """When the oldest item near the head was made: those that come back stand behind younger ones."""
        head = islice((item.created_at for item in self.ready if item.seq not in self.gone), OLDEST_AMONG_ITEMS_MAX)
        return min(head, default=None)

    def has_next(self) -> bool:
        """Whether the next item is in memory."""
        return bool(self.waiting and self.ready)

    def append(self, items: list[Item], size_bytes: int) -> None:
        is_next = self.is_open()
        self.waiting += len(items)
        if is_next:
            self.ready.extend(items)
            self.ready_bytes += size_bytes
            self.cursor = items[-1].seq
        else:
            self.tail.append(ItemChunk(items))
            self.tail_items += len(items)

    def is_open(self) -> bool:
        """Whether what comes now is the next after ready, and has room there. If not, it waits for a while."""
        return not self.tail and self._has_room() and self.waiting == len(self.ready) - len(self.gone)

    def append_rows(self, rows: Rows) -> None:
        self.waiting += rows.count
        self.tail.append(ColumnChunk(rows))
        self.tail_items += rows.count

    def take(self, count: int, bytes_max: int | None = None) -> list[Item]:
        """Takes up to `count` items from the head."""
        ready = self.ready
        taken: list[Item] = []
        if self.gone or bytes_max is not None:
            size = 0
            while ready and len(taken) < count and (bytes_max is None or size < bytes_max):
                item = ready.popleft()
                if item.seq in self.gone:
                    self.gone.discard(item.seq)
                    self.ready_bytes -= len(item.payload)
                else:
                    size += len(item.payload)
                    taken.append(item)
        elif count >= len(ready):
            taken = list(ready)
            ready.clear()
        else:
            taken = list(islice(iter(ready.popleft, None), count))
        self.waiting -= len(taken)
        self.ready_bytes -= sum(map(len, map(_payload_of, taken)))
        return taken

    def put_back(self, items: Sequence[Item]) -> None:
        """Returns items that were taken to the head."""
        self.ready.extendleft(reversed(items))
        self.ready_bytes += sum([len(item.payload) for item in items])
        self.waiting += len(items)

    # -- what is between memory and disk

    def wants_loading(self) -> bool:
        """Whether ready runs low while more waits than is in memory; takes the tail in when nothing is between."""
        low = self.bounds.ready_window_items * READY_WINDOW_LOW_PERCENT // 100
        if self.loading or len(self.ready) > low:
            return False
        if self.tail and self.on_disk <= 0:
            self._tail_to_ready()
        return self.on_disk > 0 and self._has_room()

    def _has_room(self) -> bool:
        bounds = self.bounds
        return len(self.ready) < bounds.ready_window_items and self.ready_bytes < bounds.ready_window_bytes

    def _tail_to_ready(self) -> None:
        while self.tail and self._has_room():
            chunk = self.tail.popleft()
            self.tail_items -= chunk.count
            self.extend(chunk.items())

    def disk_range(self) -> tuple[int, int | None]:
        """What lies on disk only is after the first and before the second sequence."""
        return self.cursor, self.tail[0].first_seq if self.tail else None

    def extend(self, items: Sequence[Item]) -> None:
        """The next items after ready, which were counted before, have come into memory."""
        if items:
            self.ready.extend(items)
            self.ready_bytes += sum([len(item.payload) for item in items])
            self.cursor = items[-1].seq

    def pass_by(self, seq: int) -> None:
        """What there is on disk up to this sequence and did not come into memory waits no longer."""
        self.cursor = max(self.cursor, seq)

    def applied(self, through: int) -> None:
        """The file has everything up to this sequence: that part of the tail need not stay in memory."""
        while self.tail and self.tail[0].last_seq <= through:
            chunk = self.tail.popleft()
            self.tail_items -= chunk.count
            if self.gone:
                self.gone.difference_update(chunk.removable())

    # -- items leave out of turn

    def among(self, items: Sequence[Item], taken: Container[int], is_removed: Callable[[int], bool]) -> list[Item]:
        """Which of these items, as read from storage a moment ago, still wait. `taken` are on their way elsewhere."""
        in_memory = self._in_memory({item.seq for item in items})
        after, before = self.disk_range()
        return [
            item
            for item in items
            if (item.seq in in_memory or (after < item.seq and (before is None or item.seq < before)))
            and item.seq not in self.gone
            and item.seq not in taken
            and not is_removed(item.seq)
        ]

    def forget(self, items: Sequence[Item]) -> None:
        """These wait no longer: marks those in memory, and counts."""
        self.gone |= self._in_memory({item.seq for item in items})
        self.waiting -= len(items)

    def _in_memory(self, seqs: set[int]) -> set[int]:
        found = seqs.intersection([item.seq for item in self.ready])
        for chunk in self.tail:
            found |= seqs.intersection(chunk.removable())
        return found

    def clear(self, last_seq: int) -> None:
        self.ready.clear()
        self.tail.clear()
        self.gone.clear()
        self.ready_bytes = self.tail_items = self.waiting = 0
        self.cursor = last_seq
