"""A queue on its way through a turn. A module of its own, so that it is compiled: a turn has one for each queue."""

from __future__ import annotations

import asyncio

from querator.daemon.queue import NEVER, Logical, Partition, Pass


class Flight:
    """A queue, the pass that waits until its disks have written its batches, and the timer of its next pass."""

    __slots__ = ("disks_left", "doubt", "failed", "logical", "plan", "timer", "timer_ns", "timer_us")

    def __init__(self, logical: Logical) -> None:
        self.logical = logical
        self.plan: Pass = logical.current_pass
        self.disks_left = 0
        self.failed: dict[Partition, str] = {}
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
