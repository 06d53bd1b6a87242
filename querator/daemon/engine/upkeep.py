"""Upkeep of the storages, in rounds: files catch up with the journal, and free space is watched."""

from __future__ import annotations

import asyncio
import logging
import time

from querator import limits
from querator.daemon import allocators
from querator.daemon.engine.disks import Disk
from querator.daemon.engine.turns import Turns
from querator.daemon.metrics import CHECKPOINT_SECONDS
from querator.daemon.queue import Logical, Partition, Read
from querator.daemon.store import RecordLost, Storage
from querator.items import Room
from querator.limits import (
    APPLY_BYTES,
    APPLY_RETRY_SECONDS_MAX,
    BACK_PRESSURE_SECONDS,
    LOOK_AFTER_BYTES,
    RATE_SAMPLE_US,
    ROOM_CHECK_ROUNDS,
    UPKEEP_SECONDS,
)

log = logging.getLogger("querator.daemon.engine")


class Upkeep:
    def __init__(self, turns: Turns, unapplied_bytes_max: int) -> None:
        self._turns = turns
        self._unapplied_bytes_max = unapplied_bytes_max
        self._loop = turns.loop
        self._rounds = 0
        self._sampled_at_us = 0
        self._timer = self._loop.call_later(UPKEEP_SECONDS, self._run_round)
        turns.on_growth = self.look_after

    def close(self) -> None:
        self._timer.cancel()
        for disk in self._turns.disks.values():
            if disk.easing is not None:
                disk.easing.cancel()

    def _run_round(self) -> None:
        self._timer = self._loop.call_later(UPKEEP_SECONDS, self._run_round)
        self._rounds += 1
        for disk in self._turns.disks.values():
            disk.begin_round()
            if self._rounds % limits.FORGET_LOOK_ROUNDS == 0:
                self._forget_old_keys(disk)
            self.look_after(disk)
            self._note_acknowledged(disk)
            if self._rounds % ROOM_CHECK_ROUNDS == 1:
                self._check_room(disk)
        now_us = self._turns.clock.now_us()
        if not 0 <= now_us - self._sampled_at_us < RATE_SAMPLE_US:
            self._sampled_at_us = now_us
            for logical in self._turns.logicals:
                logical.sample_rates(now_us)

    def _note_acknowledged(self, disk: Disk) -> None:
        """Has the storage note how far its journal was written. The first round without a write does it again, because
        a write may have ended after the last note.

        Not on the keeper's thread: a note would wait there until a large file has caught up.
        """
        if disk.noting or disk.idle_rounds > 1:
            return
        disk.noting = True
        future = self._loop.run_in_executor(self._turns.threads.pool, disk.storage.note_acknowledged)
        future.add_done_callback(lambda done: _noted(disk, done))

    # -- room

    def _check_room(self, disk: Disk) -> None:
        if disk.checking_room:
            return
        disk.checking_room = True
        future = self._loop.run_in_executor(self._turns.threads.pool, disk.storage.check_room)
        future.add_done_callback(lambda done: self._room_checked(disk, done))

    def _room_checked(self, disk: Disk, future: asyncio.Future[Room]) -> None:
        disk.checking_room = False
        if future.cancelled():
            return  # the daemon stops
        # A directory that cannot be read makes the next write fail, so nothing is reported here.
        disk.room = future.result() if future.exception() is None else None
        disk.report_room((one for _, one in self._turns.partitions_on(disk)), self._turns.clock.now_us())

    def rooms(self) -> dict[str, Room]:
        """The free space of each storage, by the storage's name."""
        return {name: disk.room for name, disk in self._turns.disks.items() if disk.room is not None}

    def storage_warnings(self) -> list[str]:
        """Warnings about storages that still take writes."""
        return [disk.warning for disk in self._turns.disks.values() if disk.warning and not disk.storage.shortage]

    # -- files catch up with the journal

    def is_catching_up(self, storage_name: str) -> bool:
        disk = self._turns.disks.get(storage_name)
        return disk is not None and disk.catching_up

    def relieve(self, storage_name: str, bytes_max: int) -> int:
        """Returns how many bytes the storage's files lack. If it is more than `bytes_max`, files start to catch up.

        A file that cannot be written at present does not count: it may never recover, and only its own queue suffers.
        """
        disk = self._turns.disks.get(storage_name)
        if disk is None:
            return 0  # an unusable storage gets no writes; the queue may have partitions elsewhere
        stores = [partition.store for partition in disk.behind if not partition.health.apply_failures]
        unapplied_bytes = sum([store.unapplied_bytes for store in stores if store is not None])
        if unapplied_bytes > bytes_max and not disk.catching_up:
            self.look_after(disk, hurry=True)
        return unapplied_bytes

    def look_after(self, disk: Disk, hurry: bool = False) -> None:
        """Chooses the files that catch up now: all files if many bytes are unapplied or the storage is idle, otherwise
        those that keep old journal segments from being trimmed. Items that come and go between two rounds never reach a
        file.
        """
        storage = disk.storage
        disk.look_at_bytes = disk.absorbed_bytes + LOOK_AFTER_BYTES
        holds_much = disk.held_bytes >= self._unapplied_bytes_max or disk.memory_bytes >= APPLY_BYTES
        left_bytes = disk.left_bytes
        everyone = hurry or holds_much or disk.leaves_much or disk.is_idle
        if not disk.due and disk.behind:
            self._skip(disk)
            lagging = storage.lagging(left_bytes)
            for partition, logical in disk.behind.items():
                if everyone or partition.placement.uuid in lagging:
                    disk.due.append((logical, partition))
        self._catch_up_next(disk)
        self._admit(disk)
        if storage.wants_preparing and not disk.preparing and left_bytes < limits.SEGMENT_BYTES_MAX:
            disk.preparing = True
            future = self._loop.run_in_executor(disk.keeper, storage.prepare)
            future.add_done_callback(lambda done: _prepared(disk, done))
        if everyone and not disk.stores_behind() and disk.should_roll():
            disk.keeper.submit(_on_idle, storage)

    def _admit(self, disk: Disk) -> None:
        """Makes producers wait while too much is in memory, and lets them in again."""
        is_closed = disk.back_pressure.is_closed(*self._held(disk), disk.absorbed_bytes, time.monotonic())
        if is_closed or disk.is_congested:
            for logical, partition in self._turns.partitions_on(disk):
                if partition.health.congested and not is_closed:
                    logical.wake()
                partition.health.set_congested(is_closed)
            disk.is_congested = is_closed
        if disk.easing is not None:
            disk.easing.cancel()
        disk.easing = self._loop.call_later(BACK_PRESSURE_SECONDS, self._admit, disk) if is_closed else None

    def _held(self, disk: Disk) -> tuple[int, int]:
        """The bytes that wait for an apply, and their bound: those in memory or those left in the journal, whichever is
        nearer to its bound."""
        held, left = disk.held_bytes, disk.left_bytes
        held_max, left_max = self._unapplied_bytes_max, disk.left_bytes_max
        return (held, held_max) if held * left_max >= left * held_max else (left, left_max)

    def _forget_old_keys(self, disk: Disk) -> None:
        """Chooses the files from which expired request ids have not been deleted for some time."""
        now_us = self._turns.clock.now_us()
        for logical, partition in self._turns.partitions_on(disk):
            if _forgets(partition, now_us):
                disk.due.append((logical, partition))

    def _skip(self, disk: Disk) -> None:
        """Lets old segments go that no file needs. A busy partition is empty only now and then, so every look tries it,
        long before the file would have to catch up."""
        old = disk.storage.holding()
        stores = [store for one in disk.behind if one.placement.uuid in old and (store := one.store) is not None]
        if any([store.skip() for store in stores]):
            disk.keeper.submit(disk.storage.trim)

    def _catch_up_next(self, disk: Disk) -> None:
        has_skipped = False
        while disk.due and not disk.catching_up:
            logical, partition = disk.due.popleft()
            # Asked here and not earlier: while other files caught up, the last items may have left this partition.
            has_skipped = (partition.store is not None and partition.store.skip()) or has_skipped
            self._catch_up(disk, logical, partition)  # does nothing if no bytes are left to apply
        if has_skipped:
            disk.keeper.submit(disk.storage.trim)

    def _catch_up(self, disk: Disk, logical: Logical, partition: Partition) -> None:
        """Applies to one partition's file what it lacks, and deletes expired request ids from it."""
        store = partition.store if logical in self._turns.logicals else None
        now_us = self._turns.clock.now_us()
        forgets = _forgets(partition, now_us)
        if store is None or self._turns.threads.is_busy(partition) or not (store.unapplied_bytes or forgets):
            return
        if partition.health.apply_retry_at > time.monotonic():
            return

        def work() -> int:
            left_bytes = store.catch_up()
            store.checkpoint()
            if forgets:
                store.forget(now_us)
            return left_bytes

        def failed(error: Exception) -> None:
            disk.catching_up = False
            disk.back_pressure.ends(time.monotonic())
            self._catch_up_next(disk)
            if isinstance(error, RecordLost) or store.file_replaced():
                logical.files.fail(partition, str(error))
                return
            # The journal still has everything, so the queue keeps working. Upkeep tries again, less and less often.
            wait = min(APPLY_RETRY_SECONDS_MAX, UPKEEP_SECONDS * 2 ** (partition.health.apply_failures + 1))
            partition.health.apply_failed(str(error), time.monotonic() + wait)
            log.warning(
                "cannot apply to the file yet",
                extra={"queue": logical.queue.name, "partition": partition.number, "reason": str(error)},
            )

        started = time.perf_counter()
        disk.catching_up = True
        disk.back_pressure.begins(store.next_bytes, *self._held(disk), disk.absorbed_bytes, time.monotonic())

        def done(left_bytes: int) -> None:
            disk.catching_up = False
            disk.back_pressure.ends(time.monotonic(), left_bytes)
            CHECKPOINT_SECONDS.observe(time.perf_counter() - started)
            partition.applied()
            if forgets:
                partition.health.old_keys_deleted(now_us)
            self._catch_up_next(disk)
            if not disk.catching_up:
                # Much may have arrived meanwhile, or producers wait for room: do not wait for the next round.
                self._loop.call_soon(self.look_after, disk)

        self._turns.threads.run(Read(partition, None, work, done, failed, upkeep=True))


def _forgets(partition: Partition, now_us: int) -> bool:
    """Whether expired request ids should be deleted from the partition's file, or the file closed as it is empty."""
    store = partition.store
    if store is None or store.is_resting:
        return False
    since_us = abs(now_us - partition.health.old_keys_deleted_at)  # abs: a clock may go back
    return store.is_blank or since_us >= limits.FORGET_EVERY_US


def _noted(disk: Disk, future: asyncio.Future[None]) -> None:
    disk.noting = False
    if not future.cancelled() and (error := future.exception()):
        log.warning("storage cannot note its writes", extra={"storage": disk.storage.name, "reason": str(error)})


def _prepared(disk: Disk, future: asyncio.Future[None]) -> None:
    disk.preparing = False
    if error := future.exception():
        log.warning("storage cannot be prepared", extra={"storage": disk.storage.name, "reason": str(error)})


def _on_idle(storage: Storage) -> None:
    """Blocking. Releases journal segments and memory of a storage whose files have everything."""
    storage.roll()
    allocators.give_back()
