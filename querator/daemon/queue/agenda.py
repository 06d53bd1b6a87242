"""What the next pass of a queue must look at. A pass skips every partition in which nothing has changed or is due.

So the cost of a pass follows its requests, and not the number of partitions or of queues.

With many active queues a pass takes most of its time to fetch its objects from memory, because they left the
processor's cache since the queue's last pass. So the agenda also says whether rarely used objects have anything to do.
Each of these notes is set by the object that it is about. It may be wrong in one direction only: it costs a needless
look then, and nothing is missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from querator.daemon.queue.partition import Partition

NEVER: Final = 1 << 62


class Agenda:
    """Shared by all partitions of a queue."""

    __slots__ = (
        "also_changed", "asks_driver", "changed", "event_us", "has_keys", "has_parked", "look_at_all", "now_ns",
        "now_us", "timeout_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.now_us = self.now_ns = 0
        """The times of the last pass."""
        self.changed: Partition | None = None
        """The first partition that has a batch. Most passes have no other."""
        self.also_changed: list[Partition] | None = None
        """The other ones, if there are any. A partition can be among them twice."""
        self.event_us = NEVER
        """A lower bound of when, on the queue's clock, a lease ends, an item expires or a pause ends."""
        self.timeout_ns = NEVER
        """A lower bound of when, on the monotonic clock, a request times out. Kept by `Deadlines`."""
        self.has_parked = False
        """False if no lease request is parked and no client id is in use. Set by `ParkedLeases`."""
        self.has_keys = False
        """False if no key was ever remembered. Set by `Remembered`."""
        self.asks_driver = False
        """False if there are no reads and no moves for the driver. Set by `PartitionFiles` and `MovesUnderWay`."""
        self.look_at_all = True
        """Whether something happened that is no request, such as a read that ended or a partition that changed its
        state. It stays true while a partition is closed, items are scheduled, or a move waits for its next attempt.
        """

    def note_change(self, partition: Partition) -> None:
        """Called when a partition has got a batch."""
        if self.changed is None:
            self.changed = partition
        elif self.also_changed is None:
            self.also_changed = [partition]
        else:
            self.also_changed.append(partition)

    def take_changed(self) -> list[Partition]:
        """The partitions that have a batch. They are forgotten here."""
        changed = [] if self.changed is None else [self.changed, *(self.also_changed or ())]
        self.changed = self.also_changed = None
        return changed

    def expect(self, event_us: int) -> None:
        if event_us < self.event_us:
            self.event_us = event_us
