"""Chooses storages for new partitions, and creates and deletes partition files."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence

from querator.daemon.registry import Registry
from querator.daemon.store import StorageError, Store
from querator.errors import RequestFailed
from querator.items import Placement
from querator.limits import CREATE_THREADS

log = logging.getLogger("querator.queues")


def shares(affinities: Sequence[float], count: int) -> list[int]:
    """Splits a count by affinity, rounding by largest remainder. Returns [] if no storage takes partitions."""
    total = sum(affinities)
    if total <= 0:
        return []
    exact = [affinity / total * count for affinity in affinities]
    given = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: exact[i] - given[i], reverse=True)
    for i in by_remainder[: count - sum(given)]:
        given[i] += 1
    return given


def place(registry: Registry, queue: str, count: int, first: int) -> list[Placement]:
    """Returns placements of new partitions, numbered from `first` and spread over the storages by affinity."""
    storages = [storage for storage in registry.config.storages if storage.name in registry.storages]
    given = shares([storage.affinity for storage in storages], count)
    if not given:
        raise RequestFailed("queue has no available partitions")
    names = [storage.name for storage, n in zip(storages, given, strict=True) for _ in range(n)]
    return [
        Placement(queue=queue, number=first + i, uuid=str(uuid.uuid4()), storage=name, since=registry.clock.now_us())
        for i, name in enumerate(names)
    ]


async def create_files(registry: Registry, placements: list[Placement]) -> list[Store]:
    """Creates the files of new partitions, all or none. Returns their open stores."""

    def create_some(some: list[Placement]) -> list[Store]:
        return [registry.storages[one.storage].create(one.uuid, one.queue) for one in some]

    await registry.blocking(registry.catalog.announce, placements)
    size = -(-len(placements) // CREATE_THREADS)
    parts = [placements[first : first + size] for first in range(0, len(placements), size)]
    made = await asyncio.gather(*(registry.blocking(create_some, part) for part in parts), return_exceptions=True)
    for error in made:
        if isinstance(error, StorageError):
            await delete_leftovers(registry)
            raise RequestFailed(f"partition cannot be created; {error}") from error
        if isinstance(error, BaseException):
            raise error
    return [store for stores in made if isinstance(stores, list) for store in stores]


async def delete_leftovers(registry: Registry) -> None:
    """Deletes the files of partitions that the catalog no longer lists, also those that a crash left behind."""
    gone = []
    for leftover in await registry.blocking(registry.catalog.leftovers):
        storage = registry.storages.get(leftover.storage)
        if storage is None:
            continue
        try:
            await registry.blocking(storage.delete, leftover.uuid)
            gone.append(leftover)
        except (StorageError, OSError) as error:
            # No queue uses the file any more, so the next call may delete it.
            log.warning("file cannot be deleted yet", extra={"storage": leftover.storage, "reason": str(error)})
    if gone:
        await registry.blocking(registry.catalog.forget_leftovers, gone)


def file_sizes(registry: Registry, placements: Sequence[Placement]) -> list[int]:
    """Blocking. Uses stat and never opens a file: closing it again would drop DuckDB's lock on it."""
    directories = {storage.name: storage.directory for storage in registry.config.storages}
    found = []
    for placement in placements:
        size = 0
        for name in (file_name(placement), file_name(placement) + ".wal"):
            try:
                size += (directories[placement.storage] / name).stat().st_size
            except (OSError, KeyError):
                continue
        found.append(size)
    return found


def file_name(placement: Placement) -> str:
    return f"{placement.uuid}.duckdb"
