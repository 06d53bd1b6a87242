"""Drives Logicals without asyncio, threads or a wall clock. It does what the engine does, one step after the other.

Time stands still until a test moves it. Reads run at once, or later if a test holds them back.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from querator.config_file import LimitsConfig
from querator.daemon.queue.logical import Logical
from querator.daemon.queue.partition import DEFAULT_BOUNDS, Partition
from querator.daemon.queue.passes import Death, Pass
from querator.daemon.queue.requests import (
    Arrival,
    Change,
    Columns,
    Complete,
    Extend,
    Intake,
    LeaseItems,
    Produce,
    Read,
    Request,
    Retry,
)
from querator.daemon.store.base import StorageError
from querator.errors import QueratorError
from querator.items import Placement, Queue
from querator.wire.arrow import encode_batches
from querator.wire.leased import LeaseReply
from querator.wire.messages import QueueProduceItem, QueueRetryItem
from tests.memory_storage import MemoryStorage

SECOND = 1_000_000
START_US = 1_800_000_000 * SECOND
FAR_NS = 1 << 60


class Answer:
    """Receives the answer to a request, which must come exactly once."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def __call__(self, result: Any) -> None:
        self.results.append(result)
        assert len(self.results) == 1, "answered twice"

    @property
    def waiting(self) -> bool:
        return not self.results

    @property
    def result(self) -> Any:
        assert self.results, "not answered"
        return self.results[0]

    @property
    def error(self) -> str:
        assert isinstance(self.result, QueratorError), self.result
        return self.result.message

    @property
    def leases(self) -> list[Any]:
        assert isinstance(self.result, LeaseReply), self.result
        return self.result.leases if self.result.hand is None else self.result.hand.leases()


class Driver:
    def __init__(self, storage: Any = None, bounds: LimitsConfig = DEFAULT_BOUNDS) -> None:
        self.bounds = bounds
        self.storage = storage or MemoryStorage("default")
        self.now_us = START_US
        self.now_ns = 1_000
        self.logicals: dict[str, Logical] = {}
        self.deaths: list[Death] = []
        self.failing_writes: Callable[[], str | None] = lambda: None
        self.reads: list[Read] = []
        self.hold_reads = False
        self.passes: dict[Logical, Pass] = {}
        """The pass of each queue. It is one object for all passes of the queue."""
        self._woken: dict[Logical, None] = {}

    # -- set-up

    def create(self, name: str = "q", partitions: int = 1, **settings: Any) -> Logical:
        queue = Queue(
            name=name,
            lease_timeout_ns=settings.pop("lease_s", 60) * 1_000_000_000,
            expire_timeout_ns=settings.pop("expire_s", 86_400) * 1_000_000_000,
            requested_partitions=partitions,
            **settings,
        )
        placements = [
            Placement(queue=name, number=n, uuid=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{n}")), storage="default")
            for n in range(partitions)
        ]
        for placement in placements:
            self.storage.create(placement.uuid, name)
        return self.load(queue, placements)

    def load(self, queue: Queue, placements: list[Placement]) -> Logical:
        logical = Logical(
            queue,
            placements,
            lambda placement: self.storage.open(placement.uuid, placement.queue),
            lambda logical: self._woken.setdefault(logical),
            self.deaths.append,
            bounds=self.bounds,
        )
        self.logicals[queue.name] = logical
        logical.wake()
        self.run()
        return logical

    def restart(self) -> None:
        """Starts a new process on the same storage, which has nothing in memory."""
        old = list(self.logicals.values())
        self.storage.reopen()
        self.logicals.clear()
        self.passes.clear()
        self._woken.clear()
        self.reads.clear()
        for logical in old:
            self.load(logical.queue, [partition.placement for partition in logical.partitions])

    # -- running

    def run(self) -> None:
        """Runs passes until nothing is left to do at this time."""
        for _ in range(1_000):
            if not self.step():
                return
        raise AssertionError("the queue always has something to do")

    def step(self) -> bool:
        woken, self._woken = self._woken, {}
        for logical in self.logicals.values():
            if logical.next_event_us() < self.now_us or logical.next_event_ns() <= self.now_ns:
                woken[logical] = None
        for logical in woken:
            if self.logicals.get(logical.queue.name) is logical:
                self._turn(logical)
        if not self.hold_reads:
            self.run_reads()
        return bool(woken or self._woken)

    def _turn(self, logical: Logical) -> None:
        this = self.passes[logical] = logical.plan(self.now_us, self.now_ns)
        failed: dict[Partition, str] = {}
        taken = self.storage.take()
        if taken is not None:
            reason = self.failing_writes()
            if reason is None:
                self.storage.write(taken)
                self.storage.absorb(taken)
            else:
                self.storage.drop(taken)
                failed = dict.fromkeys(this.touched, reason)
        logical.settle(this, failed)
        if this.agenda.asks_driver:
            this.agenda.asks_driver = False
            self.reads += this.files.take_reads()
            for move in this.moves.take_outgoing():
                self._deliver(logical, move)

    def _deliver(self, source: Logical, move: Any) -> None:
        def ended(result: Any) -> None:
            source.end_move(move, result)

        target = self.logicals.get(move.target)
        if target is None:
            ended(QueratorError("gone"))
        else:
            target.submit(Arrival(ended, self.now_ns + 10**10, move.copies, move.keys, move.uncertain))

    def run_reads(self) -> None:
        reads, self.reads = self.reads, []
        for read in reads:
            try:
                if read.flush is not None:
                    read.flush.flush()
                result = read.work()
            except StorageError as error:
                read.failed(error)
            else:
                if read.flush is not None:
                    read.partition.applied()
                read.done(result)

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND)
        self.run()

    def elapse(self, seconds: float) -> None:
        """Moves the monotonic clock, on which requests time out and back-offs end."""
        self.now_ns += int(seconds * 1e9)
        self.run()

    # -- requests

    def _submit(self, queue: str, make: Callable[[Answer], Request], run: bool = True) -> Answer:
        answer = Answer()
        self.logicals[queue].submit(make(answer))
        if run:
            self.run()
        return answer

    def produce(
        self, what: int | list[str] = 1, queue: str = "q", at: int | None = None, request_id: str = "", run: bool = True
    ) -> Answer:
        texts = [f"item {n}" for n in range(what)] if isinstance(what, int) else what
        drafts = [QueueProduceItem(utf8=text, enqueue_at=at) for text in texts]
        deadline = self.now_ns + 10**10
        return self._submit(queue, lambda a: Produce(a, deadline, drafts, at is not None, request_id), run)

    def take_in(
        self, texts: list[str], request_id: str = "", queue: str = "q", digest: str = "digest", run: bool = True
    ) -> Answer:
        """Submits a chunk of a bulk stream."""
        table = pa.table({"payload": [text.encode() for text in texts]})
        stream = encode_batches(table.to_batches(), table.schema)
        columns = Columns(len(texts), stream, 0, len(texts), None, True)
        deadline = self.now_ns + 10**10
        return self._submit(queue, lambda a: Intake(a, deadline, columns, [], request_id, digest), run)

    def lease(
        self,
        count: int = 1,
        queue: str = "q",
        client: str | None = None,
        completes: list[str] | None = None,
        run: bool = True,
    ) -> Answer:
        deadline = self.now_ns + 10**10

        def make(answer: Answer) -> Request:
            complete = Complete(lambda result: None, 0, completes) if completes else None
            return LeaseItems(answer, deadline, client or f"client {id(answer)}", count, complete)

        return self._submit(queue, make, run)

    def complete(self, ids: list[str], queue: str = "q", partition: int = 0, run: bool = True) -> Answer:
        return self._submit(queue, lambda a: Complete(a, partition, ids), run)

    def retry(
        self,
        ids: list[str],
        queue: str = "q",
        at: int | None = None,
        dead: bool = False,
        partition: int = 0,
        unused: bool = False,
        reason: str = "",
    ) -> Answer:
        items = [QueueRetryItem(id=i, retry_at=at, dead=dead, unused=unused, reason=reason) for i in ids]
        return self._submit(queue, lambda a: Retry(a, partition, items))

    def extend(self, ids: list[str], queue: str = "q", seconds: int = 0) -> Answer:
        return self._submit(queue, lambda a: Extend(a, 0, ids, seconds * 1_000_000_000))

    def change(self, run: Callable[[int], Any], queue: str = "q") -> Answer:
        partitions = self.logicals[queue].partitions
        return self._submit(queue, lambda a: Change(a, partitions, run))

    # -- looking

    def payloads(self, leases: list[Any]) -> list[str]:
        return [lease.item.payload.decode() for lease in leases]

    def stored(self, queue: str = "q") -> list[str]:
        """The payloads in the storage of all partitions, scheduled items included."""
        found = []
        for partition in self.logicals[queue].partitions:
            store = partition.store or self.storage.open(partition.placement.uuid, queue)
            store.flush()
            for scheduled in (False, True):
                found += [row.item.payload.decode() for row in store.page(scheduled, 0, 1_000_000)]
        return found

    def check_counters(self) -> None:
        """Checks that the counts of the partitions are those of their storage."""
        for logical in self.logicals.values():
            for partition in logical.partitions:
                if partition.store is None:
                    continue
                partition.store.flush()
                partition.applied()
                summary = partition.store.summary()
                assert partition.counts == summary[:4], f"{logical.queue.name}/{partition.number}"
