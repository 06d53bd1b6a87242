"""What a standby learns from the owner's heartbeats: whether the owner is there, and how far the two clocks differ.

A heartbeat appeared between two looks of ours, so it bounds the owner's clock from both sides. The bounds are kept
relative to our monotonic clock, so setting our own clock does not disturb them. As long as the bounds of several
heartbeats agree, the tightest ones count. When a new heartbeat contradicts earlier ones, the owner's clock was moved,
and the earlier ones are forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from querator import limits
from querator.clock import Clock, ManualClock
from querator.daemon.archive.bucket import Bucket
from querator.daemon.archive.ledger import heartbeat
from querator.daemon.archive.objects import Heartbeat

_PUT_US = int(limits.SKEW_PUT_SECONDS * limits.US_PER_SECOND)


class _Bounds(NamedTuple):
    """How far the owner's clock is ahead of our monotonic clock, in µs."""

    least: int
    """The owner's clock showed the heartbeat's time before we read the heartbeat."""
    most: int
    """It was not there when we looked before, and putting it takes no longer than SKEW_PUT_SECONDS."""
    at: float


class Heartbeats:
    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self.last: Heartbeat | None = None
        self._bucket = bucket
        self._clock = clock
        self._ticks_us: Callable[[], int] = clock.now_us if isinstance(clock, ManualClock) else _monotonic_us
        self._seen_at = self._looked_at = time.monotonic()
        self._looked_us: int | None = None
        """When the last look began, by the monotonic clock."""
        self._bounds: list[_Bounds] = []

    def look(self, epoch: int) -> None:
        """Blocking. Reads the heartbeat of the owner of this epoch. Raises Away."""
        begun_us = self._ticks_us()
        beat = heartbeat(self._bucket)
        self._note_look()
        looked_us, self._looked_us = self._looked_us, begun_us
        if beat is None or beat.epoch != epoch:
            return
        if self.last is None or self.last.epoch != epoch or looked_us is None:
            self._bounds = []  # the age of the first heartbeat is unknown
        elif beat.beats > self.last.beats:
            self._add(_Bounds(beat.time - self._ticks_us(), beat.time + _PUT_US - looked_us, time.monotonic()))
        else:
            return  # we know it, or it was put late
        self.last, self._seen_at = beat, time.monotonic()

    def _note_look(self) -> None:
        """Time in which we did not look is no silence of the owner: if the store was away, it was away for both."""
        now = time.monotonic()
        self._seen_at += max(0.0, now - self._looked_at - 2 * limits.HEARTBEAT_LOOK_SECONDS)
        self._looked_at = now

    def _add(self, new: _Bounds) -> None:
        kept = [one for one in self._bounds if new.at - one.at < limits.SKEW_SECONDS_KEPT]
        if any(new.most < one.least or new.least > one.most for one in kept):
            kept = []
        self._bounds = [*kept, new]

    def silence(self) -> float:
        """The seconds since the last heartbeat was seen, or since the start, without those in which nobody looked."""
        return time.monotonic() - self._seen_at

    def forget_silence(self) -> None:
        self._seen_at = time.monotonic()

    def skew_us(self) -> int | None:
        """The most by which our clock can be ahead of the owner's; None if that is not known yet."""
        least = max([one.least for one in self._bounds], default=None)
        return None if least is None else self._clock.now_us() - self._ticks_us() - least

    def pause(self) -> float:
        """The seconds until the next look. The next heartbeat is awaited closely if no recent one was seen as soon as
        it was there, because the time until it is seen counts as a difference of the clocks."""
        error_us = min([one.most - one.least for one in self._bounds], default=2 * _PUT_US) - _PUT_US
        is_due = self.last is not None and self.silence() < 2 * self.last.every + limits.SKEW_PUT_SECONDS
        is_close = error_us <= limits.SKEW_ERROR_SECONDS_MAX * limits.US_PER_SECOND
        return limits.SKEW_LOOK_SECONDS if is_due and not is_close else limits.HEARTBEAT_LOOK_SECONDS


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1_000
