"""The Logical: one loop per queue, the only place where the queue's state changes.

A pass takes what stands in the inbox and what time has brought about, decides from memory what everyone gets (`plan`),
and, once the batches of all partitions that it touched are durable, answers (`settle`). Both are synchronous and know
neither I/O nor threads nor the wall clock: the driver (`engine.py`, or a test) tells them the time, makes batches
durable and runs the reads they ask for.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from querator.config_file import LimitsConfig
from querator.daemon.queue import completing, distribution, leasing, moves, producing, remembered, timers
from querator.daemon.queue.partition import DEFAULT_BOUNDS, Partition, empty_snapshot, read_snapshot
from querator.daemon.queue.recent import Recent
from querator.daemon.queue.remembered import Remembered
from querator.daemon.queue.requests import (
    Arrival,
    Change,
    Complete,
    Delivery,
    Extend,
    LeaseItems,
    Move,
    Produce,
    Read,
    Request,
    Retry,
    failing,
)
from querator.daemon.queue.schedule import NEVER
from querator.daemon.store import Fingerprints, Store
from querator.errors import Conflict, InternalError, QueratorError, RequestFailed, RetryRequest
from querator.items import Item, Placement, Queue, State
from querator.limits import (
    RECOVERY_BACKOFF_MAX_NS,
    RECOVERY_BACKOFF_MIN_NS,
    US_PER_SECOND,
)

log = logging.getLogger("querator.partitions")

LEASE_TIMEOUT = "request timeout; no items are in the queue, try again"
PRODUCE_TIMEOUT = "request timeout; no partition is available, try again"
UNREAD_TIMEOUT = (
    "request timeout; partition '{}' cannot be read and may have taken a request with this request id, try again"
)
OVERLOADED = "queue is overloaded; try again later"
STOPPING = "queue is shutting down"


class Counters:
    """What the queue has done since it was loaded; read by metrics."""

    __slots__ = ("completed", "dead", "expired", "leased", "produced", "retried")

    def __init__(self) -> None:
        self.produced = self.leased = self.completed = self.retried = self.expired = 0
        self.dead: dict[str, int] = {"max_attempts": 0, "expired": 0, "client": 0}


class Death:
    """One item that died, to be logged and counted once that is durable."""

    __slots__ = ("attempts", "dead_queue", "id", "item", "partition", "reason")

    def __init__(self, partition: Partition, item: Item, item_id: str, attempts: int, reason: str, queue: str) -> None:
        self.partition = partition
        self.item = item
        self.id = item_id
        self.attempts = attempts
        self.reason = reason
        self.dead_queue = queue


class Pass:
    """What one plan decided. Answers wait for the partitions they depend on."""

    __slots__ = ("answers", "deaths", "partitions", "tallies")

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        """Those whose batch must become durable."""
        self.answers: list[tuple[Request, Any, Partition | set[Partition] | None]] = []
        self.tallies: list[tuple[str, int]] = []
        self.deaths: list[Death] = []


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
        self.bounds = bounds
        self.partitions = [Partition(placement, bounds) for placement in placements]
        self.by_prefix = {partition.prefix: partition for partition in self.partitions}
        self.order = list(self.partitions)
        self.open_store = open_store
        """Blocking; gives a partition's store, or raises."""
        self.wake = wake
        """Asks the driver for another pass."""
        self.died = died
        self.release_store = release_store
        """Blocking; lets go of the file of a partition that failed, as it is."""
        self.resumed = resumed
        """Told when a pause has ended by itself."""
        self._is_reloading = False
        self.counters = Counters()
        self.recent = Recent()
        self.inbox: deque[Request] = deque()
        self.parked: dict[int, LeaseItems] = {}
        self.clients: set[str] = set()
        self.held_up: deque[Produce | Arrival] = deque()
        """Produces that no partition takes at present."""
        self.looking_up = 0
        """Requests that wait for something to be read."""
        self.timeouts: list[tuple[int, int, Request]] = []
        self.remembered = Remembered()
        self.noted_keys = noted_keys
        """Blocking; which of these keys a partition that is offline remembers."""
        self.unread = list(self.partitions)
        """Partitions whose files have not been read since the start, so that nobody knows what they remember."""
        self.loaded_at = 0
        self.under_way: dict[str, Produce] = {}
        self.to_look_up: list[Produce | Arrival] = []
        """Requests that the files may remember."""
        self.looking_up_keys = 0
        """How many of them wait for an answer from the files."""
        self.moves: list[Move] = []
        """Moves to be carried out by the driver."""
        self.ended_moves: list[tuple[Move, Any]] = []
        self.waiting_moves: list[tuple[int, int, Move]] = []
        self.moves_open = 0
        self.reads: list[Read] = []
        """Reads to be carried out by the driver."""
        self.reads_open = 0
        self.stopping = False
        self.now_us = 0
        self.now_ns = 0
        self.newly_parked: list[LeaseItems] = []
        self.undelivered: list[Delivery] = []
        """Leases whose client went away before it was answered; the next pass takes their items back."""
        self._taken: list[Request] = []
        """What the pass under way was to answer."""
        self.retrying: set[Retry] = set()
        """Those whose items are on their way to another queue or partition."""
        self.orders = itertools.count(1)
        self._pass = Pass()

    # -- requests come

    def submit(self, request: Request) -> None:
        if self.stopping:
            request.answer(RequestFailed(STOPPING))
        elif len(self.inbox) >= self.bounds.inbox_requests and not isinstance(request, Change | Arrival):
            request.answer(RetryRequest(OVERLOADED))
        else:
            self.inbox.append(request)
            self.wake()

    def abandon(self, request: Request) -> None:
        """The client is gone: its parked lease and its client id are free at once, and what it was about to get too."""
        request.abandoned = True
        if isinstance(request, LeaseItems) and not request.answered:
            if self.parked.pop(request.order, None) is not None:
                self.clients.discard(request.client_id)
                request.answered = True
            else:
                request.respond = self._not_delivered

    def _not_delivered(self, result: Any) -> None:
        if isinstance(result, Delivery):
            self.undelivered.append(result)
            self.wake()

    # -- the pass

    def plan(self, now_us: int, now_ns: int) -> Pass:
        """Decides everything that can be decided now. The caller commits `partitions` and then calls `settle`."""
        self.now_us, self.now_ns = now_us, now_ns
        this = self._pass = Pass()
        if self.unread:
            self.loaded_at = self.loaded_at or now_us
        if self.timeouts:
            self._time_out()
        self._start_opening()
        if self.undelivered:
            completing.take_back_undelivered(self)
        moves.finish_moves(self)
        timers.run(self)
        produces, completes = self._collect()
        if len(self.order) > 1:
            distribution.sort(self.order)
        if produces:
            producing.place(self, produces)
        if self.parked:
            leasing.serve(self)
        for request in completes:
            completing.proceed(self, request)
        for partition in self.partitions:
            if partition.wants_loading():
                self._load(partition)
            if partition.commit():
                this.partitions.append(partition)
        if self.parked and any(p.waiting and p.ready and p.allows.lease for p in self.partitions):
            self.wake()
        if self.remembered.is_used:
            self.remembered.forget(now_us)
        return this

    def give_up(self) -> Pass:
        """A plan broke off in the middle, which is a defect: nothing of it happens, and memory is read again."""
        for request in self._taken:
            request.answer(InternalError())
        self.inbox.clear()
        for partition in self.partitions:
            if partition.store is not None:
                self.partition_failed(partition, "internal error")
        return Pass()

    def _collect(self) -> tuple[list[Produce | Arrival], list[Request]]:
        """Takes the inbox in, in arrival order, up to the first change, which has a pass of its own."""
        self._taken = [*self.held_up, *self.inbox]
        held_up, self.held_up = self.held_up, deque()
        # What was not known when they came may be known now.
        produces = [request for request in held_up if not request.keys or remembered.may_enter(self, request)]
        completes: list[Request] = []
        inbox = self.inbox
        is_first = True
        while inbox:
            request = inbox.popleft()
            if isinstance(request, Produce):
                if not request.request_id or remembered.may_enter(self, request):
                    produces.append(request)
            elif isinstance(request, LeaseItems):
                leasing.arrive(self, request)
            elif isinstance(request, Change):
                if is_first:
                    self._change(request)
                else:
                    inbox.appendleft(request)
                if inbox:
                    self.wake()
                break
            elif isinstance(request, Arrival):
                if remembered.may_enter(self, request):
                    produces.append(request)
            else:
                completes.append(request)
            is_first = False
        if self.to_look_up:
            remembered.look_up(self)
        return produces, completes

    def _change(self, request: Change) -> None:
        for partition in request.partitions:
            if not partition.allows.storage:
                self.answer(request, RetryRequest(failing(partition.number)))
                return
        try:
            result = request.run(self.now_us)
        except QueratorError as error:
            result = error
        self.answer(request, result, set(request.partitions))

    @property
    def answers(self) -> list[tuple[Request, Any, Partition | set[Partition] | None]]:
        return self._pass.answers

    def answer(self, request: Request, result: Any, after: Partition | set[Partition] | None = None) -> None:
        """Answers when the partitions it depends on are durable."""
        self._pass.answers.append((request, result, after))

    def tally(self, name: str, count: int) -> None:
        self._pass.tallies.append((name, count))

    def death(self, death: Death) -> None:
        self._pass.deaths.append(death)

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
        for partition in this.partitions:
            partition.settled()
            partition.relapses = 0
        counters = self.counters
        for name, count in this.tallies:
            setattr(counters, name, getattr(counters, name) + count)
        for death in this.deaths:
            self._tell_death(death)

    def _settle_failed(self, this: Pass, failed: dict[Partition, str]) -> None:
        for partition, reason in failed.items():
            self.partition_failed(partition, reason)
        for request, result, after in this.answers:
            hit = after if isinstance(after, set) else {after}
            bad = next((partition for partition in failed if partition in hit), None)
            if bad is None:
                request.answer(result)
            elif isinstance(request, Produce | Arrival):
                remembered.take_back(self, request)
                self.held_up.append(request)
                self.watch(request)
            elif isinstance(request, LeaseItems):
                leasing.park(self, request)
                self.watch(request)
            else:
                request.answer(RetryRequest(failing(bad.number)))
        for death in this.deaths:
            if death.partition not in failed:
                self._tell_death(death)
        moves.call_off(self, failed)
        self.parked = dict(sorted(self.parked.items()))
        self.wake()

    def _tell_death(self, death: Death) -> None:
        self.counters.dead[death.reason] += 1
        self.died(death)

    # -- time runs out for requests

    def watch(self, request: Request) -> None:
        """Its deadline is watched from now on."""
        if not request.watched:
            request.watched = True
            heapq.heappush(self.timeouts, (request.deadline_ns, next(self.orders), request))
            if len(self.timeouts) > 2 * (len(self.parked) + len(self.held_up)) + 1_000:
                self.timeouts = [entry for entry in self.timeouts if not entry[2].answered]
                heapq.heapify(self.timeouts)

    def _time_out(self) -> None:
        timeouts = self.timeouts
        while timeouts and timeouts[0][0] <= self.now_ns:
            _, _, request = heapq.heappop(timeouts)
            if request.answered:
                continue
            if isinstance(request, LeaseItems):
                if self.parked.pop(request.order, None) is None:
                    continue
                self.clients.discard(request.client_id)
                self.answer(request, RetryRequest(LEASE_TIMEOUT))
            elif isinstance(request, Produce | Arrival):
                if request in self.held_up:
                    self.held_up.remove(request)
                if isinstance(request, Produce) and self.under_way.get(request.request_id) is request:
                    del self.under_way[request.request_id]
                unread = remembered.unread(self, request)
                self.answer(
                    request, RetryRequest(PRODUCE_TIMEOUT if unread is None else UNREAD_TIMEOUT.format(unread.number))
                )

    # -- settings and partitions

    def configure(self, queue: Queue) -> None:
        """The queue has these settings from the next pass on."""
        self.queue = queue
        self.wake()

    def partition_with(self, prefix: int) -> Partition | None:
        """The partition whose ids begin with this prefix."""
        return self.by_prefix.get(prefix)

    def open_new(self, stores: Iterable[Store], now_us: int) -> None:
        """Opens all partitions of a queue that was created just now. Their files are empty."""
        for partition, store in zip(self.partitions, stores, strict=True):
            partition.opened(store, empty_snapshot(), now_us)
        self.unread.clear()

    def add_partition(self, placement: Placement, store: Store, now_us: int) -> None:
        """Adds a partition whose file was created just now. Called while planning."""
        partition = Partition(placement, self.bounds)
        partition.opened(store, empty_snapshot(), now_us)
        self.partitions.append(partition)
        self.by_prefix[partition.prefix] = partition
        self.order.append(partition)
        self.wake()

    def remove_partition(self, partition: Partition) -> None:
        """Removes the last partition, which is closed and empty. Called while planning.

        A partition's number is its place in the list, so no other partition can be removed.
        """
        assert self.partitions[-1] is partition
        self.partitions.pop()
        self.order.remove(partition)
        del self.by_prefix[partition.prefix]
        partition.change_placement(msgspec.structs.replace(partition.placement, requested=State.UNAVAILABLE))

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

    # -- work for the driver

    def take_reads(self) -> list[Read]:
        """Reads to be carried out, in order."""
        reads, self.reads = self.reads, []
        return reads

    def take_moves(self) -> list[Move]:
        """Moves to be carried out, in order. Each ends with `end_move`."""
        moves, self.moves = self.moves, []
        return moves

    def end_move(self, move: Move, result: Any) -> None:
        """The destination answered: a QueratorError, or anything else if the items have arrived."""
        self.ended_moves.append((move, result))
        self.wake()

    def is_at_rest(self) -> bool:
        """Whether no request waits to be planned and no read is under way."""
        return not (self.reads_open or self.inbox)

    # -- reading from storage

    def _load(self, partition: Partition) -> None:
        """The window runs low: reads the next stretch of what waits on disk."""
        store = partition.store
        assert store is not None
        partition.window.loading = True
        after, before = partition.window.disk_range()

        def work() -> list[Item]:
            return store.ready(after, before, self.bounds.ready_window_items, self.bounds.ready_window_bytes)

        def done(items: list[Item]) -> None:
            if partition.store is not store:
                return
            window = partition.window
            window.loading = False
            partition.loaded(items)
            if not items and before is None and window.on_disk > 0 and window.disk_range() == (after, None):
                self.partition_failed(partition, "storage holds fewer items than were counted")
            self.wake()

        self.read(partition, work, done)

    def read(
        self,
        partition: Partition,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        *,
        flush: bool = False,
        failed: Callable[[Exception], None] | None = None,
        fails_partition: Callable[[Exception], bool] = lambda error: True,
    ) -> None:
        """Asks the driver to do something blocking with a partition's open store.

        Outside of a pass, `wake` must follow.
        If the work fails and `fails_partition` says so of the error, the partition goes into error.
        """
        store = partition.store

        def on_failure(error: Exception) -> None:
            if partition.store is store and fails_partition(error):
                self.partition_failed(partition, str(error))
            if failed is not None:
                failed(error)
            self.wake()

        self.block(partition, work, done, on_failure, store if flush else None)

    def block(
        self,
        partition: Partition,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        flush: Store | None = None,
    ) -> None:
        """Asks the driver to do something blocking for a partition, and counts it until it has ended."""
        self.reads_open += 1

        def on_success(result: Any) -> None:
            self.reads_open -= 1
            done(result)

        def on_failure(error: Exception) -> None:
            self.reads_open -= 1
            failed(error)

        self.reads.append(Read(partition, flush, work, on_success, on_failure))

    # -- partitions fail and recover

    def partition_failed(self, partition: Partition, reason: str) -> None:
        if not partition.error:
            log.error(
                "partition is in error",
                extra={"queue": self.queue.name, "partition": partition.number, "reason": reason},
            )
        backoff = min(RECOVERY_BACKOFF_MAX_NS, RECOVERY_BACKOFF_MIN_NS << min(partition.relapses, 16))
        partition.fail(reason, self.now_us, self.now_ns + backoff)
        self.wake()

    def end_back_offs(self) -> None:
        """What failed and waits is tried again in the next pass."""
        self.waiting_moves = sorted((0, order, move) for _, order, move in self.waiting_moves)
        for partition in self.partitions:
            partition.retry_at_ns = 0

    def _start_opening(self) -> None:
        """Partitions that should be open and are not: at the start, and after a failure when its back-off is over."""
        for partition in self.partitions:
            if (
                partition.store is None
                and not partition.opening
                and partition.should_be_open
                and partition.retry_at_ns <= self.now_ns
            ):
                self.open_partition(partition)

    def close_partition(self, partition: Partition, then: Callable[[Exception | None], None]) -> None:
        """Lets go of a partition's file, so that another process may open it. Called while planning."""
        store = partition.store
        if partition.commit():
            self._pass.partitions.append(partition)
        partition.close()
        partition.error = ""

        def work() -> None:
            one = store or partition.unwanted
            if one is not None:
                one.close()
            else:
                self.release_store(partition.placement)

        def done(result: None) -> None:
            partition.unwanted = None
            # A write of the pass that closed it may have failed meanwhile; all that is durable is in the file.
            partition.error = ""
            then(None)

        def failed(error: Exception) -> None:
            self.partition_failed(partition, str(error))
            then(error)

        self.block(partition, work, done, failed)

    def open_partition(
        self, partition: Partition, then: Callable[[Exception | None], None] = lambda error: None
    ) -> None:
        partition.opening = True
        now_us = self.now_us

        def work() -> tuple[Store, Any]:
            store = self.open_store(partition.placement)
            return store, read_snapshot(store, self.bounds, now_us)

        def done(result: tuple[Store, Any]) -> None:
            store, snapshot = result
            partition.opening = False
            self.keys_read(partition, snapshot.newest_keys, snapshot.keys)
            if not partition.should_be_open:
                partition.unwanted = store
                return
            failed_at = partition.error_since
            partition.opened(store, snapshot, self.now_us)
            if failed_at and not partition.shortage:
                self._tell_recovery(partition, (self.now_us - failed_at) // US_PER_SECOND)
            then(None)
            self.wake()

        def failed(error: Exception) -> None:
            partition.opening = False
            self.partition_failed(partition, str(error))
            then(error)

        self.block(partition, work, done, failed)

    def _tell_recovery(self, partition: Partition, seconds: int) -> None:
        log.info(
            "partition recovered",
            extra={
                "queue": self.queue.name,
                "partition": partition.number,
                "state": str(partition.state),
                "seconds_in_error": seconds,
                "items": partition.total,
                "scheduled": partition.scheduled_count,
            },
        )

    def keys_read(self, partition: Partition, newest: Iterable[tuple[str, int]], everything: Fingerprints) -> None:
        """What a partition remembers is known from now on, even if the partition fails or is closed."""
        self.remembered.read(partition.placement.uuid, newest, everything)
        if partition in self.unread:
            self.unread.remove(partition)

    # -- what the driver needs to know

    def next_event_us(self) -> int:
        """When, on the queue's clock, there is something to do without a request."""
        resumes = [p.placement.resume_at for p in self.partitions if p.placement.resume_at]
        return min([partition.next_event_us() for partition in self.partitions] + resumes, default=NEVER)

    def next_event_ns(self) -> int:
        """The same on the monotonic clock: time-outs and back-offs."""
        times = [NEVER]
        while self.timeouts and self.timeouts[0][2].answered:
            heapq.heappop(self.timeouts)
        if self.timeouts:
            times.append(self.timeouts[0][0])
        if self.waiting_moves:
            times.append(self.waiting_moves[0][0])
        times += [p.retry_at_ns for p in self.partitions if p.error and not p.opening and p.store is None]
        return min(times)

    def is_idle(self) -> bool:
        """Nothing is under way: no request to take in, no read, no move.

        A move that failed, or that its destination does not take at present, waits and is not under way. Wherever else
        a move may be, somebody is busy with it.
        """
        return not (self.inbox or self.reads_open or self.moves or self.ended_moves)

    def stop(self) -> None:
        """Answers everyone who still waits."""
        self.stopping = True
        error = RequestFailed(STOPPING)
        waiting = [*self.inbox, *self.parked.values(), *self.held_up, *self.under_way.values(), *self.retrying]
        for request in waiting:
            request.answer(error)
        self.retrying.clear()
        self.inbox.clear()
        self.parked.clear()
        self.clients.clear()
        self.held_up.clear()

    def waiting_requests(self) -> dict[str, int]:
        produces = len(self.held_up) + self.looking_up_keys
        kinds = {"produce": produces, "lease": len(self.parked), "complete": self.looking_up}
        for request in self.inbox:
            if isinstance(request, Produce):
                kinds["produce"] += 1
            elif isinstance(request, LeaseItems):
                kinds["lease"] += 1
            elif isinstance(request, Complete | Retry | Extend):
                kinds["complete"] += 1
        return kinds
