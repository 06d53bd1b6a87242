"""Reads on a standby: its queues, as far as it has replayed the archive.

The queues of a standby are ordinary Logicals on the stores that the standby replays into. Their partitions are held, so
no timer changes anything, and only reads reach them. Reads and the replay take turns. The replay does not tell the
queues what it changes. Instead, before a request is answered, partitions with new records are read again, as at a
start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final, NamedTuple

from querator import limits
from querator.daemon.archive.standby import Replayed, Standby
from querator.daemon.archive.standby_files import StandbyFiles
from querator.daemon.engine import Turns, at_store
from querator.daemon.queue import Logical, Move, Partition, Snapshot, read_snapshot
from querator.daemon.registry import PROMOTING, Registry
from querator.daemon.storages import Storages
from querator.daemon.store import StorageError, Store
from querator.errors import QueratorError, RetryRequest
from querator.items import Counts, Placement, Queue, State, Token

log = logging.getLogger("querator.archive")

READS: Final = frozenset(
    {
        "queue.stats",
        "queues.list",
        "queues.info",
        "queues.history",
        "queues.overview",
        "storage/items.list",
        "storage/scheduled.list",
        "items.inspect",
        "partitions.list",
        "jobs.list",
        "jobs.show",
        "storages.list",
        "daemon.status",
        "tokens.list",
        "tokens.whoami",
        "audit.list",
    }
)
"""The calls that a standby answers."""


class FollowedStorages(Storages):
    """The storages of a standby. Their stores are open already."""

    def __init__(self, registry: Registry, files: StandbyFiles) -> None:
        super().__init__(registry.config.storages, lambda storage: None)
        self.records: dict[str, int] = {}
        """The last record of each partition when it was last read."""
        self._files = files
        self.update(files.storages)

    def open_store(self, placement: Placement) -> Store:
        store = self._files.stores.get(placement.uuid)
        if store is None:
            raise StorageError("the archive has no copy of its file yet", [placement.uuid])
        self.records[placement.uuid] = store.record_written  # what is read next has these
        return store

    def release_store(self, placement: Placement) -> None:
        """Leaves the store open, because the standby needs it."""


class _Followed(NamedTuple):
    """What the catalog and the standby have at one moment."""

    layout: int
    queues: list[Queue]
    placements: dict[str, list[Placement]]
    counts: dict[str, Counts]
    """Of partitions that are offline."""
    tokens: list[Token]
    stores: dict[str, Store]


class StandbyReads:
    """All methods run on the loop's thread."""

    def __init__(self, registry: Registry, standby: Standby) -> None:
        self._registry = registry
        self._standby = standby
        self._files = standby.files
        self._layout = -1
        self._built_from: dict[str, tuple[object, ...]] = {}
        """What each queue was made from. A queue is made again when this changes."""
        self._storages: FollowedStorages
        self._token_clock: asyncio.Task[None]
        self._refresh: asyncio.Task[None] | None = None
        self._refreshed_at = 0.0
        self.shown: Replayed = standby.replayed()
        """How far the standby was when the queues were last read."""

    def start(self) -> None:
        registry = self._registry
        registry.catalog = self._files.catalog
        registry.storages = self._storages = FollowedStorages(registry, self._files)
        registry.turns = Turns(registry.clock, registry.storages.values(), _deliver)
        registry.turns.threads.guard = self._files.lock
        self._token_clock = asyncio.get_running_loop().create_task(self._end_expired_tokens())

    async def close(self) -> None:
        """Ends all reads. They fail, if the standby has closed its files already."""
        registry = self._registry
        self._token_clock.cancel()
        if self._refresh is not None:
            await self._refresh
        for logical in registry.logicals.values():
            logical.stop()
        await registry.turns.drain()
        registry.turns.close()
        registry.queues.clear()
        registry.logicals.clear()
        registry.use_storages_of_config()

    async def _end_expired_tokens(self) -> None:
        """Last uses of tokens are not saved here: the catalog is a copy of the owner's."""
        while True:
            await asyncio.sleep(self._registry.access.seconds_until_check())
            self._registry.access.tick()

    # -- keeping up

    async def refresh(self) -> None:
        """Makes the queues agree with what the standby has replayed, unless that was done a moment ago."""
        if self._refresh is None:
            if time.monotonic() - self._refreshed_at < limits.STANDBY_REFRESH_SECONDS:
                return
            self._refresh = asyncio.get_running_loop().create_task(self._catch_up())
        await asyncio.shield(self._refresh)  # several requests may wait for it

    async def _catch_up(self) -> None:
        try:
            replayed = self._standby.replayed()
            if self._layout != self._files.layout:
                await self._take_catalog()
            await asyncio.gather(*(self._read_again(*one) for one in self._changed()))
            self.shown = replayed
        except QueratorError as error:
            log.warning("the standby shows an older state", extra={"reason": str(error)})
        finally:
            self._refresh, self._refreshed_at = None, time.monotonic()

    def _changed(self) -> list[tuple[Logical, Partition, Store]]:
        return [
            (logical, partition, store)
            for logical in self._registry.logicals.values()
            for partition in logical.partitions
            if (store := partition.store) is not None and store.record_written != self._storages.records[store.uuid]
        ]

    async def _read_again(self, logical: Logical, partition: Partition, store: Store) -> None:
        bounds, now_us = self._registry.config.limits, self._registry.clock.now_us()

        def work(store: Store) -> tuple[int, Snapshot]:
            return store.record_written, read_snapshot(store, bounds, now_us)

        # The standby may have dropped the store meanwhile. The next refresh finds its successor.
        with contextlib.suppress(StorageError, QueratorError):
            record, snapshot = await at_store(logical, partition, work)
            if partition.store is store:
                partition.opened(store, snapshot, now_us)
                self._storages.records[store.uuid] = record

    async def _take_catalog(self) -> None:
        registry = self._registry
        known = await registry.blocking(self._known)
        registry.access.follow(known.tokens)
        await registry.jobs.load()
        retired = []
        queues = {queue.name: queue for queue in known.queues}
        for name in registry.queues.keys() - queues.keys():
            retired.append(registry.logicals.pop(name))
            del registry.queues[name], self._built_from[name]
        for name, queue in queues.items():
            placements = known.placements.get(name, [])
            stores = [id(known.stores.get(placement.uuid)) for placement in placements]
            counts = [known.counts.get(placement.uuid) for placement in placements]
            built_from = (queue, placements, stores, counts)
            if self._built_from.get(name) != built_from:
                if name in registry.logicals:
                    retired.append(registry.logicals[name])
                self._built_from[name] = built_from
                self._load(queue, placements, known.counts)
        self._layout = known.layout
        await registry.until_opened(*registry.logicals.values())
        for logical in retired:
            await self._until_at_rest(logical)
            registry.turns.remove(logical)

    async def _until_at_rest(self, logical: Logical) -> None:
        turns = self._registry.turns
        await turns.until(lambda: not turns.is_busy(logical) and logical.is_at_rest())

    def _known(self) -> _Followed:
        """Blocking."""
        files, catalog = self._files, self._files.catalog
        with files.lock:
            if files.is_closed:
                raise RetryRequest(PROMOTING)
            placements: dict[str, list[Placement]] = {}
            for placement in catalog.placements():
                placements.setdefault(placement.queue, []).append(placement)
            return _Followed(
                files.layout, catalog.queues(), placements, catalog.counts(), catalog.tokens(), dict(files.stores)
            )

    def _load(self, queue: Queue, placements: list[Placement], counts: dict[str, Counts]) -> None:
        for partition in self._registry.load(queue, placements).partitions:
            partition.hold()
            uuid = partition.placement.uuid
            if partition.placement.requested is State.UNAVAILABLE and uuid in counts:
                partition.recall(counts[uuid])


def _deliver(source: Logical, move: Move) -> None:
    raise AssertionError("a standby moves no items")
