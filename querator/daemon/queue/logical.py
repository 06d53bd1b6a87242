"""The Logical: one loop per queue, the only place where the queue's state changes.

A pass takes the requests in the inbox and the timers that are due and decides from memory what each request gets
(`plan`). Once the batches of all partitions that it touched are durable, it answers (`settle`). Both are synchronous
and know neither I/O nor threads nor the wall clock: the driver (the engine, or a test) tells them the time, makes
batches durable, and carries out the reads and moves that they ask for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from querator.config_file import LimitsConfig
from querator.daemon.queue import completing, distribution, inbox, leasing, moves, producing, settling, timers
from querator.daemon.queue.agenda import NEVER
from querator.daemon.queue.loading import empty_snapshot
from querator.daemon.queue.opening import PartitionFiles
from querator.daemon.queue.partition import DEFAULT_BOUNDS, Partition
from querator.daemon.queue.passes import COMPLETES, LEASE, PRODUCES, Counters, Death, Pass
from querator.daemon.queue.recent import Done, Recent
from querator.daemon.queue.requests import Arrival, Change, LeaseItems, Move, Request
from querator.daemon.store import Fingerprints, Store
from querator.errors import Conflict, InternalError, RequestFailed, RetryRequest
from querator.items import Counts, Placement, Queue, State
from querator.wire.leased import LeaseReply

OVERLOADED = "queue is overloaded; try again later"
STOPPING = "queue is shutting down"


class Logical:
    def __init__(
        self,
        queue: Queue,
        placements: list[Placement],
        open_store: Callable[[Placement], Store],
        wake: Callable[[Logical], None],
        died: Callable[[Death], None] = lambda death: None,
        release_store: Callable[[Placement], None] = lambda placement: None,
        resumed: Callable[[Placement], None] = lambda placement: None,
        bounds: LimitsConfig = DEFAULT_BOUNDS,
        noted_keys: Callable[[Placement, list[str]], Iterable[str]] = lambda placement, keys: (),
    ) -> None:
        """`wake` asks the driver for a pass. The other calls are explained where they are kept."""
        self._wake = wake
        self._files = PartitionFiles(queue.name, placements, bounds, self.wake, open_store, release_store, noted_keys)
        self._agenda = self._files.agenda
        self._partitions = self._files.partitions
        self._remembered = self._files.remembered
        self._pass = Pass(queue, self._files, self.wake, died, resumed)
        self._inbox_max = bounds.inbox_requests
        self._parked = self._pass.parked
        self._moves = self._pass.moves
        self._recent = Recent()
        self._is_stopping = False
        self._is_reloading = False

    # -- requests

    def submit(self, request: Request) -> None:
        if self._is_stopping:
            request.answer(RequestFailed(STOPPING))
        elif len(self._pass.inbox) >= self._inbox_max and not isinstance(request, Change | Arrival):
            request.answer(RetryRequest(OVERLOADED))
        else:
            self._pass.inbox.append(request)
            self._wake(self)

    def abandon(self, request: LeaseItems) -> None:
        """Called when the client has disconnected. Frees its parked lease and its client id, and takes back items
        leased to it.
        """
        request.abandoned = True
        if not request.answered:
            if self._parked.remove(request):
                request.answered = True
            else:
                request.respond = self._take_back

    def _take_back(self, result: Any) -> None:
        if isinstance(result, LeaseReply):
            self._pass.undelivered.append(result)
            self.wake()

    # -- the pass

    def plan(self, now_us: int, now_ns: int) -> Pass:
        """Decides everything that can be decided now. The caller commits `touched` and then calls `settle`."""
        this, agenda = self._pass, self._agenda
        this.begin(now_us, now_ns)
        if agenda.timeout_ns <= now_ns:
            inbox.time_out(this)
        if agenda.look_at_all:
            self._look_at_all()
        elif agenda.event_us < now_us:
            timers.run(this)
        inbox.collect(this)
        produces: list[Any] = this.taken if this.only == PRODUCES else this.produces
        if len(this.order) > 1 and (produces or agenda.has_parked):
            distribution.sort(this.order, distribution.weights(this.order))
        if produces:
            producing.place(this, produces)
        if this.only == LEASE:
            leasing.serve_at_once(this, this.taken[0])  # type: ignore[arg-type]
        elif agenda.has_parked and self._parked.waiting:
            leasing.serve(this)
        for request in this.taken if this.only == COMPLETES else this.completes:
            completing.proceed(this, request)
        for partition in this.order:
            contents = partition.contents
            window = contents.window
            has_more = window.waiting != len(window.ready) or window.gone
            if has_more and contents.store is not None and window.wants_loading():
                self._files.load_window(partition)
        this.stage()
        if agenda.has_parked and leasing.can_go_on(this):
            self._wake(self)
        if agenda.has_keys:
            self._remembered.forget(now_us)
        return this

    def _look_at_all(self) -> None:
        """Handles everything that is no request."""
        this = self._pass
        self._agenda.look_at_all = False
        if self._remembered.unread:
            self._remembered.loaded_at = self._remembered.loaded_at or this.now_us
        self._files.open_due(this.now_ns)
        if this.undelivered:
            completing.take_back_undelivered(this)
        if self._moves.ended or self._moves.waiting:
            moves.finish_moves(this)
            if self._moves.waiting:
                self._agenda.look_at_all = True
        timers.run(this)

    def settle(self, this: Pass, failed: dict[Partition, str]) -> None:
        """Answers the requests of a pass, whose batches are durable except in the partitions that failed."""
        if failed:
            settling.fail(this, failed)
        else:
            settling.succeed(this)
        this.end()
        if self._is_stopping:
            self.stop()  # a request that was looked up, or whose write failed, waits again

    def withhold(self, this: Pass, reason: str) -> None:
        """Called before a pass is settled that may not be acknowledged, although it is durable."""
        settling.withhold(this, reason)

    def give_up(self) -> Pass:
        """Called after `plan` raised, which is a defect. Drops the whole pass, and reads memory again from storage."""
        this = self._pass
        settling.break_off(this, InternalError())
        for partition in self._partitions:
            if partition.store is not None:
                self._files.fail(partition, "internal error")
        self._agenda.take_changed()
        self._agenda.look_at_all = True
        this.begin(this.now_us, this.now_ns)
        this.forget_counts()
        return this

    def end_move(self, move: Move, result: Any) -> None:
        """Ends a move with the destination's answer: a QueratorError, or anything else if the items have arrived."""
        self._moves.end(move, result)
        self.wake()

    def end_back_offs(self) -> None:
        """Makes the next pass retry everything that failed and waits for its back-off."""
        self._moves.end_back_offs()
        for partition in self._partitions:
            partition.health.retry_at_ns = 0
        self._agenda.look_at_all = True

    def next_event_us(self) -> int:
        """When, on the queue's clock, there is something to do without a request."""
        return timers.next_event_us(self._partitions)

    def next_event_ns(self) -> int:
        """The same on the monotonic clock: time-outs and back-offs."""
        times = [self._files.next_try_ns() if self._agenda.look_at_all else NEVER, self._pass.deadlines.next_ns()]
        if self._moves.waiting:
            times.append(self._moves.next_ns())
        return min(times)

    def stop(self) -> None:
        """Answers every request that still waits."""
        self._is_stopping = True
        inbox.answer_all(self._pass, RequestFailed(STOPPING))

    # -- what others may know

    @property
    def queue(self) -> Queue:
        return self._pass.queue

    @property
    def current_pass(self) -> Pass:
        """The one object that all passes use."""
        return self._pass

    @property
    def partitions(self) -> Sequence[Partition]:
        return self._partitions

    @property
    def files(self) -> PartitionFiles:
        """Opens, reads and fails partitions. Outside of a pass, `wake` must follow."""
        return self._files

    @property
    def counters(self) -> Counters:
        return self._pass.counters

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def partition_with(self, prefix: int) -> Partition | None:
        """The partition whose ids begin with this prefix."""
        return self._files.by_prefix.get(prefix)

    def sample_rates(self, now_us: int) -> None:
        self._recent.sample(now_us, self._pass.counters)

    def last_minute(self, now_us: int) -> Done:
        return self._recent.last_minute(now_us, self._pass.counters)

    def oldest_created_at(self) -> int | None:
        """When the oldest of the items that are next to be leased was created; None if no item waits."""
        oldest = [partition.contents.window.oldest() for partition in self._partitions]
        return min((created_at for created_at in oldest if created_at is not None), default=None)

    def waiting_clients(self, limit: int) -> list[str]:
        """The clients whose lease requests wait, the one that waits longest first."""
        return [one.client_id for one in itertools.islice(self._pass.parked.waiting.values(), limit)]

    def waiting_requests(self) -> dict[str, int]:
        return inbox.waiting_requests(self._pass)

    def is_at_rest(self) -> bool:
        """Whether no request waits to be planned and no read is under way."""
        return not (self._files.open_reads or self._pass.inbox)

    def is_idle(self) -> bool:
        """Whether nothing is under way: no request to take in, no read, no move.

        A move that failed, or that its destination does not take at present, waits and is not under way.
        """
        return self.is_at_rest() and self._moves.are_idle

    # -- what operators, jobs and the engine ask for

    def wake(self) -> None:
        """Asks for a pass that looks at all partitions, because something happened that is no request."""
        self._agenda.look_at_all = True
        self._wake(self)

    def configure(self, queue: Queue) -> None:
        """Uses these settings from the next pass on."""
        self._pass.configure(queue)
        self.wake()

    def open_new(self, stores: Iterable[Store], now_us: int) -> None:
        """Opens all partitions of a queue that was created just now. Their files are empty."""
        for partition, store in zip(self._partitions, stores, strict=True):
            partition.opened(store, empty_snapshot(), now_us)
        self._remembered.unread.clear()

    def add_partition(self, placement: Placement, store: Store, now_us: int) -> None:
        """Adds a partition whose file was created just now. Called while planning."""
        partition = self._files.add(placement)
        partition.opened(store, empty_snapshot(), now_us)
        self._pass.order.append(partition)
        self.wake()

    def remove_partition(self, partition: Partition) -> None:
        """Removes the last partition, which is closed and empty. Called while planning."""
        self._files.remove_last(partition)
        self._pass.order.remove(partition)
        partition.change_placement(msgspec.structs.replace(partition.placement, requested=State.UNAVAILABLE))

    def close_partition(self, partition: Partition, then: Callable[[Exception | None], None]) -> None:
        """Closes a partition's file, so that another process may open it. Called while planning."""
        if partition.contents.stage():
            self._pass.touched = [*self._pass.touched, partition]
        self._files.close(partition, then)

    def recall(self, partition: Partition, counts: Counts, keys: tuple[Any, Fingerprints] | None) -> None:
        """Takes over the counts and keys that an earlier process saved for an offline partition."""
        partition.recall(counts)
        if keys is not None:
            partition.keys_noted()
            self._remembered.read(partition, *keys)

    def remember(self, partition: Partition, keys: Sequence[str], until_us: Sequence[int]) -> None:
        """Keeps these keys until the given times, in memory and in the partition's file. Called while planning."""
        partition.contents.remember_keys(keys, until_us)
        for key, until in zip(keys, until_us, strict=True):
            self._remembered.put(key, until)

    def forget(self, partition: Partition, key: str) -> None:
        """The opposite of `remember`, for one key."""
        partition.contents.remember_keys([key], [0])
        self._remembered.drop(key)

    def doubt(self, key: str) -> None:
        """Forgets a key whose write failed. If the file has the key anyway, opening the file restores it."""
        self._remembered.drop(key)

    def exact_keys(self, prefix: str) -> list[str]:
        """All remembered keys with this prefix, which begins with one of EXACT_PREFIXES."""
        return self._remembered.exact_keys(prefix)

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
