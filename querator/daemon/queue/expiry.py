"""When the waiting items of one partition expire, and the search for expired items.

A search reads storage. The pass after it moves the expired items to the dead queue. The next search begins when all of
them have left.
"""

from __future__ import annotations

import enum

from querator.daemon.queue.schedule import NEVER
from querator.items import Item


class _Progress(enum.Enum):
    IDLE = 0
    READING = 1
    DEPARTING = 2


class ExpirySearch:
    __slots__ = ("_progress", "found", "next_expiry")

    def __init__(self) -> None:
        self.next_expiry = NEVER
        """No waiting item expires before this, except those that a search under way finds."""
        self.found: list[tuple[list[Item], int | None]] = []
        """What searches have read: expired items, and when the next of the others expires."""
        self._progress = _Progress.IDLE

    def next_search_us(self) -> int:
        return self.next_expiry if self._progress is _Progress.IDLE else NEVER

    def expect(self, expiry: int) -> None:
        """Notes that an item expires at this time."""
        self.next_expiry = min(self.next_expiry, expiry)

    def begin(self) -> None:
        self._progress = _Progress.READING
        self.next_expiry = NEVER

    def take_found(self) -> list[tuple[list[Item], int | None]]:
        found, self.found = self.found, []
        return found

    def wait_for_departures(self) -> None:
        """Postpones the next search until the expired items that were found have left."""
        self._progress = _Progress.DEPARTING

    def nothing_found(self, next_expiry: int | None) -> None:
        self._progress = _Progress.IDLE
        if next_expiry is not None:
            self.expect(next_expiry)

    def all_departed(self, now_us: int) -> None:
        """Searches again at once if the last search found something, because there may be more."""
        if self._progress is _Progress.DEPARTING:
            self._progress = _Progress.IDLE
            self.expect(now_us - 1)
