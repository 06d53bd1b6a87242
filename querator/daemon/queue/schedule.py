"""The scheduled items of one partition. Memory has those that are due first; the others are only counted."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from querator import limits
from querator.daemon.queue.agenda import NEVER, Agenda
from querator.items import Item
from querator.limits import SCHEDULED_WINDOW_ITEMS_MAX


class Schedule:
    def __init__(self, agenda: Agenda | None = None) -> None:
        self._agenda = agenda or Agenda()
        self.items: dict[int, Item] = {}
        self._order: list[tuple[int, int]] = []
        self.count = 0
        """All scheduled items, in memory and on disk."""
        self._bytes = 0
        """The size of the payloads in memory."""
        self._horizon = NEVER
        """Every item that is due before this is in memory."""
        self.loading = False

    @property
    def next_due(self) -> int:
        return self._order[0][0] if self._order else NEVER

    def add(self, items: Sequence[Item]) -> None:
        self.count += len(items)
        self.remember(items)
        if len(self.items) > 2 * SCHEDULED_WINDOW_ITEMS_MAX or self._bytes > 2 * limits.SCHEDULED_WINDOW_BYTES_MAX:
            self._shorten()

    def remember(self, items: Iterable[Item]) -> None:
        """Keeps items that are counted already, unless they are due after the horizon."""
        self._agenda.look_at_all = True
        for item in items:
            if item.enqueue_at < self._horizon:
                self.items[item.seq] = item
                self._bytes += len(item.payload)
                heapq.heappush(self._order, (item.enqueue_at, item.seq))

    def _shorten(self) -> None:
        """Keeps the items that are due first. The others are read again later."""
        entries = sorted((item.enqueue_at, seq) for seq, item in self.items.items())
        sizes = accumulate([len(self.items[seq].payload) for _, seq in entries])
        fitting = bisect_right(list(sizes), limits.SCHEDULED_WINDOW_BYTES_MAX)
        self._horizon = entries[min(fitting, SCHEDULED_WINDOW_ITEMS_MAX)][0]
        self._keep([self.items[seq] for enqueue_at, seq in entries if enqueue_at < self._horizon])

    def _keep(self, items: Iterable[Item]) -> None:
        """Keeps exactly these items in memory."""
        self.items = {item.seq: item for item in items}
        self._bytes = sum([len(item.payload) for item in self.items.values()])
        self._order = [(item.enqueue_at, item.seq) for item in self.items.values()]
        heapq.heapify(self._order)

    def due(self, now_us: int, items_max: int) -> list[Item]:
        """The items that are due, in the order of their times. They stay scheduled until `remove`."""
        due: list[Item] = []
        while self._order and self._order[0][0] < now_us and len(due) < items_max:
            item = self.items.get(heapq.heappop(self._order)[1])
            if item is not None:
                due.append(item)
        return due

    def remove(self, items: Sequence[Item]) -> None:
        self.count -= len(items)
        for item in items:
            if self.items.pop(item.seq, None) is not None:
                self._bytes -= len(item.payload)

    def take(self, items_max: int) -> list[Item]:
        """Takes the items that are due first out of memory. They are still counted."""
        first = heapq.nsmallest(items_max, [(item.enqueue_at, seq) for seq, item in self.items.items()])
        taken = [self.items.pop(seq) for _, seq in first]
        self._bytes -= sum([len(item.payload) for item in taken])
        return taken

    def loaded(self, items: Iterable[Item], horizon: int) -> None:
        """Adds all items due before the horizon, as read. Items that were scheduled meanwhile stay in memory."""
        self._keep([*self.items.values(), *items])
        self._horizon = horizon

    def clear(self) -> None:
        self._keep([])
        self.count = 0
        self._horizon = NEVER
