"""What the next pass of a queue must look at. A pass skips every partition in which nothing has changed or is due.

So the cost of a pass follows its requests, and not the number of partitions or of queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from querator.daemon.queue.partition import Partition

NEVER: Final = 1 << 62


class Agenda:
    """Shared by all partitions of a queue."""

    __slots__ = ("also_changed", "changed", "event_us", "look_at_all", "now_ns", "now_us")

    def __init__(self) -> None:
        self.now_us = self.now_ns = 0
        """The times of the last pass."""
        self.changed: Partition | None = None
        """The first partition that has a batch. Most passes have no other."""
        self.also_changed: list[Partition] = []
        """The other ones. A partition can be among them twice."""
        self.event_us = NEVER
        """A lower bound of when, on the queue's clock, a lease ends, an item expires or a pause ends."""
        self.look_at_all = True
        """Whether something happened that is no request, such as a read that ended or a partition that changed its
        state. It stays true while a partition is closed, items are scheduled, or a move waits for its next attempt.
        """

    def note_change(self, partition: Partition) -> None:
        """Called when a partition has got a batch."""
        if self.changed is None:
            self.changed = partition
        else:
            self.also_changed.append(partition)

    def take_changed(self) -> list[Partition]:
        """The partitions that have a batch. They are forgotten here. Do not change the list."""
        first, self.changed = self.changed, None
        if first is None:
            return []
        if not self.also_changed:
            return first.alone
        changed, self.also_changed = [first, *self.also_changed], []
        return changed

    def expect(self, event_us: int) -> None:
        if event_us < self.event_us:
            self.event_us = event_us
