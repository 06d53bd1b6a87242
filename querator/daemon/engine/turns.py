"""Turns of the event loop: plan all queues that have work, write once per storage, settle.

In one turn every queue with work plans its pass. Then each storage that the passes touched makes everything of that
turn durable with one write. Then the passes are settled, which answers the clients. A fast storage is written on the
loop itself, because a thread switch costs more than the fsync. A slow storage is written in its own thread, and
requests that arrive meanwhile share its next write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from querator import limits
from querator.clock import Clock, ManualClock, monotonic_ns, perf_counter
from querator.daemon.engine.disks import Disk
from querator.daemon.engine.flights import NO_FAILURES, Flight
from querator.daemon.engine.threads import PartitionThreads
from querator.daemon.metrics import COMMIT_SECONDS, PASS_SECONDS
from querator.daemon.queue import NEVER, Logical, Move, Partition
from querator.daemon.store import Storage

log = logging.getLogger("querator.daemon.engine")


class Turnstile(Protocol):
    """Decides when answers may be sent. Every method runs on the loop's thread."""

    def is_open(self) -> bool:
        """Whether a turn may begin."""

    def call_when_open(self, turn: Callable[[], None]) -> None: ...

    def after_write(self, ended: Callable[[str], None]) -> None:
        """Calls `ended` when the write may be acknowledged, or with the reason why it may not."""


class Turns:
    def __init__(self, clock: Clock, storages: Iterable[Storage], deliver: Callable[[Logical, Move], None]) -> None:
        self.clock = clock
        self.disks = {storage.name: Disk(storage) for storage in storages}
        self.logicals: dict[Logical, Flight] = {}
        self.loop = asyncio.get_running_loop()
        self.deliver = deliver
        self._waiters: list[asyncio.Future[None]] = []
        """Futures of `until`, which the next change resolves."""
        self.threads = PartitionThreads(self.disks, self._tell_waiters)
        self._dirty: list[Flight] = []
        """The queues that get a pass in the next turn."""
        self._turn_scheduled = False
        self._is_holding = False
        """Whether the next turn is not scheduled, because `run_held` runs it."""
        self._answered = 0
        """The number of requests that the last turn answered."""
        self._gathering: asyncio.TimerHandle | None = None
        """The timer of the next turn, while that turn waits for more requests."""
        self._gathered = 0
        self._writing = 0
        """The number of passes that wait for their disks, or for the gate."""
        self._leaving: set[Logical] = set()
        """Removed queues of which such a pass is left."""
        self.on_growth: Callable[[Disk], None] = lambda disk: None
        """Called after a write, when the storage has taken much since upkeep looked at it."""
        self.gate: Turnstile | None = None
        """Holds answers back, if there is an archive."""
        self.gather_seconds = 0.0
        """A turn waits until no request has come for this long, so that more requests share its write. 0 for storages
        alone: a sync is fast.
        """

    # -- what takes part

    def add_storage(self, storage: Storage) -> None:
        self.disks[storage.name] = Disk(storage)

    def add(self, logical: Logical) -> None:
        self.logicals[logical] = Flight(logical)
        logical.wake()

    def remove(self, logical: Logical) -> None:
        flight = self.logicals.pop(logical, None)
        if flight is not None:
            flight.stop_timer()
            flight.is_dirty = False
            self._dirty = [one for one in self._dirty if one is not flight]
            if flight.is_writing:
                self._leaving.add(logical)

    def partitions_on(self, disk: Disk) -> Iterator[tuple[Logical, Partition]]:
        for logical in self.logicals:
            for partition in logical.partitions:
                if partition.storage == disk.storage.name:
                    yield logical, partition

    # -- a turn

    def wake(self, logical: Logical) -> None:
        """Gives the queue a pass in the next turn. A queue calls this itself when it has work."""
        flight = self.logicals.get(logical)
        if flight is None:
            return
        if not flight.is_dirty:
            flight.is_dirty = True
            self._dirty.append(flight)
        if flight.is_writing:
            return  # the queue plans again after its pass is settled
        if not self._turn_scheduled:
            self._turn_scheduled = True
            if self._is_holding:
                return
            if self.gather_seconds:
                self._gathered = 0
                self._gather(limits.GATHER_ROUNDS_MAX, -1)
            else:
                # Clients that were answered together ask again together. Polling the sockets once more before the turn
                # lets more of them share its write. A single client would only wait longer.
                self.loop.call_soon(self._turn_soon if self._answered > 1 else self._turn)
        if self._gathering is not None:
            self._gathered += 1
            if self._gathered >= self._answered:
                # As many as were answered have asked again, so nobody else is expected.
                self._gathering.cancel()
                self._gathering = None
                self.loop.call_soon(self._turn)

    def hold(self) -> None:
        """Called before the request of a client that seems to be the only active one. Its turn need not wait for
        requests of others: `run_held`, which must follow, runs it. So the loop has one step less for a request.
        """
        self._is_holding = self._answered <= 1 and not self._turn_scheduled and not self.gather_seconds

    def run_held(self) -> None:
        is_due, self._is_holding = self._is_holding and self._turn_scheduled, False
        if is_due:
            try:
                self._turn()
            except Exception:  # a defect, for which the client's connection should not be blamed
                log.exception("a turn broke off")

    def _gather(self, rounds: int, gathered: int) -> None:
        """Waits for further requests, as long as they keep coming. There were so many when it last waited."""
        if rounds and self._gathered > gathered:
            self._gathering = self.loop.call_later(self.gather_seconds, self._gather, rounds - 1, self._gathered)
        else:
            self._turn()

    def _turn_soon(self) -> None:
        self.loop.call_soon(self._turn)

    def _resume(self) -> None:
        """The gate is open again."""
        for flight in tuple(self._dirty):
            self.wake(flight.logical)

    def _turn(self) -> None:
        self._turn_scheduled = False
        self._gathering = None
        if self.gate is not None and not self.gate.is_open():
            self.gate.call_when_open(self._resume)
            return
        started = perf_counter()
        now_us, now_ns = self.clock.now_us(), monotonic_ns()
        dirty, self._dirty = self._dirty, []
        disks = self.disks
        answers = 0
        touched: dict[str, Disk] = {}
        unwritten: list[Flight] = []
        flights: list[Flight] = []
        storage = ""
        for flight in dirty:
            if flight.is_writing:
                self._dirty.append(flight)  # the queue plans again after its pass is settled
                continue
            if not flight.is_dirty:
                continue  # an earlier pass of this turn has removed the queue
            flight.is_dirty = False
            logical = flight.logical
            try:
                plan = logical.plan(now_us, now_ns)
            except Exception:
                log.exception("a pass broke off", extra={"queue": logical.queue.name})
                plan = logical.give_up()
            answers += len(plan.answers)
            partitions = plan.touched
            if not partitions:
                unwritten.append(flight)
                continue
            flight.is_writing = True
            self._writing += 1
            if len(partitions) > 1:
                for name in {partition.storage for partition in partitions}:
                    disk = touched[name] = disks[name]
                    disk.flights.append(flight)
                    flight.disks_left += 1
                continue
            if partitions[0].storage != storage:
                storage = partitions[0].storage
                disk = touched[storage] = disks[storage]
                flights = disk.flights
            flights.append(flight)
            flight.disks_left = 1
        planned = perf_counter()
        for flight in unwritten:
            if self.gate is not None and flight.plan.repeats_success():
                # The first attempt is durable here. It may have got an error because the archive does not have it.
                flight.is_writing = True
                self._writing += 1
                self.gate.after_write(partial(_pass_gate, self, flight))
            else:
                flight.logical.settle(flight.plan, flight.failed)
                _follow_up(self, flight)
        self._answered = answers
        for disk in touched.values():
            self._write(disk)
        PASS_SECONDS.observe(planned - started)
        if self._waiters:
            self._tell_waiters()

    def _end_writing(self, flight: Flight) -> None:
        flight.is_writing = False
        self._writing -= 1
        if self._leaving:
            self._leaving.discard(flight.logical)

    def _write(self, disk: Disk) -> None:
        """Makes everything staged for this storage durable. While a write runs, the next one gathers."""
        if disk.writing:
            return
        flights, disk.flights = disk.flights, []
        is_large = disk.storage.staged_bytes >= limits.INLINE_WRITE_BYTES_MAX
        taken = disk.storage.take()
        if taken is None:
            self._write_ended(disk, flights, None, None)
        elif is_large or disk.is_slow:
            disk.writing = True
            future = self.loop.run_in_executor(disk.writer, disk.write, taken)
            future.add_done_callback(lambda done: self._written(disk, flights, taken, done.result()))
        else:
            self._written(disk, flights, taken, disk.write(taken, on_loop=True))

    def _written(self, disk: Disk, flights: list[Flight], taken: object, error: BaseException | None) -> None:
        if error is None and self.gate is not None:
            disk.writing = True
            self.gate.after_write(lambda doubt: self._write_ended(disk, flights, taken, None, doubt))
        else:
            self._write_ended(disk, flights, taken, error)

    def _write_ended(
        self, disk: Disk, flights: list[Flight], taken: object, error: BaseException | None, doubt: str = ""
    ) -> None:
        disk.writing = False
        if error is not None:
            _write_failed(self, disk, flights, error)
        behind, storage = disk.behind, disk.storage.name
        following_up: list[Flight] = []
        try:
            for flight in flights:
                for partition in flight.plan.touched:
                    if partition.storage == storage:
                        behind[partition] = flight.logical
                if doubt and not flight.doubt:
                    flight.doubt = doubt
                flight.disks_left -= 1
                if flight.disks_left:
                    continue
                self._end_writing(flight)
                _settle(flight)
                if _needs_follow_up(flight):
                    following_up.append(flight)
        finally:
            # Even if settling raises, which is a defect: the storage must not forget what is durable.
            if error is None and taken is not None:
                disk.absorbed_bytes += disk.storage.absorb(taken)
        for flight in following_up:
            _follow_up(self, flight)
        if disk.absorbed_bytes >= disk.look_at_bytes:
            self.on_growth(disk)
        COMMIT_SECONDS.observe(disk.seconds)
        if disk.flights:
            self._write(disk)
        if self._waiters:
            self._tell_waiters()

    # -- waiting

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for a condition that only turns and blocking work can change."""
        while not holds():
            change: asyncio.Future[None] = self.loop.create_future()
            self._waiters.append(change)
            await change

    def _tell_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for change in waiters:
            if not change.done():  # a waiter that was cancelled
                change.set_result(None)

    async def until_idle(self) -> None:
        """After the test clock moved: waits until everything that was due, and its consequences, are done."""
        now_us = self.clock.now_us()

        def is_idle() -> bool:
            due = [logical for logical in self.logicals if logical.next_event_us() < now_us]
            for logical in due:
                logical.wake()
            is_working = self._dirty or self._writing or self.threads.busy_partitions()
            return not (due or is_working) and all(logical.is_idle() for logical in self.logicals)

        for logical in self.logicals:
            logical.wake()
        await self.until(is_idle)

    def is_busy(self, logical: Logical) -> bool:
        """Whether a write or blocking work for this queue is under way."""
        flight = self.logicals.get(logical)
        is_writing = flight.is_writing if flight is not None else logical in self._leaving
        return is_writing or any(map(self.threads.is_busy, logical.partitions))

    async def drain(self) -> None:
        """Waits for the writes and the blocking work under way."""
        await self.until(lambda: not (self._writing or self.threads.busy_partitions() or self._turn_scheduled))

    def close(self) -> None:
        for flight in self.logicals.values():
            flight.stop_timer()
        self.threads.close()
        for disk in self.disks.values():
            disk.close()


def _settle(flight: Flight) -> None:
    """Answers the requests of a pass whose disks have written, or failed."""
    if flight.doubt:
        flight.logical.withhold(flight.plan, flight.doubt)
        flight.doubt = ""
    failed, flight.failed = flight.failed, NO_FAILURES
    flight.logical.settle(flight.plan, failed)


def _pass_gate(turns: Turns, flight: Flight, doubt: str) -> None:
    """Settles a pass that wrote nothing and waited for the gate."""
    turns._end_writing(flight)
    flight.doubt = doubt
    _settle(flight)
    _follow_up(turns, flight)
    if turns._waiters:
        turns._tell_waiters()


def _needs_follow_up(flight: Flight) -> bool:
    """Whether `_follow_up` has anything to do. Few passes need it, and the objects that tell are in the processor's
    cache just after the pass was settled.
    """
    agenda = flight.plan.agenda
    is_early = agenda.event_us < flight.timer_us or agenda.timeout_ns < flight.timer_ns
    return is_early or flight.is_dirty or agenda.asks_driver or agenda.look_at_all


def _follow_up(turns: Turns, flight: Flight) -> None:
    """Starts the reads and moves that a settled pass asked for. All clients have their answers by now."""
    logical, plan = flight.logical, flight.plan
    agenda = plan.agenda
    if agenda.asks_driver:
        agenda.asks_driver = False
        for read in plan.files.take_reads():
            turns.threads.run(read)
        for move in plan.moves.take_outgoing():
            turns.deliver(logical, move)
    if flight.is_dirty:
        turns.wake(logical)
    if agenda.event_us < flight.timer_us or agenda.timeout_ns < flight.timer_ns or agenda.look_at_all:
        _arm_timer(turns, flight)


def _write_failed(turns: Turns, disk: Disk, flights: list[Flight], error: BaseException) -> None:
    """Notes that all partitions of the write failed, so that their passes are settled with the error. None of their
    batches is durable, even if the error concerns one partition only.
    """
    log.error("storage failed", extra={"storage": disk.storage.name, "reason": str(error)})
    for flight in flights:
        flight.failed = dict(flight.failed)
        for partition in flight.plan.touched:
            if partition.storage == disk.storage.name:
                flight.failed[partition] = str(error)
    if disk.storage.failure:
        # The storage as a whole can no longer be trusted, so every partition in it must be read again.
        for logical, partition in turns.partitions_on(disk):
            if partition.store is not None:
                logical.files.fail(partition, str(error))
    disk.report_room([partition for _, partition in turns.partitions_on(disk)], turns.clock.now_us())


def _arm_timer(turns: Turns, flight: Flight) -> None:
    """Wakes the queue at its next event that needs no request."""
    logical = flight.logical
    due_ns, due_us = logical.next_event_ns(), NEVER
    if not isinstance(turns.clock, ManualClock):
        due_us = flight.plan.agenda.event_us = logical.next_event_us()
        if due_us < NEVER:
            due_ns = min(due_ns, monotonic_ns() + (due_us + 1 - turns.clock.now_us()) * 1_000)
    if due_ns >= flight.timer_ns or logical not in turns.logicals:
        # The earlier timer fires first, and the pass after it arms a new one.
        flight.timer_us = min(flight.timer_us, due_us)
        return
    flight.stop_timer()
    delay = max(0.0, (due_ns - monotonic_ns()) / 1e9)
    flight.timer = turns.loop.call_later(delay, _timer_fired, flight)
    flight.timer_ns, flight.timer_us = due_ns, due_us


def _timer_fired(flight: Flight) -> None:
    flight.stop_timer()
    flight.logical.wake()
