"""The call that lists storages: where they are, and how much room they have."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final

from querator.config import StorageConfig
from querator.daemon.access import Caller, Right
from querator.daemon.admin.partition_files import file_name
from querator.daemon.registry import CallsByCaller, Registry
from querator.items import Room
from querator.wire import messages

UNUSABLE: Final = "it cannot be used; the log says why"


async def list_(
    registry: Registry, request: messages.StoragesListRequest, caller: Caller
) -> messages.StoragesListResponse:
    """Lists the storages. Only admins see paths of the daemon's machine: directories, and reasons with a path. The
    partitions of queues that the caller may not see do not count."""
    placed = [partition.placement for logical in registry.logicals.values() for partition in logical.partitions]
    partitions = Counter(placement.storage for placement in placed if caller.may(Right.VIEW, placement.queue))
    files = {file_name(placement) for placement in placed}
    items = await registry.blocking(lambda: [_look(one, files) for one in registry.config.storages])
    for item in items:
        item.partitions = partitions[item.storage]
        storage = registry.storages.get(item.storage)
        if storage is None:
            item.reason = item.reason or UNUSABLE
        else:
            item.reason = item.reason or storage.failure or storage.shortage or _room(item)
            item.unapplied_bytes = storage.unapplied_bytes
        if not caller.may(Right.ADMIN):
            item.directory = ""
        item.reason = caller.readable(item.reason)
    return messages.StoragesListResponse(items=items)


def _look(storage: StorageConfig, files: Collection[str]) -> messages.StorageStatus:
    """Blocking. Opens no file: closing a partition file again would drop DuckDB's lock on it."""
    status = messages.StorageStatus(storage=storage.name, directory=str(storage.directory))
    try:
        usage = shutil.disk_usage(storage.directory)
        status.free_bytes, status.total_bytes = usage.free, usage.total
        status.partition_bytes = _occupied(storage.directory, files)
        status.journal_bytes = _occupied(storage.directory / "journal")
    except OSError as error:
        status.reason = error.strerror or str(error)
    return status


def _room(status: messages.StorageStatus) -> str:
    """Says that the disk is full or nearly full; empty if it is not."""
    room = Room(status.free_bytes, status.total_bytes)
    if not room.free_bytes:
        return "its disk is full"
    return f"its disk is nearly full: {room}" if room.is_low else ""


def _occupied(directory: Path, files: Collection[str] | None = None) -> int:
    """The disk space of the files in a directory: of all files, or of the named ones and their write-ahead logs."""
    with os.scandir(directory) as entries:
        return 512 * sum(
            entry.stat(follow_symlinks=False).st_blocks
            for entry in entries
            if entry.is_file() and (files is None or entry.name.removesuffix(".wal") in files)
        )


CALLS_BY_CALLER: CallsByCaller = {"storages.list": list_}
