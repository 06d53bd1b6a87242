"""A queue on its way through a turn. A module of its own, so that it is compiled: a turn has one for each queue."""

from __future__ import annotations

import asyncio
from typing import Final

from querator.daemon.queue import NEVER, Logical, Partition, Pass

NO_FAILURES: Final[dict[Partition, str]] = {}
"""Never changes. One for all queues, because one that all passes look at stays in the processor's cache."""


class Flight:
    """A queue, the pass that waits until its disks have written its batches, and the timer of its next pass."""

    __slots__ = (
        "disks_left", "doubt", "failed", "is_dirty", "is_writing", "logical", "plan", "timer", "timer_ns", "timer_us",
    )  # fmt: skip

    def __init__(self, logical: Logical) -> None:
        self.logical = logical
        self.plan: Pass = logical.current_pass
        self.is_dirty = False
        """Whether the queue gets a pass in the next turn, or after the pass that is being written."""
        self.is_writing = False
        """Whether the pass waits for its disks, or for the gate."""
        self.disks_left = 0
        self.failed = NO_FAILURES
        """Why the batches of some partitions are not durable."""
        self.doubt = ""
        """Why the pass may not be acknowledged, although it is durable."""
        self.timer: asyncio.TimerHandle | None = None
        self.timer_ns = NEVER
        self.timer_us = NEVER
        """When the timer fires, on the monotonic clock and on the queue's clock."""

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.timer_ns, self.timer_us = None, NEVER, NEVER
