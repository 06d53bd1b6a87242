"""What a standby learns from the owner's heartbeats: whether the owner is there, and how far the two clocks differ."""

from __future__ import annotations

import time
from collections import deque

from querator import limits
from querator.clock import Clock
from querator.daemon.archive.bucket import Bucket
from querator.daemon.archive.care import heartbeat
from querator.daemon.archive.objects import Heartbeat


class Heartbeats:
    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self.last: Heartbeat | None = None
        self._bucket = bucket
        self._clock = clock
        self._seen_at = time.monotonic()
        self._skews: deque[int] = deque(maxlen=limits.SKEW_SAMPLES_MAX)

    def look(self, epoch: int) -> None:
        """Blocking. Reads the heartbeat of the owner of this epoch. Raises Away."""
        beat = heartbeat(self._bucket)
        if beat is None or beat.epoch != epoch or beat == self.last:
            return
        if self.last is not None:
            # Our clock is ahead of the owner's by at most this much: it includes the time until the heartbeat was read.
            # The age of the first heartbeat is unknown, so it is left out.
            self._skews.append(self._clock.now_us() - beat.time)
        self.last, self._seen_at = beat, time.monotonic()

    def silence(self) -> float:
        """The seconds since the last heartbeat was seen, or since the start."""
        return time.monotonic() - self._seen_at

    def forget_silence(self) -> None:
        self._seen_at = time.monotonic()

    def skew_us(self) -> int | None:
        """The most by which our clock can be ahead of the owner's; None if that is not known yet."""
        return min(self._skews, default=None)

    def forget_skew(self) -> None:
        """Called when our clock was set."""
        self._skews.clear()
