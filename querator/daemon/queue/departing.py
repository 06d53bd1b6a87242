"""The items of one partition that are on their way to another queue or partition.

Storage keeps such an item until it has arrived at its destination. Until then it is neither leased nor given to anyone.
"""

from __future__ import annotations

from collections.abc import Iterable

from querator.items import Item


class DepartingItems:
    __slots__ = ("items", "leased", "scheduled")

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        """By sequence, the items that waited or were leased."""
        self.leased: set[int] = set()
        """The sequences of the items that are leased in storage."""
        self.scheduled: dict[int, Item] = {}
        """By sequence, the scheduled items."""

    @property
    def waiting(self) -> int:
        """The number of departing items that wait in storage."""
        return len(self.items) - len(self.leased)

    def start(self, items: Iterable[Item], *, leased: bool = False) -> None:
        started = {item.seq: item for item in items}
        self.items |= started
        if leased:
            self.leased.update(started)

    def start_scheduled(self, items: Iterable[Item]) -> None:
        self.scheduled.update([(item.seq, item) for item in items])

    def end(self, items: Iterable[Item]) -> list[Item]:
        """Ends the departure of items that have arrived or stay here. Returns those that were still departing."""
        present = [item for item in items if self.items.get(item.seq) is item]
        for item in present:
            del self.items[item.seq]
            self.leased.discard(item.seq)
        return present

    def end_scheduled(self, items: Iterable[Item]) -> list[Item]:
        """The same for scheduled items."""
        return [item for item in items if self.scheduled.pop(item.seq, None) is item]

    def clear(self, *, ready: bool, leased: bool, scheduled: bool) -> None:
        if leased:
            self.leased.clear()
        if ready:
            self.items = {seq: self.items[seq] for seq in self.leased}
        if scheduled:
            self.scheduled.clear()
