"""The driver of all Logicals: turns of the event loop, writes, worker threads, timers.

In one turn every queue that has something to do plans its pass, then each storage that was touched makes everything of
that turn durable with one write, then the passes are settled. A storage whose disk is fast is written on the loop
itself, because handing over to a thread and back costs more than the fsync; one that is slow is written in a thread,
and what arrives meanwhile gathers for its next write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from querator import limits
from querator.clock import Clock, ManualClock
from querator.daemon import allocators, priority
from querator.daemon.metrics import CHECKPOINT_SECONDS, COMMIT_SECONDS, PASS_SECONDS
from querator.daemon.queue.logical import Logical, Pass
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.requests import Move, Read
from querator.daemon.queue.schedule import NEVER
from querator.daemon.store import Storage, StorageError
from querator.items import Room
from querator.limits import (
    APPLY_BYTES,
    APPLY_RETRY_SECONDS_MAX,
    FORGET_EVERY_US,
    INLINE_WRITE_SECONDS_MAX,
    RATE_SAMPLE_US,
    ROOM_CHECK_ROUNDS,
    UPKEEP_SECONDS,
    WORKER_THREADS,
)

log = logging.getLogger(__name__)


class _Flight:
    """A pass between plan and settle, and the disks it still waits for."""

    __slots__ = ("failed", "logical", "plan", "waits_for")

    def __init__(self, logical: Logical, plan: Pass) -> None:
        self.logical = logical
        self.plan = plan
        self.waits_for = 0
        self.failed: dict[Partition, str] = {}

    def lands(self) -> bool:
        """One disk less to wait for; whether it was the last."""
        self.waits_for -= 1
        return self.waits_for == 0


class Disk:
    """A storage and its writes: one at a time, on the loop while it is fast."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.writing = False
        self.preparing = False
        self.flights: list[_Flight] = []
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="querator-writer")
        """A thread of its own: what waits to be acknowledged must not wait behind reads."""
        self.keeper = ThreadPoolExecutor(1, thread_name_prefix="querator-keeper", initializer=priority.stand_back)
        """For upkeep, one thing at a time."""
        self.due: deque[tuple[Logical, Partition]] = deque()
        """Whose files are brought up to date next, one after the other: a read of theirs need not wait for all."""
        self.catching_up = False
        self.seconds = 0.0
        self.seconds_mean = 0.0
        self.writes = 0
        self.room: Room | None = None
        self.told_room = "has room again"
        self.shortage_since = 0
        self.checking_room = False
        self.idle_rounds = 0
        """Rounds of upkeep since the last write. Not a time: a process that was stopped was not idle."""
        self._writes_seen = 0
        self._rolled_after = 0

    def write(self, taken: object, on_loop: bool = False) -> Exception | None:
        """Blocking. Measures the disk alone, not the way to a thread and back."""
        started = time.perf_counter()
        try:
            self.storage.write(taken, on_loop)
        except Exception as error:
            return error
        finally:
            self.seconds = time.perf_counter() - started
            self.seconds_mean += (self.seconds - self.seconds_mean) * 0.05
            self.writes += 1
        return None

    def count_round(self) -> None:
        """A round of upkeep begins."""
        self.idle_rounds = self.idle_rounds + 1 if self.writes == self._writes_seen else 0
        self._writes_seen = self.writes

    def roll_once(self) -> bool:
        """Whether something was written since this was asked last."""
        is_new, self._rolled_after = self._rolled_after < self.writes, self.writes
        return is_new

    @property
    def warning(self) -> str:
        if self.room is None or not self.room.is_low:
            return ""
        return f"storage '{self.storage.name}' is nearly full: {self.room}"

    @property
    def is_slow(self) -> bool:
        return self.seconds_mean > INLINE_WRITE_SECONDS_MAX


class Engine:
    def __init__(
        self,
        clock: Clock,
        storages: Iterable[Storage],
        deliver: Callable[[Logical, Move], None],
        unapplied_bytes_max: int,
    ) -> None:
        self.clock = clock
        self.disks = {storage.name: Disk(storage) for storage in storages}
        self.logicals: set[Logical] = set()
        self._deliver = deliver
        self._unapplied_bytes_max = unapplied_bytes_max
        self.loop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(
            WORKER_THREADS, thread_name_prefix="querator-worker", initializer=priority.stand_back
        )
        self._dirty: dict[Logical, None] = {}
        self._turn_scheduled = False
        self._several_answered = False
        self._changed = asyncio.Event()
        self._in_flight: set[Logical] = set()
        self._reads: dict[Partition, deque[Read]] = {}
        self._timers: dict[Logical, tuple[int, asyncio.TimerHandle]] = {}
        self._rounds = 0
        self._upkeep = self.loop.call_later(UPKEEP_SECONDS, self._keep_up)
        self._sampled_at_us = 0

    def add_disk(self, storage: Storage) -> None:
        self.disks[storage.name] = Disk(storage)

    # -- turns

    def add(self, logical: Logical) -> None:
        self.logicals.add(logical)
        self.wake(logical)

    def remove(self, logical: Logical) -> None:
        self.logicals.discard(logical)
        self._dirty.pop(logical, None)
        timer = self._timers.pop(logical, None)
        if timer is not None:
            timer[1].cancel()

    def wake(self, logical: Logical) -> None:
        self._dirty[logical] = None
        if not self._turn_scheduled:
            self._turn_scheduled = True
            # Those who were answered together are about to ask again: a last look at the sockets before the turn lets
            # more of them share its write. One client alone would only wait for it.
            self.loop.call_soon(self._turn_soon if self._several_answered else self._turn)

    def _turn_soon(self) -> None:
        self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        started = time.perf_counter()
        now_us, now_ns = self.clock.now_us(), time.monotonic_ns()
        dirty, self._dirty = self._dirty, {}
        flights: list[_Flight] = []
        for logical in dirty:
            if logical in self._in_flight:
                self._dirty[logical] = None  # its turn comes when it has been settled
            elif logical in self.logicals:
                flights.append(_Flight(logical, self._plan(logical, now_us, now_ns)))
        planned = time.perf_counter()
        answers = 0
        touched: dict[str, Disk] = {}
        for flight in flights:
            answers += len(flight.plan.answers)
            partitions = flight.plan.partitions
            for name in {partition.placement.storage for partition in partitions}:
                disk = touched[name] = self.disks[name]
                disk.flights.append(flight)
                flight.waits_for += 1
            if partitions:
                self._in_flight.add(flight.logical)
            else:
                flight.logical.settle(flight.plan, flight.failed)
                self._follow_up(flight.logical)
        self._several_answered = answers > 1
        for disk in touched.values():
            self._write(disk)
        PASS_SECONDS.observe(planned - started)
        self._changed.set()

    def _plan(self, logical: Logical, now_us: int, now_ns: int) -> Pass:
        try:
            return logical.plan(now_us, now_ns)
        except Exception:
            log.exception("a pass broke off", extra={"queue": logical.queue.name})
            return logical.give_up()

    def _write(self, disk: Disk) -> None:
        """Everything committed to this storage so far becomes durable; while a write runs, the next one gathers."""
        if disk.writing:
            return
        flights, disk.flights = disk.flights, []
        taken = disk.storage.take()

        def ended(error: BaseException | None) -> None:
            disk.writing = False
            if error is not None:
                self._write_failed(disk, flights, error)
            landed = [flight for flight in flights if flight.lands()]
            try:
                for flight in landed:
                    self._in_flight.discard(flight.logical)
                    flight.logical.settle(flight.plan, flight.failed)
            finally:
                # Even if an answer breaks off, which is a defect: what is durable must not be forgotten.
                if error is None and taken is not None:
                    disk.storage.absorb(taken)
            for flight in landed:
                self._follow_up(flight.logical)
            COMMIT_SECONDS.observe(disk.seconds)
            if disk.flights:
                self._write(disk)
            self._changed.set()

        if taken is None:
            ended(None)
        elif disk.is_slow:
            disk.writing = True
            future = self.loop.run_in_executor(disk.writer, disk.write, taken)
            future.add_done_callback(lambda done: ended(done.result()))
        else:
            ended(disk.write(taken, on_loop=True))

    def _write_failed(self, disk: Disk, flights: list[_Flight], error: BaseException) -> None:
        log.error("storage failed", extra={"storage": disk.storage.name, "reason": str(error)})
        concerned = error.uuids if isinstance(error, StorageError) else frozenset()
        for flight in flights:
            for partition in flight.plan.partitions:
                placement = partition.placement
                if placement.storage == disk.storage.name and (not concerned or placement.uuid in concerned):
                    flight.failed[partition] = str(error)
        if disk.storage.failure:
            self._fail_all(disk, str(error))
        self._tell_room(disk)

    def _fail_all(self, disk: Disk, reason: str) -> None:
        """The whole storage can no longer be trusted: every partition in it must be read again."""
        for logical, partition in self._partitions_on(disk):
            if partition.store is not None:
                logical.partition_failed(partition, reason)

    def _follow_up(self, logical: Logical) -> None:
        """Everybody has their answer; now for what the pass asked of others."""
        if logical.reads:
            for read in logical.take_reads():
                self.read(read)
        if logical.moves:
            for move in logical.take_moves():
                self._deliver(logical, move)
        if logical in self._dirty:
            self.wake(logical)
        self._arm(logical)

    # -- worker threads

    def read(self, read: Read) -> None:
        waiting = self._reads.get(read.partition)
        if waiting is None:
            self._reads[read.partition] = deque()
            self._run_read(read)
        else:
            waiting.append(read)

    def _run_read(self, read: Read) -> None:
        def work() -> object:
            if read.flush is not None:
                read.flush.flush()
            return read.work()

        threads = self.disks[read.partition.placement.storage].keeper if read.upkeep else self._workers
        future = self.loop.run_in_executor(threads, work)
        future.add_done_callback(lambda done: self._read_ended(read, done))

    def _read_ended(self, read: Read, future: asyncio.Future[object]) -> None:
        error = future.exception()
        if error is None:
            if read.flush is not None:
                read.partition.applied()
            read.done(future.result())
        else:
            if not isinstance(error, StorageError):
                log.error("reading failed", extra={"partition": read.partition.number}, exc_info=error)
            read.failed(error if isinstance(error, Exception) else RuntimeError(str(error)))
        waiting = self._reads[read.partition]
        if waiting:
            self._run_read(waiting.popleft())
        else:
            del self._reads[read.partition]
        self._changed.set()

    # -- time

    def _arm(self, logical: Logical) -> None:
        """Wakes the logical when it next has something to do by itself."""
        due_ns = logical.next_event_ns()
        if not isinstance(self.clock, ManualClock):
            due_us = logical.next_event_us()
            if due_us < NEVER:
                due_ns = min(due_ns, time.monotonic_ns() + (due_us + 1 - self.clock.now_us()) * 1_000)
        if due_ns >= NEVER:
            return
        timer = self._timers.get(logical)
        if timer is not None:
            if timer[0] <= due_ns:
                return  # it will find out then that it is early
            timer[1].cancel()
        delay = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        self._timers[logical] = due_ns, self.loop.call_later(delay, self._timer_fired, logical)

    def _timer_fired(self, logical: Logical) -> None:
        self._timers.pop(logical, None)
        if logical in self.logicals:
            self.wake(logical)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds that only turns and reads can bring about."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def until_idle(self) -> None:
        """After the test clock was moved: until everything that was due, and what it caused, is done."""
        now_us = self.clock.now_us()

        def is_idle() -> bool:
            due = [logical for logical in self.logicals if logical.next_event_us() < now_us]
            for logical in due:
                self.wake(logical)
            busy = self._dirty or self._in_flight or self._reads or not all(q.is_idle() for q in self.logicals)
            return not busy and not due

        for logical in self.logicals:
            self.wake(logical)
        await self.until(is_idle)

    # -- upkeep

    def _keep_up(self) -> None:
        """Has files catch up with the journal when memory holds much of it, or there is nothing else to do."""
        self._upkeep = self.loop.call_later(UPKEEP_SECONDS, self._keep_up)
        self._rounds += 1
        for disk in self.disks.values():
            disk.count_round()
            self._look_after(disk)
            if self._rounds % ROOM_CHECK_ROUNDS == 0:
                self._check_room(disk)
        now_us = self.clock.now_us()
        if not 0 <= now_us - self._sampled_at_us < RATE_SAMPLE_US:
            self._sampled_at_us = now_us
            for logical in self.logicals:
                logical.recent.sample(now_us, logical.counters)

    def _check_room(self, disk: Disk) -> None:
        if disk.checking_room:
            return
        disk.checking_room = True
        future = self.loop.run_in_executor(self._workers, disk.storage.check_room)
        future.add_done_callback(lambda done: self._room_checked(disk, done))

    def _room_checked(self, disk: Disk, future: asyncio.Future[Room]) -> None:
        disk.checking_room = False
        if future.cancelled():
            return  # the daemon stops
        # A directory that cannot be looked at shows in the next write.
        disk.room = future.result() if future.exception() is None else None
        self._tell_room(disk)

    def storage_warnings(self) -> list[str]:
        """What is wrong with storages that still take writes."""
        return [disk.warning for disk in self.disks.values() if disk.warning and not disk.storage.shortage]

    def _tell_room(self, disk: Disk) -> None:
        """Tells the partitions of a storage, and the log, when the storage is full or nearly full, and when it no
        longer is."""
        shortage, warning = disk.storage.shortage, disk.warning
        state = "is full" if shortage else "is nearly full" if warning else "has room again"
        if state != disk.told_room:
            disk.told_room = state
            disk.shortage_since = self.clock.now_us() if shortage else 0
            level = logging.ERROR if shortage else logging.WARNING if warning else logging.INFO
            extra = {"storage": disk.storage.name, "reason": shortage or str(disk.room)}
            log.log(level, f"storage {state}", extra=extra)
        for _, partition in self._partitions_on(disk):
            partition.set_room(shortage, disk.shortage_since, warning)

    def is_catching_up(self, storage_name: str) -> bool:
        disk = self.disks.get(storage_name)
        return disk is not None and disk.catching_up

    def relieve(self, storage_name: str, bytes_max: int) -> int:
        """How much the files lack; if it is more than that, has them catch up.

        A file that takes nothing in at present does not count: that may take for ever, and concerns its own queue.
        """
        disk = self.disks.get(storage_name)
        if disk is None:
            return 0  # it cannot be used, so that nothing gets there; the queue may have other partitions
        stores = [partition.store for _, partition in self._partitions_on(disk) if not partition.apply_failures]
        waiting_bytes = sum([store.unapplied_bytes for store in stores if store is not None])
        if waiting_bytes > bytes_max and not disk.catching_up:
            self._look_after(disk, hurry=True)
        return waiting_bytes

    def _look_after(self, disk: Disk, hurry: bool = False) -> None:
        """What is held must get out of memory, and what lags behind out of the journal. Items that came and went in
        between cost neither, so that they are left to themselves."""
        storage = disk.storage
        congested = storage.held_bytes >= self._unapplied_bytes_max
        is_much = congested or storage.memory_bytes >= APPLY_BYTES
        everyone = hurry or is_much or disk.idle_rounds >= limits.APPLY_IDLE_ROUNDS
        lagging = storage.lagging()
        is_over = not disk.due
        for logical, partition in self._partitions_on(disk):
            if partition.congested and not congested:
                self.wake(logical)
            partition.set_congested(congested)
            if is_over and (everyone or partition.placement.uuid in lagging):
                disk.due.append((logical, partition))
        self._catch_up_next(disk)
        # In the first round without a write, too: the next write would prove that the last one was acknowledged.
        if (storage.wants_preparing or disk.idle_rounds == 1) and not disk.preparing:
            disk.preparing = True
            future = self.loop.run_in_executor(disk.keeper, storage.prepare)
            future.add_done_callback(lambda done: self._prepared(disk, done))
        if everyone and not storage.unapplied_bytes and disk.roll_once():
            disk.keeper.submit(_come_to_rest, storage)

    def _prepared(self, disk: Disk, future: asyncio.Future[None]) -> None:
        disk.preparing = False
        if error := future.exception():
            log.warning("storage cannot be prepared", extra={"storage": disk.storage.name, "reason": str(error)})

    def _partitions_on(self, disk: Disk) -> Iterator[tuple[Logical, Partition]]:
        for logical in self.logicals:
            for partition in logical.partitions:
                if partition.placement.storage == disk.storage.name:
                    yield logical, partition

    def _catch_up_next(self, disk: Disk) -> None:
        while disk.due and not disk.catching_up:
            self._catch_up(disk, *disk.due.popleft())

    def _catch_up(self, disk: Disk, logical: Logical, partition: Partition) -> None:
        """Applies to one partition's file what it does not have yet, and lets it forget what is old."""
        store = partition.store if logical in self.logicals else None
        now_us = self.clock.now_us()
        forgets = abs(now_us - partition.forgot_at) >= FORGET_EVERY_US  # a clock may go back
        if store is None or partition in self._reads or not (store.unapplied_bytes or forgets):
            return
        if partition.apply_after > time.monotonic():
            return

        def work() -> None:
            store.checkpoint()
            if forgets:
                store.forget(now_us)

        def failed(error: Exception) -> None:
            disk.catching_up = False
            self._catch_up_next(disk)
            if store.file_replaced():
                logical.partition_failed(partition, str(error))
                return
            # The journal still has it all, so the queue goes on; upkeep tries again, less and less often.
            wait = min(APPLY_RETRY_SECONDS_MAX, UPKEEP_SECONDS * 2 ** (partition.apply_failures + 1))
            partition.apply_failed(str(error), time.monotonic() + wait)
            log.warning(
                "cannot apply to the file yet",
                extra={"queue": logical.queue.name, "partition": partition.number, "reason": str(error)},
            )

        started = time.perf_counter()
        disk.catching_up = True

        def done(result: object) -> None:
            disk.catching_up = False
            CHECKPOINT_SECONDS.observe(time.perf_counter() - started)
            if forgets:
                partition.old_keys_dropped(now_us)
            self._catch_up_next(disk)
            if not disk.catching_up and (partition.congested or disk.storage.memory_bytes >= APPLY_BYTES):
                # Much has come meanwhile, or somebody waits for room: not only in the next round.
                self.loop.call_soon(self._look_after, disk)

        self.read(Read(partition, store, work, done, failed, upkeep=True))

    # -- the end

    def is_busy(self, logical: Logical) -> bool:
        return logical in self._in_flight or any(partition in self._reads for partition in logical.partitions)

    async def drain(self) -> None:
        """Waits for what is in flight."""
        await self.until(lambda: not (self._in_flight or self._reads or self._turn_scheduled))

    def close(self) -> None:
        self._upkeep.cancel()
        for _, timer in self._timers.values():
            timer.cancel()
        self._workers.shutdown(wait=True)
        for disk in self.disks.values():
            disk.writer.shutdown(wait=True)
            disk.keeper.shutdown(wait=True)


def _come_to_rest(storage: Storage) -> None:
    """Nothing is written any more, and everything is applied: what was needed for it can go."""
    storage.roll()
    allocators.give_back()
