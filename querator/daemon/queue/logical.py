"""The Logical: one loop per queue, the only place where the queue's state changes.

A pass takes the requests in the inbox and the timers that are due and decides from memory what everyone gets (`plan`).
Once the batches of all partitions that it touched are durable, it answers (`settle`). Both are synchronous and know
neither I/O nor threads nor the wall clock: the driver (the engine, or a test) tells them the time, makes batches
durable, and carries out the reads and moves that they ask for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from querator.config_file import LimitsConfig
from querator.daemon.queue import completing, distribution, leasing, moves, producing, repeats, timers
from querator.daemon.queue.opening import PartitionFiles
from querator.daemon.queue.partition import DEFAULT_BOUNDS, Partition, empty_snapshot
from querator.daemon.queue.passes import Counters, Death, Pass
from querator.daemon.queue.recent import Recent
from querator.daemon.queue.requests import (
    Arrival,
    Change,
    Complete,
    Delivery,
    Extend,
    LeaseItems,
    Move,
    Produce,
    Request,
    Retry,
    failing,
)
from querator.daemon.queue.schedule import NEVER
from querator.daemon.store import Store
from querator.errors import Conflict, InternalError, QueratorError, RequestFailed, RetryRequest
from querator.items import Placement, Queue, State

LEASE_TIMEOUT = "request timeout; no items are in the queue, try again"
PRODUCE_TIMEOUT = "request timeout; no partition is available, try again"
UNREAD_TIMEOUT = (
    "request timeout; partition '{}' cannot be read and may have taken a request with this request id, try again"
)
OVERLOADED = "queue is overloaded; try again later"
STOPPING = "queue is shutting down"


class Logical:
    def __init__(
        self,
        queue: Queue,
        placements: list[Placement],
        open_store: Callable[[Placement], Store],
        wake: Callable[[], None],
        died: Callable[[Death], None] = lambda death: None,
        release_store: Callable[[Placement], None] = lambda placement: None,
        resumed: Callable[[Placement], None] = lambda placement: None,
        bounds: LimitsConfig = DEFAULT_BOUNDS,
        noted_keys: Callable[[Placement, list[str]], Iterable[str]] = lambda placement, keys: (),
    ) -> None:
        self.queue = queue
        self.wake = wake
        """Asks the driver for another pass."""
        self.files = PartitionFiles(queue.name, placements, bounds, wake, open_store, release_store, noted_keys)
        self.partitions = self.files.partitions
        self.remembered = self.files.remembered
        self.counters = Counters()
        self.recent = Recent()
        self.stopping = False
        self._pass = Pass(queue, self.files, wake, resumed)
        self.inbox = self._pass.inbox
        self.parked = self._pass.parked
        self.moves = self._pass.moves
        self._died = died
        self._is_reloading = False
        self._taken: list[Request] = []
        """What the pass under way was to answer."""

    # -- requests

    def submit(self, request: Request) -> None:
        if self.stopping:
            request.answer(RequestFailed(STOPPING))
        elif len(self.inbox) >= self.files.bounds.inbox_requests and not isinstance(request, Change | Arrival):
            request.answer(RetryRequest(OVERLOADED))
        else:
            self.inbox.append(request)
            self.wake()

    def abandon(self, request: Request) -> None:
        """The client is gone: its parked lease and its client id are free at once, and so are items leased to it."""
        request.abandoned = True
        if isinstance(request, LeaseItems) and not request.answered:
            if self.parked.remove(request):
                request.answered = True
            else:
                request.respond = self._take_back

    def _take_back(self, result: Any) -> None:
        if isinstance(result, Delivery):
            self._pass.undelivered.append(result)
            self.wake()

    # -- the pass

    def plan(self, now_us: int, now_ns: int) -> Pass:
        """Decides everything that can be decided now. The caller commits `touched` and then calls `settle`."""
        this = self._pass
        this.begin(now_us, now_ns)
        if self.remembered.unread:
            self.remembered.loaded_at = self.remembered.loaded_at or now_us
        if this.deadlines.heap:
            self._time_out(this)
        self.files.open_due(now_us, now_ns)
        if this.undelivered:
            completing.take_back_undelivered(this)
        if self.moves.has_news:
            moves.finish_moves(this)
        timers.run(this)
        produces, completes = self._collect(this)
        if len(this.order) > 1:
            distribution.sort(this.order)
        if produces:
            producing.place(this, produces)
        if self.parked.waiting:
            leasing.serve(this)
        for request in completes:
            completing.proceed(this, request)
        for partition in self.partitions:
            if partition.wants_loading():
                self.files.load_window(partition)
            if partition.commit():
                this.touched.append(partition)
        if self.parked.waiting and any(p.waiting and p.ready and p.allows.lease for p in self.partitions):
            self.wake()
        if self.remembered.is_used:
            self.remembered.forget(now_us)
        return this

    def give_up(self) -> Pass:
        """A plan raised, which is a defect: nothing of it happens, and memory is read again."""
        for request in self._taken:
            request.answer(InternalError())
        self.inbox.clear()
        for partition in self.partitions:
            if partition.store is not None:
                self.files.fail(partition, "internal error")
        self._pass.begin(self._pass.now_us, self._pass.now_ns)
        return self._pass

    def _time_out(self, this: Pass) -> None:
        for request in this.deadlines.take_overdue(this.now_ns):
            if isinstance(request, LeaseItems):
                if self.parked.remove(request):
                    this.answer(request, RetryRequest(LEASE_TIMEOUT))
            elif isinstance(request, Produce | Arrival):
                if request in this.held_up:
                    this.held_up.remove(request)
                if isinstance(request, Produce):
                    this.repeats.give_up(request)
                unread = repeats.unread(this, request)
                reason = PRODUCE_TIMEOUT if unread is None else UNREAD_TIMEOUT.format(unread.number)
                this.answer(request, RetryRequest(reason))

    def _collect(self, this: Pass) -> tuple[list[Produce | Arrival], list[Request]]:
        """Takes the inbox in, in arrival order, up to the first change, which has a pass of its own."""
        self._taken = [*this.held_up, *self.inbox]
        held_up, this.held_up = this.held_up, deque()
        # The files may have been read since these requests came.
        produces = [request for request in held_up if not request.keys or repeats.may_enter(this, request)]
        completes: list[Request] = []
        inbox = self.inbox
        is_first = True
        while inbox:
            request = inbox.popleft()
            if isinstance(request, Produce):
                if not request.request_id or repeats.may_enter(this, request):
                    produces.append(request)
            elif isinstance(request, LeaseItems):
                leasing.arrive(this, request)
            elif isinstance(request, Change):
                if is_first:
                    self._change(this, request)
                else:
                    inbox.appendleft(request)
                if inbox:
                    self.wake()
                break
            elif isinstance(request, Arrival):
                if repeats.may_enter(this, request):
                    produces.append(request)
            else:
                completes.append(request)
            is_first = False
        if this.repeats.to_look_up:
            repeats.look_up(this)
        return produces, completes

    def _change(self, this: Pass, request: Change) -> None:
        for partition in request.partitions:
            if not partition.allows.storage:
                this.answer(request, RetryRequest(failing(partition.number)))
                return
        try:
            result = request.run(this.now_us)
        except QueratorError as error:
            result = error
        this.answer(request, result, set(request.partitions))

    def settle(self, this: Pass, failed: dict[Partition, str]) -> None:
        """The batches of a pass are durable, except those of the partitions that failed."""
        if failed:
            self._settle_failed(this, failed)
        else:
            self._settle_done(this)
        if self.stopping:
            self.stop()  # a request that was looked up, or whose write failed, waits again

    def _settle_done(self, this: Pass) -> None:
        # First of all: clients wait for this, and for nothing that follows.
        for request, result, _ in this.answers:
            request.answer(result)
        for partition in this.touched:
            partition.settled()
            partition.relapses = 0
        counters = self.counters
        for name, count in this.tallies:
            setattr(counters, name, getattr(counters, name) + count)
        for death in this.deaths:
            self._count_death(death)

    def _settle_failed(self, this: Pass, failed: dict[Partition, str]) -> None:
        for partition, reason in failed.items():
            self.files.fail(partition, reason)
        for request, result, after in this.answers:
            needed = after if isinstance(after, set) else {after}
            bad = next((partition for partition in failed if partition in needed), None)
            if bad is None:
                request.answer(result)
            elif isinstance(request, Produce | Arrival):
                repeats.take_back(this, request)
                this.hold_up(request)
            elif isinstance(request, LeaseItems):
                self.parked.park(request)
                this.deadlines.watch(request)
            else:
                request.answer(RetryRequest(failing(bad.number)))
        for death in this.deaths:
            if death.partition not in failed:
                self._count_death(death)
        self.moves.call_off(failed)
        self.parked.restore_order()
        self.wake()

    def _count_death(self, death: Death) -> None:
        self.counters.dead[death.reason] += 1
        self._died(death)

    # -- what operators and jobs ask for

    def configure(self, queue: Queue) -> None:
        """The queue has these settings from the next pass on."""
        self.queue = self._pass.queue = queue
        self.wake()

    def partition_with(self, prefix: int) -> Partition | None:
        """The partition whose ids begin with this prefix."""
        return self.files.by_prefix.get(prefix)

    def open_new(self, stores: Iterable[Store], now_us: int) -> None:
        """Opens all partitions of a queue that was created just now. Their files are empty."""
        for partition, store in zip(self.partitions, stores, strict=True):
            partition.opened(store, empty_snapshot(), now_us)
        self.remembered.unread.clear()

    def add_partition(self, placement: Placement, store: Store, now_us: int) -> None:
        """Adds a partition whose file was created just now. Called while planning."""
        partition = Partition(placement, self.files.bounds)
        partition.opened(store, empty_snapshot(), now_us)
        self.partitions.append(partition)
        self.files.by_prefix[partition.prefix] = partition
        self._pass.order.append(partition)
        self.wake()

    def remove_partition(self, partition: Partition) -> None:
        """Removes the last partition, which is closed and empty. Called while planning.

        A partition's number is its place in the list, so no other partition can be removed.
        """
        assert self.partitions[-1] is partition
        self.partitions.pop()
        self._pass.order.remove(partition)
        del self.files.by_prefix[partition.prefix]
        partition.change_placement(msgspec.structs.replace(partition.placement, requested=State.UNAVAILABLE))

    def close_partition(self, partition: Partition, then: Callable[[Exception | None], None]) -> None:
        """Lets go of a partition's file, so that another process may open it. Called while planning."""
        if partition.commit():
            self._pass.touched.append(partition)
        self.files.close(partition, then)

    def remember(self, partition: Partition, keys: Sequence[str], until_us: Sequence[int]) -> None:
        """The partition's file and memory keep these keys until the given times. Called while planning."""
        partition.remember_keys(keys, until_us)
        for key, until in zip(keys, until_us, strict=True):
            self.remembered.put(key, until)

    def forget(self, partition: Partition, key: str) -> None:
        """The opposite of `remember`, for one key."""
        partition.remember_keys([key], [0])
        self.remembered.drop(key)

    @contextmanager
    def reload(self) -> Iterator[None]:
        """Marks the queue as being reloaded. Refuses a second reload at the same time."""
        if self._is_reloading:
            raise Conflict(f"reload is already running; wait until that of queue '{self.queue.name}' has ended")
        self._is_reloading = True
        try:
            yield
        finally:
            self._is_reloading = False

    # -- what the driver needs to know

    def end_move(self, move: Move, result: Any) -> None:
        """The destination answered: a QueratorError, or anything else if the items have arrived."""
        self.moves.end(move, result)
        self.wake()

    def end_back_offs(self) -> None:
        """Whatever failed and waits is tried again in the next pass."""
        self.moves.end_back_offs()
        for partition in self.partitions:
            partition.retry_at_ns = 0

    def next_event_us(self) -> int:
        """When, on the queue's clock, there is something to do without a request."""
        resumes = [p.placement.resume_at for p in self.partitions if p.placement.resume_at]
        return min([partition.next_event_us() for partition in self.partitions] + resumes, default=NEVER)

    def next_event_ns(self) -> int:
        """The same on the monotonic clock: time-outs and back-offs."""
        times = [p.retry_at_ns for p in self.partitions if p.error and not p.opening and p.store is None]
        if self._pass.deadlines.heap:
            times.append(self._pass.deadlines.next_ns())
        if self.moves.waiting:
            times.append(self.moves.next_ns())
        return min(times, default=NEVER)

    def is_at_rest(self) -> bool:
        """Whether no request waits to be planned and no read is under way."""
        return not (self.files.open_reads or self.inbox)

    def is_idle(self) -> bool:
        """Whether nothing is under way: no request to take in, no read, no move.

        A move that failed, or that its destination does not take at present, waits and is not under way.
        """
        return self.is_at_rest() and self.moves.are_idle

    def stop(self) -> None:
        """Answers everyone who still waits."""
        self.stopping = True
        this = self._pass
        under_way = this.repeats.under_way.values()
        error = RequestFailed(STOPPING)
        for request in [*self.inbox, *self.parked.waiting.values(), *this.held_up, *under_way, *self.moves.retrying]:
            request.answer(error)
        self.moves.retrying.clear()
        self.inbox.clear()
        self.parked.clear()
        this.held_up.clear()

    def waiting_requests(self) -> dict[str, int]:
        this = self._pass
        produces = len(this.held_up) + this.repeats.looking_up
        kinds = {"produce": produces, "lease": len(self.parked.waiting), "complete": this.looking_up}
        for request in self.inbox:
            if isinstance(request, Produce):
                kinds["produce"] += 1
            elif isinstance(request, LeaseItems):
                kinds["lease"] += 1
            elif isinstance(request, Complete | Retry | Extend):
                kinds["complete"] += 1
        return kinds
