"""Moves the items of one partition into others of the same queue, chunk by chunk: for migrate and for shrinking.

A chunk is taken from the head of the source and added at the tail of the destination, together with a key that lists
the chunk's sequences. When that is durable, the chunk is removed at the source, and the next chunk deletes the key.
After a crash or a storage failure the key tells whether the chunk has arrived. Until that is looked up, the source
gives no items (`Partition.hold`), so that no item is lost or exists twice. A leased item stays until its lease ends;
if it comes back, it is part of a later chunk. The order of items is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from querator.daemon.admin import check_free
from querator.daemon.engine import change, read
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs.runner import Kind
from querator.daemon.queue import JOB_PREFIX, Logical, Partition, refusal
from querator.daemon.registry import Registry
from querator.errors import InvalidRequest, RetryRequest
from querator.items import Item, Job, State
from querator.limits import JOB_CHUNK_BYTES_MAX, JOB_CHUNK_ITEMS_MAX, JOB_POLL_SECONDS, MOVE_KEPT_US

INTO_PARTITION = "migrate into partition"


class Chunk(msgspec.Struct):
    """Items that are between the source and the destination."""

    items: list[Item]
    key: str
    destination: Partition


class Mover:
    """Moves all items out of one partition for a job, one chunk at a time."""

    def __init__(
        self,
        registry: Registry,
        job: Job,
        source: Partition,
        destinations: Callable[[], Sequence[Partition]],
    ) -> None:
        self._registry = registry
        self._logical: Logical = registry.logicals[job.queue]
        self._job = job
        self._source = source
        self._destinations = destinations
        self._chunk: Chunk | None = None
        """The last chunk that was sent, until its key is forgotten."""
        self._started = time.monotonic()
        self.moved = 0

    async def begin(self) -> None:
        """Stops the source from taking items."""

        def run(now_us: int) -> None:
            self._source.begin_leaving()

        await change(self._logical, [], run)

    async def move_chunk(self) -> bool:
        """Moves up to one chunk of waiting or scheduled items. Returns False if nothing can be moved now."""
        source = self._source
        if source.is_held:
            await self._recover()
        destination = self._choose()
        if destination is None or destination.health.congested or not source.allows.storage:
            return False
        arrived = False
        started = time.monotonic()
        try:
            chunk = await change(self._logical, [source, destination], lambda now_us: self._send(destination, now_us))
            if chunk is None:
                return False
            arrived = True
            failpoint("transfer.arrived")
            await change(self._logical, [source], lambda now_us: self._remove(chunk, now_us))
            failpoint("transfer.removed")
        except RetryRequest:
            # A storage failed. What became durable is known after its partitions are open again.
            await change(self._logical, [], lambda now_us: self._hold(arrived))
            return False
        self.moved += len(chunk.items)
        await self._slow_down(time.monotonic() - started)
        return True

    async def end(self) -> None:
        """Ends the move: from now on the source behaves as its state says."""
        if self._source.is_held:
            await self._recover()

        def run(now_us: int) -> None:
            self._let_go()
            self._source.end_leaving()

        await change(self._logical, [], run)

    # -- within a pass

    def _choose(self) -> Partition | None:
        """The emptiest partition that takes items, or else the emptiest one that is open."""
        candidates = [p for p in self._destinations() if p.allows.storage and p is not self._source]
        taking = [p for p in candidates if p.allows.produce]
        return min(taking or candidates, key=lambda p: (p.load, p.number), default=None)

    def _send(self, destination: Partition, now_us: int) -> Chunk | None:
        source = self._source
        if source.is_held:
            return None
        departing = source.contents
        items = departing.depart(JOB_CHUNK_ITEMS_MAX, JOB_CHUNK_BYTES_MAX)
        items = items or departing.depart_scheduled(JOB_CHUNK_ITEMS_MAX)
        if not items:
            return None
        self._let_go()
        self._chunk = chunk = Chunk(items, self._key(items), destination)
        arriving = destination.contents
        first = arriving.allocate(len(items), now_us)
        copies = [msgspec.structs.replace(item, seq=seq, birth=0) for seq, item in enumerate(items, first)]
        if items[0].enqueue_at:
            arriving.add_scheduled(copies)
        else:
            arriving.enter(copies)
        self._logical.remember(destination, [chunk.key], [now_us + MOVE_KEPT_US])
        return chunk

    def _remove(self, chunk: Chunk, now_us: int) -> None:
        if not self._source.is_held:
            self._source.contents.departed(chunk.items, now_us)

    def _hold(self, arrived: bool) -> None:
        """Holds the source back until the state of the last chunk is known."""
        self._source.hold()
        if self._chunk is not None and not arrived:
            self._logical.doubt(self._chunk.key)

    def _let_go(self) -> None:
        """Forgets the key of the last chunk, because the chunk is durably removed at the source."""
        chunk, self._chunk = self._chunk, None
        if chunk is not None:
            self._logical.forget(chunk.destination, chunk.key)

    # -- after a crash or a failure

    async def _recover(self) -> None:
        """Removes items from the source that have arrived elsewhere, and releases the rest.

        This runs even if the job is cancelled.
        """
        while self._source.is_held:
            # A partition's keys are known once it has been open, unless its storage failed during the chunk.
            doubtful = self._chunk.destination if self._chunk is not None else None
            needed = [self._source, *(p for p in self._destinations() if not p.opened_at or p is doubtful)]
            if all(partition.allows.storage for partition in needed):
                with contextlib.suppress(RetryRequest):  # a storage failed again
                    await self._tidy_up()
            self._registry.jobs.check_stopping()
            await asyncio.sleep(JOB_POLL_SECONDS)

    async def _tidy_up(self) -> None:
        source, logical = self._source, self._logical
        keys = logical.exact_keys(self._prefix)
        seqs = [seq for key in keys for seq in _sequences(key)]
        found = await read(logical, source, lambda store: store.find(seqs, payloads=False)) if seqs else {}
        items = [one.item for one in found.values() if one.item is not None and one.state != "leased"]

        def run(now_us: int) -> None:
            contents = source.contents
            chunk, self._chunk = self._chunk, None
            removed: set[int] = set()
            # If the source was not read again, it still counts the chunk as departing.
            if chunk is not None and chunk.key in keys:
                removed = contents.departed(chunk.items, now_us)
            elif chunk is not None:
                contents.stay(chunk.items, now_us)
            contents.remove_waiting([item for item in items if not item.enqueue_at])
            contents.remove_scheduled([item for item in items if item.enqueue_at and item.seq not in removed])

        await change(logical, [source], run)

        def release(now_us: int) -> None:
            source.release()
            for key in keys:
                for partition in self._destinations():
                    logical.forget(partition, key)

        await change(logical, [], release)

    # -- keys and pace

    @property
    def _prefix(self) -> str:
        return f"{JOB_PREFIX}{self._job.job_id} {self._source.number} "

    def _key(self, items: Iterable[Item]) -> str:
        """The key of a chunk: the sequences of its items as runs, `first+count,first+count`."""
        runs: list[list[int]] = []
        for seq in sorted(item.seq for item in items):
            if runs and runs[-1][0] + runs[-1][1] == seq:
                runs[-1][1] += 1
            else:
                runs.append([seq, 1])
        return self._prefix + ",".join(f"{first}+{count}" for first, count in runs)

    async def _slow_down(self, took: float) -> None:
        """Sleeps to keep the configured rate, and at least as long as the chunk took, so that clients get half of the
        loop."""
        rate = self._registry.config.limits.job_items_per_second
        ahead = self.moved / rate - (time.monotonic() - self._started)
        await asyncio.sleep(max(ahead, took))


def _sequences(key: str) -> list[int]:
    runs = (run.split("+") for run in key.rsplit(" ", 1)[1].split(","))
    return [seq for first, count in runs for seq in range(int(first), int(first) + int(count))]


# -- migrate into a partition


async def start(registry: Registry, logical: Logical, source: Partition, destination: Partition) -> Job:
    if source is destination:
        raise InvalidRequest(f"cannot migrate partition; partition '{source.number}' cannot be moved into itself")
    check_free(registry, [source, destination])
    for partition in (source, destination):
        if not partition.allows.storage or (partition is destination and partition.state is State.DRAINING):
            raise refusal("migrate", partition.number, partition.state)
    numbers = [source.number, destination.number]
    return await registry.jobs.start(INTO_PARTITION, logical.queue.name, numbers, to_partition=destination.number)


def _prepare(registry: Registry, logical: Logical, job: Job) -> None:
    logical.partitions[job.partition].begin_leaving()


async def _run(registry: Registry, job: Job) -> None:
    logical = registry.logicals[job.queue]
    source, destination = logical.partitions[job.partition], logical.partitions[job.details["to_partition"]]
    mover = Mover(registry, job, source, lambda: [destination])
    await mover.begin()
    try:
        while not source.is_empty or source.store is None:
            registry.jobs.check(job)
            if not await mover.move_chunk():
                await asyncio.sleep(JOB_POLL_SECONDS)
            job.done = mover.moved
            job.total = mover.moved + source.counts.stored
    finally:
        if not registry.stopping:
            await mover.end()


KINDS = {INTO_PARTITION: Kind(_run, _prepare)}
