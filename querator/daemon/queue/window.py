"""The waiting items of one partition.

    ready ── ahead (both in memory) ── on disk, not in memory ── tail (memory, not applied to the file yet)

Items enter at the tail and leave at the head, in the order of their sequences. Memory holds the first items and those
that the file does not have yet. The items between them are only counted. Large items that arrive behind the head are
only counted too: the store reads them from the journal until the file has them. Items that were read from the file as
columns stay columns until they are about to be leased; columns in the tail stay columns too. Items of large requests
stay runs. The tail has at most twice the bytes of the head. The store has all of its items anyway, in the file, in
memory or in the journal. Producers of small items wait for the file before that, so their items stay in the tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import filterfalse, islice
from operator import attrgetter

from querator import limits
from querator.config_file import LimitsConfig
from querator.daemon.store import ItemColumns, Rows, Run, RunColumns, items_in
from querator.items import Item
from querator.limits import (
    LEFT_ITEM_BYTES_MIN,
    LEFT_RECORD_BYTES_MIN,
    OLDEST_AMONG_ITEMS_MAX,
    READY_UNPACK_ITEMS,
    READY_WINDOW_LOW_PERCENT,
    READY_WINDOW_READ_PERCENT,
)

_payload_of = attrgetter("payload")
_created_at_of = attrgetter("created_at")


class ItemChunk:
    """A part of the tail, or of what comes after `ready`, as items."""

    __slots__ = ("_items", "count", "first_seq", "last_seq", "payload_bytes")

    def __init__(self, items: list[Item]) -> None:
        self._items = items
        self.count = len(items)
        self.first_seq, self.last_seq = items[0].seq, items[-1].seq
        self.payload_bytes = sum([len(item.payload) for item in items])

    def items(self, start: int, stop: int) -> list[Item]:
        return self._items[start:stop]

    def seqs(self, start: int = 0) -> list[int]:
        return [item.seq for item in self._items[start:]]


class RunChunk:
    """The same as a run, which need not become items to be leased."""

    __slots__ = ("_source", "count", "first_seq", "last_seq", "payload_bytes")

    def __init__(self, source: Run | RunColumns) -> None:
        self._source = source
        self.count = source.count
        self.first_seq, self.last_seq = source.first_seq, source.last_seq
        self.payload_bytes = source.size_bytes

    @property
    def run(self) -> Run:
        source = self._source
        if isinstance(source, RunColumns):
            source = self._source = source.run()
        return source

    def items(self, start: int, stop: int) -> list[Item]:
        return self.run.items(range(start, stop))

    def seqs(self, start: int = 0) -> list[int]:
        return list(range(self.first_seq + start, self.last_seq + 1))


class ColumnChunk:
    """A part of the tail as columns, which take less memory. They become items when they move to the head."""

    __slots__ = ("_rows", "count", "first_seq", "last_seq", "payload_bytes")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.count = rows.count
        self.payload_bytes = rows.size_bytes
        self.first_seq, self.last_seq = rows.first_seq, rows.last_seq

    def opened(self) -> ItemChunk:
        return ItemChunk(items_in(self._rows))


class Window:
    def __init__(self, bounds: LimitsConfig) -> None:
        self._items_max = bounds.ready_window_items
        self._bytes_max = bounds.ready_window_bytes
        self.ready: deque[Item] = deque()
        """The first items. Empty if there are none in memory, or if a run is next."""
        self.ready_bytes = 0
        self.ahead: deque[ItemColumns | ItemChunk | RunChunk] = deque()
        """The items after `ready`."""
        self.ahead_items = 0
        self.ahead_bytes = 0
        self._unpacked = 0
        """How many items of the first part of `ahead` are in `ready` already, or were leased."""
        self.tail: deque[ItemChunk | RunChunk | ColumnChunk] = deque()
        self.tail_items = 0
        self.tail_bytes = 0
        self.gone: set[int] = set()
        """Sequences of items in ready, ahead or tail that have left out of turn, and are skipped."""
        self.cursor = 0
        """All items up to this sequence have been in memory. Items that are on disk only come after it."""
        self.loading = False
        self.waiting = 0
        """All waiting items, in memory and on disk."""

    @property
    def on_disk(self) -> int:
        """The number of waiting items that are on disk only."""
        return self.waiting - (len(self.ready) + self.ahead_items + self.tail_items - len(self.gone))

    def oldest(self) -> int | None:
        """When the oldest item near the head was created. Items that come back stand behind younger ones."""
        first: Iterable[Item] = self.ready
        if not self.ready and self.ahead:
            next_part = self.ahead[0]
            first = next_part.items(self._unpacked, min(next_part.count, self._unpacked + OLDEST_AMONG_ITEMS_MAX))
        head = islice(filterfalse(lambda item: item.seq in self.gone, first), OLDEST_AMONG_ITEMS_MAX)
        return min(map(_created_at_of, head), default=None)

    def has_next(self) -> bool:
        """Whether the next item is in memory."""
        return bool(self.waiting and (self.ready or self.ahead))

    def append(self, items: list[Item], size_bytes: int, last_seq: int) -> None:
        if not self.is_open():
            if size_bytes >= LEFT_RECORD_BYTES_MIN and size_bytes >= len(items) * LEFT_ITEM_BYTES_MIN:
                self._leave(len(items))
                return
            self._wait(ItemChunk(list(items)))
        elif self.ahead_items:
            self._follow(ItemChunk(list(items)))
        else:
            if len(items) == 1:
                self.ready.append(items[0])
            else:
                self.ready.extend(items)
            self.ready_bytes += size_bytes
            self.cursor = last_seq
        self.waiting += len(items)

    def is_open(self) -> bool:
        """Whether a new item comes right after those at the head, and has room there. If not, it goes to the tail."""
        is_next = not self.tail_items and self.waiting == self._items_in_memory - len(self.gone)
        return is_next and self._has_room()

    def _leave(self, count: int) -> None:
        """Leaves new items to the store, and all items before them that are not at the head: memory would not have room
        for them."""
        self.waiting += count
        if self.tail:
            self.applied(self.tail[-1].last_seq)

    def _wait(self, part: ItemChunk | RunChunk | ColumnChunk) -> None:
        self.tail.append(part)
        self.tail_items += part.count
        self.tail_bytes += part.payload_bytes
        if self.tail_bytes > 2 * self._bytes_max:
            self.applied(part.last_seq)

    def append_rows(self, rows: Rows | Run) -> None:
        if isinstance(rows, Run) and self.is_open():
            self._follow(RunChunk(rows))
        elif rows.size_bytes >= max(LEFT_RECORD_BYTES_MIN, rows.count * LEFT_ITEM_BYTES_MIN):
            self._leave(rows.count)
            return
        else:
            self._wait(RunChunk(rows) if isinstance(rows, Run) else ColumnChunk(rows))
        self.waiting += rows.count

    def take_runs(self, count: int) -> list[tuple[Run, range]]:
        """`take` for items of runs that need not become items, as places in these runs. Empty if not all of the next
        items are such items.
        """
        if self.ready or self.gone or not self.ahead:
            return []
        pieces: list[tuple[Run, range]] = []
        count = left = min(count, self.ahead_items)
        start = self._unpacked
        for part in self.ahead:
            if not isinstance(part, RunChunk):
                return []
            stop = min(part.count, start + left)
            pieces.append((part.run, range(start, stop)))
            left -= stop - start
            start = 0
            if not left:
                break
        for run, places in pieces:
            self.ahead_bytes -= sum(map(len, run.payloads[places.start : places.stop]))
            self._unpacked = places.stop
            if places.stop == run.count:
                self.ahead.popleft()
                self._unpacked = 0
        self.ahead_items -= count
        self.waiting -= count
        return pieces

    def take(self, count: int, bytes_max: int | None = None) -> list[Item]:
        """Takes up to `count` items from the head."""
        ready = self.ready
        while self.ahead_items and len(ready) <= count:
            if count < limits.HAND_ITEMS_MIN or not isinstance(self.ahead[0], RunChunk):
                self._unpack(READY_UNPACK_ITEMS)
            elif len(ready) < count:
                self._unpack(count - len(ready))  # and no more, so that the rest of the run can be leased as such
            else:
                break
        taken: list[Item] = []
        if self.gone or bytes_max is not None:
            size = 0
            while ready and len(taken) < count and (bytes_max is None or size < bytes_max):
                item = ready.popleft()
                if not ready and self.ahead:
                    self._unpack(READY_UNPACK_ITEMS)
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

    def take_one(self) -> Item | None:
        """Takes the item at the head. None if there is none in memory."""
        if self.ahead_items or self.gone or not self.ready:
            return next(iter(self.take(1)), None)
        item = self.ready.popleft()
        self.waiting -= 1
        self.ready_bytes -= len(item.payload)
        return item

    def put_back(self, items: Sequence[Item]) -> None:
        """Returns items that were taken to the head."""
        self.ready.extendleft(reversed(items))
        self.ready_bytes += sum([len(item.payload) for item in items])
        self.waiting += len(items)

    # -- between memory and disk

    def wants_loading(self) -> bool:
        """Whether `ready` is no longer full and items must be read from disk. Moves the tail to the head if none are on
        disk.
        """
        if self.loading or self._items_in_memory * 100 > self._items_max * READY_WINDOW_LOW_PERCENT:
            return False
        if self.tail and self.on_disk <= 0:
            self._tail_to_head()
        return self.on_disk > 0 and self._bytes_in_memory <= self._bytes_max // 2 and self._has_room()

    @property
    def read_items_max(self) -> int:
        """How many items one read from disk may return: a part of the window, so that the read ends long before the
        items that are in memory do.
        """
        return max(1, self._items_max * READY_WINDOW_READ_PERCENT // 100)

    @property
    def _items_in_memory(self) -> int:
        """The number of items at the head that are in memory."""
        return len(self.ready) + self.ahead_items

    @property
    def _bytes_in_memory(self) -> int:
        return self.ready_bytes + self.ahead_bytes

    def _has_room(self) -> bool:
        return self._items_in_memory < self._items_max and self._bytes_in_memory < self._bytes_max

    def _tail_to_head(self) -> None:
        while self.tail and self._has_room():
            part = self.tail.popleft()
            self.tail_items -= part.count
            self.tail_bytes -= part.payload_bytes
            self._follow(part.opened() if isinstance(part, ColumnChunk) else part)

    def disk_range(self) -> tuple[int, int | None]:
        """The two sequences between which all items are that are only on disk."""
        return self.cursor, self.tail[0].first_seq if self.tail else None

    def extend(self, items: list[Item]) -> None:
        """Adds the next items, which were counted before."""
        if not items:
            return
        if self.ahead:
            self._follow(ItemChunk(items))
        else:
            self.ready.extend(items)
            self.ready_bytes += sum([len(item.payload) for item in items])
            self.cursor = items[-1].seq

    def extend_columns(self, columns: ItemColumns) -> None:
        """`extend` for items in columns."""
        runs = columns.runs()
        if not runs:
            self._follow(columns)
        for run in runs:
            self._follow(RunChunk(run))

    def _follow(self, part: ItemColumns | ItemChunk | RunChunk) -> None:
        self.ahead.append(part)
        self.ahead_items += part.count
        self.ahead_bytes += part.payload_bytes
        self.cursor = part.last_seq
        if not self.ready and not isinstance(self.ahead[0], RunChunk):
            self._unpack(READY_UNPACK_ITEMS)

    def _unpack(self, items_max: int) -> None:
        """Moves the next items of one part from `ahead` to `ready`: few enough that nobody waits for it."""
        columns = self.ahead[0]
        items = columns.items(self._unpacked, min(columns.count, self._unpacked + min(items_max, READY_UNPACK_ITEMS)))
        size = sum(map(len, map(_payload_of, items)))
        self.ready.extend(items)
        self.ready_bytes += size
        self.ahead_items -= len(items)
        self.ahead_bytes -= size
        self._unpacked += len(items)
        if self._unpacked == columns.count:
            self.ahead.popleft()
            self._unpacked = 0

    def pass_by(self, seq: int) -> None:
        """Notes that the only items up to this sequence that still wait are in memory."""
        self.cursor = max(self.cursor, seq)

    def applied(self, through: int) -> None:
        """Drops the part of the tail up to this sequence, which the file has now."""
        while self.tail and self.tail[0].last_seq <= through:
            chunk = self.tail.popleft()
            self.tail_items -= chunk.count
            self.tail_bytes -= chunk.payload_bytes
            if self.gone and isinstance(chunk, ItemChunk):
                self.gone.difference_update(chunk.seqs())

    # -- items leave out of turn

    def among(self, items: Sequence[Item], taken: Container[int], is_removed: Callable[[int], bool]) -> list[Item]:
        """Which of these items, as read from storage a moment ago, still wait. `taken` are departing."""
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
        """Stops counting these items as waiting, and marks those in memory to be skipped."""
        self.gone |= self._in_memory({item.seq for item in items})
        self.waiting -= len(items)

    def _in_memory(self, seqs: set[int]) -> set[int]:
        found = seqs.intersection([item.seq for item in self.ready])
        start = self._unpacked
        for part in self.ahead:
            found |= seqs.intersection(part.seqs(start))
            start = 0
        for chunk in self.tail:
            # An item can leave out of turn only after it was read from the file. Then it is not in the tail, unless it
            # came back.
            if isinstance(chunk, ItemChunk):
                found |= seqs.intersection(chunk.seqs())
        return found

    def clear(self, last_seq: int) -> None:
        self.ready.clear()
        self.ahead.clear()
        self.tail.clear()
        self.gone.clear()
        self.ready_bytes = self.ahead_items = self.ahead_bytes = self._unpacked = 0
        self.tail_items = self.tail_bytes = self.waiting = 0
        self.cursor = last_seq
