"""partitions.migrate: moves a partition's file to another storage, or its items into another partition
(`into_partition.py`).

To another storage: the partition is closed, its file is copied and verified there, the catalog switches in one
transaction, and the partition is opened from there. Ids, leases and schedules are in the file and survive. The other
partitions never stop.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from querator.daemon.admin import check_free, closed_partition, delete_leftovers, file_name, file_sizes, usable_storage
from querator.daemon.engine import change
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs import into_partition
from querator.daemon.jobs.runner import Kind
from querator.daemon.queue import Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import Storage, StorageError, copies
from querator.errors import InvalidRequest, RequestFailed
from querator.items import Job, Placement
from querator.limits import JOB_ROOM_BYTES_MIN
from querator.wire import messages

TO_STORAGE = "migrate to storage"


async def migrate(registry: Registry, request: messages.PartitionsMigrateRequest) -> messages.JobReply:
    logical = registry.find(request.queue_name)
    partition = registry.partition(logical, request.partition)
    if (request.to_partition is None) == (not request.to_storage):
        raise InvalidRequest("migrate is invalid; one of 'to_partition' and 'to_storage' must be given, not both")
    if request.to_partition is not None:
        destination = registry.partition(logical, request.to_partition)
        job = await into_partition.start(registry, logical, partition, destination)
    else:
        job = await _start(registry, logical, partition, request.to_storage)
    return messages.JobReply(job_id=job.job_id)


async def _start(registry: Registry, logical: Logical, partition: Partition, to_storage: str) -> Job:
    number = partition.number
    names = [storage.name for storage in registry.config.storages]
    if to_storage not in names:
        known = ", ".join(f"'{name}'" for name in names)
        raise InvalidRequest(f"storage does not exist; no such storage '{to_storage}', there are {known}")
    if partition.placement.storage == to_storage:
        raise InvalidRequest(f"cannot migrate partition; partition '{number}' is in storage '{to_storage}' already")
    check_free(registry, [partition])
    storage = await usable_storage(registry, to_storage)
    (size,) = await registry.blocking(file_sizes, registry, [partition.placement])
    await registry.blocking(check_room, storage, partition.placement, size)
    return await registry.jobs.start(TO_STORAGE, logical.queue.name, [number], to_storage=to_storage)


def check_room(storage: Storage, placement: Placement, size_bytes: int) -> None:
    """Blocking. Refuses early, while the partition still serves, if the storage cannot take the file."""
    try:
        storage.staging(placement.uuid).rmdir()
        free = shutil.disk_usage(storage.directory).free
    except (OSError, StorageError) as error:
        raise RequestFailed(f"storage cannot be used; {error}") from error
    if free < size_bytes + JOB_ROOM_BYTES_MIN:
        raise RequestFailed(
            f"storage '{storage.name}' is full; {size_bytes + JOB_ROOM_BYTES_MIN} bytes are needed, {free} are free"
        )


def _prepare(registry: Registry, logical: Logical, job: Job) -> None:
    """After a crash the partition stays closed until the job has resumed."""
    partition = logical.partitions[job.partition]
    if partition.placement.storage != job.details["to_storage"]:
        partition.keep_closed("a migration")


async def _run(registry: Registry, job: Job) -> None:
    """Close, copy, verify, switch, open, delete the old file. Before the switch a failure undoes everything; after it
    the next start finishes the rest."""
    logical = registry.logicals[job.queue]
    partition = logical.partitions[job.partition]
    target = await _target(registry, job, logical, partition)
    if partition.placement.storage != target.name:  # an earlier process may have switched already
        async with closed_partition(registry, logical, partition, "a migration") as unclean:
            failpoint("migrate.closed")
            placement = partition.placement
            if unclean:
                await registry.blocking(registry.storages.apply_journal, placement)
            staging = await registry.blocking(target.staging, placement.uuid)
            try:
                fresh = await registry.blocking(_copy_verified, registry, job, placement, target, staging)
                failpoint("migrate.verified")
                await _switch(registry, job, logical, placement, target, fresh)
                failpoint("migrate.switched")
            finally:
                await registry.blocking(shutil.rmtree, staging, True)
            await change(logical, [], lambda now_us: _moved(partition, target))
        if partition.health.error:
            raise RequestFailed(f"partition cannot be opened in storage '{target.name}'; {partition.health.error}")
    async with registry.changing:
        await delete_leftovers(registry)
    failpoint("migrate.deleted")


def _moved(partition: Partition, target: Storage) -> None:
    partition.change_placement(msgspec.structs.replace(partition.placement, storage=target.name))


async def _target(registry: Registry, job: Job, logical: Logical, partition: Partition) -> Storage:
    """The target storage. If it cannot be used, the partition opens again where it is."""
    try:
        return await usable_storage(registry, job.details["to_storage"])
    except RequestFailed:
        partition.allow_opening()
        logical.wake()
        raise


def _copy_verified(registry: Registry, job: Job, placement: Placement, target: Storage, staging: Path) -> Path:
    """Blocking. Copies the partition's file to the target storage, and compares its bytes and its rows."""
    path = registry.storages[placement.storage].directory / file_name(placement)
    fresh = staging / path.name
    job.total = path.stat().st_size

    def check(done: int) -> None:
        job.done = done
        registry.jobs.check(job)

    rows = copies.row_counts(path)
    copied = copies.copy_file(path, fresh, registry.config.limits.job_bytes_per_second, check)
    failpoint("migrate.copied")
    if copies.file_hash(fresh, lambda done: registry.jobs.check(job)) != copied:
        raise RequestFailed(f"storage '{target.name}' gave back other bytes than were written to it")
    if copies.row_counts(fresh) != rows:
        raise RequestFailed(f"the copy in storage '{target.name}' does not hold what the partition had")
    return fresh


async def _switch(
    registry: Registry, job: Job, logical: Logical, placement: Placement, target: Storage, fresh: Path
) -> None:
    """Puts the copy in its place and records that in the catalog.

    The lock keeps others from deleting the queue or leftover files between these two steps.
    """
    async with registry.changing:
        if registry.logicals.get(job.queue) is not logical:
            raise RequestFailed(f"queue '{job.queue}' is gone")
        registry.jobs.check(job)
        await delete_leftovers(registry)
        await registry.blocking(target.adopt, placement.uuid, fresh)
        failpoint("migrate.placed")
        try:
            await registry.blocking(registry.catalog.switch_storage, placement, target.name)
        except Exception:
            await registry.blocking(target.delete, placement.uuid)
            raise
        # After a cancellation nobody knows whether the catalog has recorded it. The next start finds out.


KINDS = {TO_STORAGE: Kind(_run, _prepare), **into_partition.KINDS}
CALLS = {"partitions.migrate": migrate}
