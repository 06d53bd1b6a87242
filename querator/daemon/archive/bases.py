"""Bases: whole partition files for the archive, taken like a backup while the queue keeps working."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from querator import limits
from querator.daemon import priority
from querator.daemon.archive import care
from querator.daemon.archive.bucket import Away
from querator.daemon.archive.objects import Base, DamagedObject
from querator.daemon.archive.shipping import Shipper
from querator.daemon.engine import at_file, at_store
from querator.daemon.queue import Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import FileSnapshot, StorageError, Store, copies
from querator.errors import QueratorError
from querator.items import Room

log = logging.getLogger("querator.archive")

DIRECTORY: Final = "bases"
"""Below the data directory: files on their way to the archive."""


async def watch(registry: Registry, shipper: Shipper) -> None:
    """Takes a base of every partition that needs one, one after the other, for as long as the daemon runs."""
    # Copying a file takes a second of processor time or more, and nobody waits for it.
    thread = ThreadPoolExecutor(1, thread_name_prefix="querator-base", initializer=priority.lower)
    try:
        await _watch(registry, shipper, thread)
    finally:
        thread.shutdown(wait=False)


async def _watch(registry: Registry, shipper: Shipper, thread: Executor) -> None:
    loop = asyncio.get_running_loop()
    directory = registry.config.data / DIRECTORY
    await loop.run_in_executor(thread, _make_empty, directory)
    pruned_at = time.monotonic()
    failures = shipper.base_failures  # a reason is logged once, however often it is met
    while True:
        if time.monotonic() - pruned_at >= limits.ARCHIVE_PRUNE_SECONDS:
            pruned_at = time.monotonic()
            await loop.run_in_executor(thread, _prune, registry, shipper)
        for uuid in shipper.wanted_bases():
            found = _find(registry, uuid)
            if found is None:
                continue
            try:
                await _take(registry, shipper, thread, *found, directory / f"{uuid}.duckdb")
                failures.pop(uuid, None)
            except (Away, QueratorError, StorageError, OSError) as error:
                if failures.get(uuid) != str(error):
                    failures[uuid] = str(error)
                    log.warning("a base was not taken", extra={"partition": uuid, "reason": str(error)})
        await asyncio.sleep(limits.ARCHIVE_BASE_CHECK_SECONDS)


def _prune(registry: Registry, shipper: Shipper) -> None:
    """Blocking. Deletes objects that are older than the archive has to keep."""
    before_us = registry.clock.now_us() - int(shipper.config.keep * limits.US_PER_SECOND)
    try:
        found = care.prune(shipper.bucket, before_us)
    except (Away, DamagedObject) as error:
        log.warning("archive was not pruned", extra={"reason": str(error)})
    else:
        log.info("archive was pruned", extra={"objects": found.objects, "bytes": found.size})


def _make_empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)


def _find(registry: Registry, uuid: str) -> tuple[Logical, Partition] | None:
    """The partition if its file can be copied now."""
    for logical in registry.logicals.values():
        for partition in logical.partitions:
            if partition.placement.uuid == uuid:
                is_open = partition.store is not None and partition.allows.storage
                return (logical, partition) if is_open or _is_withheld(registry, partition) else None
    return None


def _is_withheld(registry: Registry, partition: Partition) -> bool:
    """Whether the partition is closed because the archive lacks something. That may be the base of this partition."""
    return bool(registry.storages.withheld) and partition.store is None and partition.should_be_open


async def _take(
    registry: Registry, shipper: Shipper, thread: Executor, logical: Logical, partition: Partition, path: Path
) -> None:
    loop = asyncio.get_running_loop()
    # Read before the snapshot: records after the snapshot are in this log object or a later one.
    since = shipper.ledger.number + 1
    if _is_withheld(registry, partition):
        snapshot = await at_file(logical, partition, lambda: _snapshot_of_withheld(registry, partition))
    else:
        snapshot = await at_store(logical, partition, _snapshot)
    source = registry.storages[partition.placement.storage].directory / f"{partition.placement.uuid}.duckdb"

    def check(done: int) -> None:
        if registry.stopping:
            raise StorageError("the daemon stops")

    writing = loop.run_in_executor(thread, _upload, shipper, snapshot, since, source, path, check)
    try:
        await asyncio.shield(writing)
    finally:
        # The snapshot must not be closed while a thread reads it.
        if not writing.done():
            await asyncio.wait([writing])
            writing.exception()  # nobody else asks for it
        await loop.run_in_executor(thread, snapshot.close)


def _snapshot(store: Store) -> FileSnapshot:
    store.flush()
    return store.snapshot()


def _snapshot_of_withheld(registry: Registry, partition: Partition) -> FileSnapshot:
    """Blocking. Opens the file for the copy only. Nobody else opens it until the archive has everything."""
    if not _is_withheld(registry, partition):
        raise StorageError("the partition is open again")
    placement = partition.placement
    return _snapshot(registry.storages.opened(placement.storage).open(placement.uuid, placement.queue))


def _check_room(source: Path, directory: Path) -> None:
    """Refuses a copy that would fill the disk: serving needs the space more than the archive does."""
    there = os.statvfs(directory)
    size = source.stat().st_size
    room = Room(max(0, there.f_bavail * there.f_frsize - size), there.f_blocks * there.f_frsize)
    if room.is_low:
        raise StorageError(f"the disk of {directory} has no room for a copy of {size / 1e6:,.1f} MB")


def _upload(
    shipper: Shipper, snapshot: FileSnapshot, since: int, source: Path, path: Path, check: Callable[[int], None]
) -> None:
    """Blocking."""
    _check_room(source, path.parent)
    try:
        written = copies.write_snapshot(snapshot, path, check)
        size, sha256 = path.stat().st_size, copies.file_hash(path)
        # The hash is in the name, because an upload that seemed to fail may still arrive, after the next attempt.
        name = f"base/{written.uuid}/{shipper.ledger.epoch:08d}-{since:016d}-{written.applied}-{sha256[:16]}.duckdb"
        shipper.bucket.upload(name, path)
        shipper.add_base(Base(written.uuid, written.queue, written.applied, since, name, sha256, size))
        log.info("base was taken", extra={"partition": written.uuid, "bytes": size})
    finally:
        for half in (path, path.with_name(path.name + ".wal")):
            half.unlink(missing_ok=True)
