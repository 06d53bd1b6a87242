"""The engine on real files: its turns, both of its ways of writing, and its blocking work."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from querator import limits
from querator.clock import ManualClock
from querator.config_file import LimitsConfig
from querator.daemon.engine import Turns, Upkeep, at_store, change, close_partition, open_partition, read
from querator.daemon.queue.logical import Logical
from querator.daemon.queue.partition import DEFAULT_BOUNDS, Partition
from querator.daemon.queue.requests import Complete, LeaseItems, Produce, Read
from querator.daemon.store import Batch, LackOfMemory, StorageError, Store
from querator.daemon.store.duck import applying
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.storage import DuckStorage
from querator.errors import RequestFailed, RetryRequest
from querator.items import Placement, Queue, State
from querator.wire.messages import QueueProduceItem

WAIT_SECONDS = 20
ON_LOOP, IN_THREAD = "on the loop", "in a thread"
both_ways = pytest.mark.parametrize("way", [ON_LOOP, IN_THREAD])


class WatchedStorage(DuckStorage):
    """A storage with real files. It records which thread writes, and fails or waits when a test asks for it."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name, directory)
        self.writers: list[str] = []
        self.error: Exception | None = None
        self.may_write = threading.Event()
        self.may_write.set()

    def write(self, taken: object, on_loop: bool = False) -> None:
        assert self.may_write.wait(WAIT_SECONDS)
        self.writers.append(ON_LOOP if on_loop else IN_THREAD)
        assert on_loop == (threading.current_thread() is threading.main_thread())
        error, self.error = self.error, None
        if error is not None:
            raise error
        super().write(taken, on_loop)


class Bench:
    """The turns of some queues, with partitions in the given storages."""

    def __init__(self, directory: Path, way: str, storages: tuple[str, ...] = ("one",)) -> None:
        self.storages = {name: WatchedStorage(name, directory / name) for name in storages}
        for storage in self.storages.values():
            storage.recover()
        self.turns = Turns(ManualClock(1_800_000_000_000_000), self.storages.values(), lambda source, move: None)
        for disk in self.turns.disks.values():
            # So far from the limit that no measurement changes the way of writing.
            disk.seconds_mean = 1.0 if way == IN_THREAD else -1.0
        self.storage = self.storages[storages[0]]
        self.answers: list[Any] = []

    async def queue(
        self, name: str = "q", storages: tuple[str, ...] = ("one",), bounds: LimitsConfig = DEFAULT_BOUNDS
    ) -> Logical:
        placements = [
            Placement(queue=name, number=number, uuid=str(uuid.uuid4()), storage=where)
            for number, where in enumerate(storages)
        ]
        for placement in placements:
            self.storages[placement.storage].create(placement.uuid, name).close()
        queue = Queue(
            name=name,
            lease_timeout_ns=60 * 10**9,
            expire_timeout_ns=86_400 * 10**9,
            requested_partitions=len(placements),
        )
        logical = Logical(
            queue,
            placements,
            lambda placement: self.storages[placement.storage].open(placement.uuid, name),
            self.turns.wake,
            bounds=bounds,
        )
        self.turns.add(logical)
        await self.until(lambda: all(partition.store is not None for partition in logical.partitions))
        return logical

    async def until(self, holds: Callable[[], bool]) -> None:
        await asyncio.wait_for(self.turns.until(holds), WAIT_SECONDS)

    def produce(self, logical: Logical, respond: Callable[[Any], None] | None = None) -> None:
        items = [QueueProduceItem(bytes_=b"x")]
        logical.submit(Produce(respond or self.answers.append, time.monotonic_ns() + 10**11, items, False, ""))

    async def close(self) -> None:
        await self.turns.drain()
        self.turns.close()
        for storage in self.storages.values():
            storage.close()


def run(bench: Callable[[], Bench], test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        one = bench()
        try:
            await test(one)
        finally:
            await one.close()

    asyncio.run(whole())


@both_ways
def test_an_answer_comes_after_the_write(tmp_path: Path, way: str) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        bench.storage.writers.clear()
        writes_at_answer: list[int] = []
        bench.produce(logical, lambda result: writes_at_answer.append(len(bench.storage.writers)))
        await bench.until(lambda: bool(writes_at_answer))
        assert writes_at_answer == [1]
        assert bench.storage.writers == [way]

    run(lambda: Bench(tmp_path, way), test)


@both_ways
def test_the_queues_of_one_turn_share_a_write(tmp_path: Path, way: str) -> None:
    async def test(bench: Bench) -> None:
        queues = [await bench.queue("a"), await bench.queue("b")]
        bench.storage.writers.clear()
        for logical in queues:
            bench.produce(logical)
        await bench.until(lambda: len(bench.answers) == 2)
        assert bench.storage.writers == [way]

    run(lambda: Bench(tmp_path, way), test)


@both_ways
def test_a_failed_write_acknowledges_nothing(tmp_path: Path, way: str) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        bench.produce(logical)
        logical.submit(LeaseItems(bench.answers.append, time.monotonic_ns() + 10**11, "me", 1))
        await bench.until(lambda: len(bench.answers) == 2)
        (lease,) = bench.answers.pop().leases
        (partition,) = logical.partitions
        bench.answers.clear()
        bench.storage.error = StorageError("the disk is gone", [partition.placement.uuid])
        logical.submit(Complete(bench.answers.append, 0, [lease.id]))
        await bench.until(lambda: bool(bench.answers))
        assert isinstance(bench.answers[0], RetryRequest)
        assert partition.health.error == "the disk is gone"
        logical.end_back_offs()
        logical.wake()
        await bench.until(lambda: partition.store is not None)
        assert (partition.counts.total, partition.counts.leased) == (1, 1)

    run(lambda: Bench(tmp_path, way), test)


@both_ways
def test_a_write_that_failed_because_of_one_partition_acknowledges_no_other_queue(tmp_path: Path, way: str) -> None:
    """None of its batches is durable."""

    async def test(bench: Bench) -> None:
        queues = [await bench.queue("a"), await bench.queue("b")]
        (partition,) = queues[0].partitions
        bench.storage.error = StorageError("partition was closed meanwhile", [partition.placement.uuid])
        for logical in queues:
            bench.produce(logical)
        await bench.until(lambda: bench.storage.error is None and not bench.turns.disks["one"].writing)
        assert bench.answers == []
        for logical in queues:
            logical.end_back_offs()
            logical.wake()
        await bench.until(lambda: bench.answers == [None, None])
        assert [logical.partitions[0].store.record_written for logical in queues] == [1, 1]

    run(lambda: Bench(tmp_path, way), test)


def test_a_batch_that_was_left_behind_by_a_closed_store_costs_no_other_queue_its_items(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        queues = [await bench.queue("a"), await bench.queue("b")]
        (closed, other) = [logical.partitions[0] for logical in queues]
        closed.store.unapplied.commit(Batch())
        bench.storage.release(closed.placement.uuid)
        bench.produce(queues[1])
        await bench.until(lambda: bool(other.health.error))
        assert bench.answers == []
        queues[1].end_back_offs()
        queues[1].wake()
        await bench.until(lambda: bench.answers == [None])
        assert other.store.record_written == 1

    run(lambda: Bench(tmp_path, ON_LOOP), test)


@both_ways
def test_a_produce_whose_write_failed_goes_to_a_partition_on_another_storage(tmp_path: Path, way: str) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue(storages=("one", "two"))
        for name, storage in bench.storages.items():
            storage.error = StorageError(f"{name} is gone") if name == "one" else None
        for _ in range(4):
            bench.produce(logical)
        await bench.until(lambda: len(bench.answers) == 4)
        assert bench.answers == [None] * 4
        assert [partition.counts.total for partition in logical.partitions if partition.store is not None] == [4]

    run(lambda: Bench(tmp_path, way, ("one", "two")), test)


def test_requests_that_arrive_during_a_slow_write_share_the_next_one(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        bench.storage.writers.clear()
        bench.storage.may_write.clear()
        disk = bench.turns.disks["one"]
        bench.produce(logical)
        await bench.until(lambda: disk.writing)
        for _ in range(3):
            bench.produce(logical)
        bench.storage.may_write.set()
        await bench.until(lambda: len(bench.answers) == 4)
        assert bench.storage.writers == [IN_THREAD] * 2

    run(lambda: Bench(tmp_path, IN_THREAD), test)


def test_a_queue_that_is_removed_during_its_write_stays_busy_until_the_write_has_ended(tmp_path: Path) -> None:
    """Whoever deletes a queue must not remove its files before that."""

    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        bench.storage.may_write.clear()
        bench.produce(logical)
        await bench.until(lambda: bench.turns.disks["one"].writing)
        bench.turns.remove(logical)
        assert bench.turns.is_busy(logical)
        bench.storage.may_write.set()
        await bench.until(lambda: not bench.turns.is_busy(logical))
        assert len(bench.answers) == 1

    run(lambda: Bench(tmp_path, IN_THREAD), test)


@both_ways
def test_a_write_leaves_nothing_to_the_garbage_collector(tmp_path: Path, way: str) -> None:
    """The collector runs rarely. What a write leaves to it would keep all payloads of the write in memory."""

    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        gc.collect()
        gc.disable()
        try:
            for number in range(1, 101):
                bench.produce(logical)
                await bench.until(lambda number=number: len(bench.answers) == number)
            assert gc.collect() < 100
        finally:
            gc.enable()

    run(lambda: Bench(tmp_path, way), test)


def test_a_turn_that_gathers_begins_when_as_many_have_asked_as_were_answered(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        queues = [await bench.queue("a"), await bench.queue("b")]
        for logical in queues:
            bench.produce(logical)
        await bench.until(lambda: len(bench.answers) == 2)
        bench.turns.gather_seconds = 3_600.0
        bench.storage.writers.clear()
        bench.produce(queues[0])
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)
        assert bench.storage.writers == []
        bench.produce(queues[1])
        await bench.until(lambda: len(bench.answers) == 4)
        assert bench.storage.writers == [ON_LOOP]

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_a_turn_gathers_as_long_as_requests_keep_coming(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        turns = bench.turns
        turns.gather_seconds = 3_600.0
        turns._answered = 100  # so many may come again
        bench.storage.writers.clear()
        for rounds in range(limits.GATHER_ROUNDS_MAX - 1, 0, -1):
            gathered = turns._gathered
            bench.produce(logical)
            turns._gather(rounds, gathered)  # as the timer does
            assert bench.storage.writers == []
        turns._gather(1, turns._gathered)  # nothing has come since
        await bench.until(lambda: len(bench.answers) == limits.GATHER_ROUNDS_MAX - 1)
        assert bench.storage.writers == [ON_LOOP]

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_a_pass_waits_for_all_of_its_disks(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue(storages=("one", "two"))
        slow = bench.storages["two"]
        slow.may_write.clear()
        for _ in range(2):
            bench.produce(logical)
        fast_disk = bench.turns.disks["one"]
        await bench.until(lambda: fast_disk.writes > 0 and not fast_disk.writing)
        assert bench.answers == []
        slow.may_write.set()
        await bench.until(lambda: len(bench.answers) == 2)

    run(lambda: Bench(tmp_path, IN_THREAD, ("one", "two")), test)


def test_a_partition_has_one_piece_of_blocking_work_at_a_time(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        (partition,) = logical.partitions
        events: list[str] = []

        def work(name: str) -> Callable[[], None]:
            def run() -> None:
                events.append(f"{name} begins")
                if name == "second":
                    raise StorageError("cannot be read")
                events.append(f"{name} ends")

            return run

        for name in ("first", "second", "third"):
            done, failed = (lambda result: None), (lambda error: events.append(str(error)))
            bench.turns.threads.run(Read(partition, None, work(name), done, failed))
        assert bench.turns.is_busy(logical)
        await bench.until(lambda: not bench.turns.is_busy(logical))
        assert events == [
            "first begins",
            "first ends",
            "second begins",
            "cannot be read",
            "third begins",
            "third ends",
        ]

    run(lambda: Bench(tmp_path, ON_LOOP), test)


class BlockedWork:
    """A piece of work that waits until the test lets it end, or fails the first time."""

    def __init__(self, bench: Bench, partition: Partition, error: Exception | None = None, **how: bool) -> None:
        self.began = self.ended = 0
        self.errors: list[Exception] = []
        self.may_end = threading.Event()
        self._error = error
        bench.turns.threads.run(Read(partition, None, self._run, self._done, self.errors.append, **how))

    def _run(self) -> None:
        self.began += 1
        assert self.may_end.wait(WAIT_SECONDS)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _done(self, result: object) -> None:
        self.ended += 1


def test_the_next_items_are_read_beside_upkeep_and_other_work_waits_for_both(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        (partition,) = logical.partitions
        upkeep = BlockedWork(bench, partition, upkeep=True)
        other = BlockedWork(bench, partition)
        window = BlockedWork(bench, partition, beside_upkeep=True)
        second = BlockedWork(bench, partition, beside_upkeep=True)
        window.may_end.set()
        await bench.until(lambda: window.ended == 1)
        assert (upkeep.ended, other.began, second.began) == (0, 0, 0)
        for work in (upkeep, other, second):
            work.may_end.set()
        await bench.until(lambda: not bench.turns.is_busy(logical))
        assert (upkeep.ended, other.ended, second.ended) == (1, 1, 1)

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_a_read_that_fails_beside_upkeep_is_repeated_after_it(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        (partition,) = logical.partitions
        upkeep = BlockedWork(bench, partition, upkeep=True)
        window = BlockedWork(bench, partition, StorageError("the file was attached again"), beside_upkeep=True)
        window.may_end.set()
        await bench.until(lambda: window.began == 1)
        upkeep.may_end.set()
        await bench.until(lambda: not bench.turns.is_busy(logical))
        assert (window.began, window.ended, window.errors) == (2, 1, [])

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_consumers_get_items_behind_the_window_while_the_file_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An apply that never ends is the longest possible one."""
    window_items = 8
    may_apply = threading.Event()
    may_apply.set()
    apply = applying.apply

    def slow_apply(*args: Any) -> None:
        assert may_apply.wait(5 * WAIT_SECONDS)
        apply(*args)

    monkeypatch.setattr(applying, "apply", slow_apply)

    async def test(bench: Bench) -> None:
        logical = await bench.queue(bounds=LimitsConfig(ready_window_items=window_items))
        (partition,) = logical.partitions
        for count in range(10 * window_items):
            bench.produce(logical)
            await bench.until(lambda count=count: len(bench.answers) > count)
        await read(logical, partition, lambda store: None)
        may_apply.clear()
        bench.produce(logical)
        await bench.until(lambda: len(bench.answers) == 10 * window_items + 1)
        store = partition.store
        assert store is not None
        bench.turns.threads.run(Read(partition, store, lambda: None, lambda result: None, bench.answers.append, True))
        assert partition.contents.window.on_disk == 9 * window_items
        leased: list[int] = []

        def deliver(delivery: Any) -> None:
            leased.extend(one.item.seq for one in delivery.leases)

        try:
            while len(leased) < 10 * window_items:
                before = len(leased)
                logical.submit(LeaseItems(deliver, time.monotonic_ns() + 10**11, "me", 4))
                await bench.until(lambda before=before: len(leased) > before)
            assert leased == sorted(set(leased))
        finally:
            may_apply.set()

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_a_removed_queue_gets_no_more_turns(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        gone, other = await bench.queue("gone"), await bench.queue("other")
        answered_gone: list[Any] = []
        bench.produce(gone, answered_gone.append)
        bench.turns.remove(gone)
        bench.produce(other)
        await bench.until(lambda: bool(bench.answers))
        assert answered_gone == []

    run(lambda: Bench(tmp_path, ON_LOOP), test)


class TestWaiting:
    """Coroutines that run blocking work for a partition and wait for it."""

    def test_a_read_that_finds_a_faulty_store_fails_the_partition(self, tmp_path: Path) -> None:
        async def test(bench: Bench) -> None:
            logical = await bench.queue()

            def work(store: Store) -> None:
                raise StorageError("bad block")

            with pytest.raises(RetryRequest, match="partition '0' is failing"):
                await read(logical, logical.partitions[0], work)
            assert logical.partitions[0].health.error == "bad block"

        run(lambda: Bench(tmp_path, ON_LOOP), test)

    def test_a_read_that_lacks_memory_leaves_the_partition_open(self, tmp_path: Path) -> None:
        async def test(bench: Bench) -> None:
            logical = await bench.queue()

            def work(store: Store) -> None:
                raise LackOfMemory("too much at once")

            with pytest.raises(RequestFailed, match="partition '0' cannot be read; too much at once"):
                await read(logical, logical.partitions[0], work)
            assert logical.partitions[0].store is not None

        run(lambda: Bench(tmp_path, ON_LOOP), test)

    def test_work_at_a_store_raises_its_own_error_and_leaves_the_partition_open(self, tmp_path: Path) -> None:
        async def test(bench: Bench) -> None:
            logical = await bench.queue()

            def work(store: Store) -> None:
                raise StorageError("no room for a copy")

            with pytest.raises(StorageError, match="no room for a copy"):
                await at_store(logical, logical.partitions[0], work)
            assert logical.partitions[0].store is not None

        run(lambda: Bench(tmp_path, ON_LOOP), test)

    def test_work_goes_on_when_its_waiter_is_cancelled_and_counts_until_it_ends(self, tmp_path: Path) -> None:
        async def test(bench: Bench) -> None:
            logical = await bench.queue()
            may_end = threading.Event()
            waiter = asyncio.ensure_future(
                at_store(logical, logical.partitions[0], lambda store: may_end.wait(WAIT_SECONDS))
            )
            await bench.until(lambda: bench.turns.is_busy(logical))
            waiter.cancel()
            assert not logical.is_at_rest()
            may_end.set()
            await bench.until(lambda: not bench.turns.is_busy(logical))
            assert logical.is_at_rest()
            assert waiter.cancelled()

        run(lambda: Bench(tmp_path, ON_LOOP), test)

    def test_a_closed_partition_opens_again_and_is_refused_meanwhile(self, tmp_path: Path) -> None:
        async def test(bench: Bench) -> None:
            logical = await bench.queue()
            (partition,) = logical.partitions
            await change(logical, [], lambda now_us: partition.keep_closed("a test", now_us))
            assert await close_partition(logical, partition) == ""
            with pytest.raises(RetryRequest):
                await read(logical, partition, lambda store: None)
            assert await open_partition(logical, partition) == ""
            assert await read(logical, partition, lambda store: store.summary().ready) == 0

        run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_a_file_that_has_caught_up_is_behind_again_after_the_next_write(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        (partition,) = logical.partitions
        disk = bench.turns.disks["one"]
        for number in (1, 2, 3):
            bench.produce(logical)
            await bench.until(lambda number=number: len(bench.answers) == number)
            assert disk.stores_behind() == [partition.store]
            await at_store(logical, partition, lambda store: store.flush())
            assert disk.stores_behind() == []

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_items_that_came_and_went_let_segments_go_without_a_write_to_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SEGMENT_BYTES_MAX", "SEGMENT_ALLOCATION_BYTES"):
        monkeypatch.setattr(limits, name, 2048)
    monkeypatch.setattr(limits, "SPARES_MAX", 0)

    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        (partition,) = logical.partitions
        store = partition.store
        assert isinstance(store, DuckStore)
        applied = store.record_applied

        def come_and_go() -> None:
            bench.produce(logical, bench.answers.append)
            logical.submit(LeaseItems(leased, time.monotonic_ns() + 10**11, "client", 1, None, ""))

        def leased(delivery: Any) -> None:
            logical.submit(Complete(bench.answers.append, 0, [lease.id for lease in delivery.leases]))

        journal, number = tmp_path / "one" / "journal", 0
        while len(list(journal.glob("*.seg"))) < 2:
            come_and_go()
            number += 1
            await bench.until(lambda number=number: len(bench.answers) == 2 * number)
        upkeep = Upkeep(bench.turns, 1 << 30)
        try:
            assert not bench.storage.lagging()  # so the file need not catch up yet
            assert bench.storage.holding()
            upkeep.look_after(bench.turns.disks["one"])
            assert not bench.storage.holding()
            await bench.until(lambda: not bench.turns.threads.busy_partitions())
            bench.turns.disks["one"].keeper.submit(lambda: None).result()
        finally:
            upkeep.close()
        assert len(list(journal.glob("*.seg"))) == 1
        assert store.record_applied == applied

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_a_partition_is_in_error_if_an_apply_finds_that_the_journal_has_lost_a_record(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        (partition,) = logical.partitions
        large = QueueProduceItem(bytes_=bytes(limits.LEFT_RECORD_BYTES_MIN))
        logical.submit(Produce(bench.answers.append, time.monotonic_ns() + 10**11, [large], False, ""))
        await bench.until(lambda: len(bench.answers) == 1)
        (segment,) = (tmp_path / "one" / "journal").glob("*.seg")
        content = segment.read_bytes()
        segment.write_bytes(content[:1_000] + b"?" + content[1_001:])
        upkeep = Upkeep(bench.turns, 1 << 30)
        try:
            upkeep.look_after(bench.turns.disks["one"], hurry=True)
            await bench.until(lambda: "cannot be trusted" in partition.health.error)
        finally:
            upkeep.close()
        assert partition.reported_state is State.ERROR

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_the_turn_of_a_lone_client_runs_at_once(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        for answers in (1, 2):
            bench.turns.hold()
            bench.produce(logical)
            assert len(bench.answers) == answers - 1  # the caller may have more to do
            bench.turns.run_held()
            assert len(bench.answers) == answers
        bench.turns.hold()
        bench.turns.run_held()  # nothing was asked for
        bench.produce(logical)
        assert len(bench.answers) == 2
        await bench.until(lambda: len(bench.answers) == 3)

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_a_turn_waits_for_others_where_the_last_one_answered_several_clients(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        bench.produce(logical)
        bench.produce(logical)
        await bench.until(lambda: len(bench.answers) == 2)
        bench.storage.writers.clear()
        bench.turns.hold()
        bench.produce(logical)
        bench.turns.run_held()
        bench.produce(logical)
        await bench.until(lambda: len(bench.answers) == 4)
        assert len(bench.storage.writers) == 1

    run(lambda: Bench(tmp_path, ON_LOOP), test)


def test_a_turn_that_breaks_off_is_not_the_fault_of_the_connection_that_ran_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(result: Any) -> None:
        raise RuntimeError("a defect")

    async def test(bench: Bench) -> None:
        logical = await bench.queue()
        bench.turns.hold()
        bench.produce(logical, broken)
        bench.turns.run_held()
        assert "a turn broke off" in caplog.text
        bench.produce(logical)
        await bench.until(lambda: len(bench.answers) == 1)

    run(lambda: Bench(tmp_path, ON_LOOP), test)
