"""When the waiting items of one partition expire, and the search for expired items.

A search reads storage. The pass after it moves the expired items to the dead queue. The next search begins when all of
them have left.
"""

from __future__ import annotations

import enum

from querator.daemon.queue.agenda import NEVER, Agenda
from querator.items import Item


class _Progress(enum.Enum):
    IDLE = 0
    READING = 1
    DEPARTING = 2


class ExpirySearch:
    __slots__ = ("_agenda", "_progress", "found", "next_expiry")

    def __init__(self, agenda: Agenda | None = None) -> None:
        self._agenda = agenda or Agenda()
        self.next_expiry = NEVER
        """No waiting item expires before this, except those that a search under way finds."""
        self.found: list[tuple[list[Item], int | None]] = []
        """What searches have read: expired items, and when the next of the others expires."""
        self._progress = _Progress.IDLE

    def next_search_us(self) -> int:
        return self.next_expiry if self._progress is _Progress.IDLE else NEVER

    def expect(self, expiry: int) -> None:
        """Notes that an item expires at this time."""
        if expiry < self.next_expiry:
            self.next_expiry = expiry
            self._agenda.expect(expiry)

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
        if next_expiry is not None:
            self.expect(next_expiry)
        self._resume()

    def all_departed(self, now_us: int) -> None:
        """Searches again at once if the last search found something, because there may be more."""
        if self._progress is _Progress.DEPARTING:
            self.expect(now_us - 1)
            self._resume()

    def _resume(self) -> None:
        """Items that came during the search count from now on."""
        self._progress = _Progress.IDLE
        self._agenda.expect(self.next_expiry)
