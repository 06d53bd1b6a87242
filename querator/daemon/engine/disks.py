"""A storage as the engine sees it: its writes, its two threads, and its free space as upkeep last saw it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from querator import limits
from querator.clock import perf_counter
from querator.daemon import priority
from querator.daemon.engine.backpressure import BackPressure
from querator.daemon.engine.flights import Flight
from querator.daemon.queue import Logical, Partition
from querator.daemon.store import Storage, Store
from querator.items import Room

log = logging.getLogger("querator.daemon.engine")


class Disk:
    """A storage and its writes: one write at a time, on the loop while the storage is fast."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.writing = False
        self.preparing = False
        self.noting = False
        self.flights: list[Flight] = []
        """Passes that the next write makes durable."""
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="querator-writer")
        """Writes have a thread of their own, so that no acknowledgement waits behind reads."""
        self.keeper = ThreadPoolExecutor(1, thread_name_prefix="querator-keeper", initializer=priority.lower)
        """Upkeep has one thread per storage, so that it does one thing at a time."""
        self.behind: dict[Partition, Logical] = {}
        """The partitions that were written to and whose files may lack something. Upkeep looks at these only, because
        thousands of idle partitions in every round would keep the loop busy."""
        self.is_congested = False
        """Whether producers wait until files have caught up."""
        self.due: deque[tuple[Logical, Partition]] = deque()
        """Partitions whose files catch up next, one after the other, so that a read waits for one file only."""
        self.catching_up = False
        self.back_pressure = BackPressure()
        self.absorbed_bytes = 0
        """Journal bytes that the storage has taken since the start."""
        self.look_at_bytes = 0
        """Upkeep looks at the storage when it has taken this many bytes, without waiting for its next round."""
        self.easing: asyncio.TimerHandle | None = None
        """The next look at whether producers still wait."""
        self.seconds = 0.0
        self.seconds_mean = 0.0
        self.writes = 0
        self.room: Room | None = None
        self.room_state = "has room again"
        self._room_reported: tuple[str, int, str] = ("", 0, "")
        self.shortage_since = 0
        self.checking_room = False
        self.idle_rounds = 0
        """Rounds of upkeep since the last write. Rounds, not time: a process that was stopped was not idle."""
        self._writes_seen = 0
        self._writes_rolled = 0

    def write(self, taken: object, on_loop: bool = False) -> Exception | None:
        """Blocking. Writes a batch and returns the error, if any. Measures the disk alone, not the thread switch."""
        started = perf_counter()
        try:
            self.storage.write(taken, on_loop)
        except Exception as error:
            return error
        finally:
            self.seconds = perf_counter() - started
            self.seconds_mean += (self.seconds - self.seconds_mean) * 0.05
            self.writes += 1
        return None

    def begin_round(self) -> None:
        """Counts a round of upkeep."""
        self.idle_rounds = self.idle_rounds + 1 if self.writes == self._writes_seen else 0
        self._writes_seen = self.writes

    @property
    def is_idle(self) -> bool:
        """Whether nothing has been written for some rounds. The first write ends this, without waiting for a round."""
        return self.idle_rounds >= limits.APPLY_IDLE_ROUNDS and self.writes == self._writes_seen

    def stores_behind(self) -> list[Store]:
        """The open stores whose files lack something."""
        for partition, store in [(partition, partition.store) for partition in self.behind]:
            is_here = partition.storage == self.storage.name
            if store is None or not store.unapplied_bytes or not is_here:
                del self.behind[partition]
        return [store for partition in self.behind if (store := partition.store) is not None]

    @property
    def held_bytes(self) -> int:
        """How many bytes of the journal are in memory because they are not applied yet."""
        return sum([store.held_bytes for store in self.stores_behind()])

    @property
    def left_bytes(self) -> int:
        """How many bytes of the journal have unapplied items that memory does not have."""
        return sum([store.left_bytes for store in self.stores_behind()])

    @property
    def left_bytes_max(self) -> int:
        """How many there may be: as many as the files take in a few seconds, if there is space for them there."""
        room = 0 if self.room is None or self.room.is_low else self.room.free_bytes // limits.LEFT_ROOM_SHARE
        in_time = int(limits.LEFT_SECONDS_MAX / self.back_pressure.left_seconds_per_byte)
        return max(min(room, in_time), limits.UNAPPLIED_BYTES_MAX)

    @property
    def leaves_much(self) -> bool:
        """Whether items that are left in the journal are applied now. The first of them are applied early: how fast
        that was says how many may be left there."""
        enough = self.left_bytes_max // 2
        if not self.back_pressure.is_left_measured:
            enough = min(enough, limits.LEFT_DELTA_BYTES)
        return self.left_bytes >= enough

    @property
    def memory_bytes(self) -> int:
        """About how much memory everything that is not applied yet takes."""
        return sum([store.memory_bytes for store in self.stores_behind()])

    def should_roll(self) -> bool:
        """Returns whether anything was written since the last call."""
        has_new, self._writes_rolled = self._writes_rolled < self.writes, self.writes
        return has_new

    @property
    def warning(self) -> str:
        """Says that the storage is full or nearly full; empty if it is not.

        The text is a label of a metric, where every new text is a new series. So it has a percentage, not bytes.
        """
        if self.room is None or not self.room.is_low:
            return ""
        if not self.room.free_bytes:
            return f"storage '{self.storage.name}' is full"
        return f"storage '{self.storage.name}' is nearly full: less than {self.room.free_percent + 1} % is left"

    @property
    def is_slow(self) -> bool:
        return self.seconds_mean > limits.INLINE_WRITE_SECONDS_MAX

    def report_room(self, partitions: Iterable[Partition], now_us: int) -> None:
        """Tells the log and the storage's partitions when the storage is full or nearly full, and when it no longer
        is."""
        shortage, warning = self.storage.shortage, self.warning
        is_full = shortage or (self.room is not None and not self.room.free_bytes)
        state = "is full" if is_full else "is nearly full" if warning else "has room again"
        if bool(shortage) != bool(self.shortage_since):
            self.shortage_since = now_us if shortage else 0
        if state != self.room_state:
            self.room_state = state
            level = logging.ERROR if is_full else logging.WARNING if warning else logging.INFO
            extra = {"storage": self.storage.name, "reason": shortage or str(self.room)}
            log.log(level, f"storage {state}", extra=extra)
        report = (shortage, self.shortage_since, warning)
        if report != self._room_reported or shortage or warning:  # a new partition expects that there is room
            self._room_reported = report
            for partition in partitions:
                partition.health.set_room(*report)

    def close(self) -> None:
        self.writer.shutdown(wait=True)
        self.keeper.shutdown(wait=True)
