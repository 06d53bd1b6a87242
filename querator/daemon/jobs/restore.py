"""partitions.restore: replaces partitions' files by verified copies of a backup's files.

Partitions are restored one after the other. While a partition still serves, the backup's file is copied beside the
partition's file and compared with the manifest. Then the partition is closed, the file is replaced in one step, and the
partition is opened again. A queue that does not exist is created from the settings in the backup. Its partitions stay
closed until they are restored, and if the restore fails the queue is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from querator.daemon.admin import (
    check_free,
    check_restorable,
    closed_partition,
    create_queue,
    file_name,
    remove_queue,
    save_state_after_reload,
    usable_storage,
)
from querator.daemon.engine import change
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs import manifest
from querator.daemon.jobs.runner import Kind
from querator.daemon.jobs.to_storage import check_room
from querator.daemon.queue import Logical, Partition
from querator.daemon.registry import Registry
from querator.daemon.store import StorageError, copies
from querator.errors import InvalidRequest, NotFound, RequestFailed
from querator.items import Job, Placement
from querator.wire import messages

RESTORE = "restore"


async def restore(registry: Registry, request: messages.PartitionsRestoreRequest) -> messages.JobReply:
    directory = await registry.blocking(manifest.target_directory, request.from_, "from")
    found = await registry.blocking(manifest.read, directory)
    is_new = request.queue_name not in registry.queues
    entries = _chosen(found, request.partitions)
    if is_new:
        settings = _settings(found, request.queue_name)
        placements = check_restorable(registry, settings)
    else:
        logical = registry.find(request.queue_name)
        placements = _placements(registry, logical, found, entries, directory)
    for entry in entries:
        if not await registry.blocking((directory / entry.file).is_file):
            raise RequestFailed(f"the backup in {directory} is not whole; {entry.file} is missing")
        storage = await usable_storage(registry, placements[entry.partition].storage)
        await registry.blocking(check_room, storage, placements[entry.partition], entry.bytes)
    if request.dry_run:
        for entry in entries:
            await _try(registry, placements[entry.partition], directory, entry)
        return messages.JobReply()
    numbers = [entry.partition for entry in entries]
    if is_new:
        await create_queue(registry, settings, closed_for="a restore")
        logical = registry.logicals[settings.queue_name]
    try:
        job = await registry.jobs.start(
            RESTORE, logical.queue.name, numbers, directory=str(directory), restored=[], at=-1, is_new=is_new
        )
    except BaseException:
        if is_new:
            await remove_queue(registry, logical)
        raise
    return messages.JobReply(job_id=job.job_id)


def _chosen(found: manifest.Manifest, numbers: list[int]) -> list[manifest.Entry]:
    """The entries that a request names; none named means all."""
    entries = {entry.partition: entry for entry in found.partitions}
    for number in numbers:
        if number not in entries:
            raise NotFound(f"partition is invalid; in the backup '{number}' is not a valid partition")
    return [entries[number] for number in dict.fromkeys(numbers or sorted(entries))]


def _settings(found: manifest.Manifest, name: str) -> messages.QueueInfo:
    """The settings for the new queue: those of the backup, with the new name and a partition for every backed-up
    one."""
    settings = found.settings
    settings.queue_name = name
    highest = max((entry.partition for entry in found.partitions), default=0)
    settings.requested_partitions = max(settings.requested_partitions, highest + 1)
    return settings


def _placements(
    registry: Registry, logical: Logical, found: manifest.Manifest, entries: list[manifest.Entry], directory: Path
) -> list[Placement]:
    """Returns the placements of an existing queue. Refuses a backup that does not fit the queue."""
    backed_up = found.settings.queue_name
    if backed_up != logical.queue.name:
        raise InvalidRequest(
            f"from is invalid; {directory} holds a backup of queue '{backed_up}',"
            " restore it under a name that no queue has yet"
        )
    for entry in entries:
        if entry.partition >= len(logical.partitions):
            raise InvalidRequest(
                f"cannot restore partition; the backup has partition '{entry.partition}' and the queue has not,"
                " resize it first or name partitions"
            )
        for other in logical.partitions:
            if other.placement.uuid == entry.uuid and other.number != entry.partition:
                raise InvalidRequest(
                    f"cannot restore partition; the backup of partition '{entry.partition}' is of what is partition"
                    f" '{other.number}' now"
                )
    check_free(registry, [logical.partitions[entry.partition] for entry in entries])
    return [partition.placement for partition in logical.partitions]


def _prepare(registry: Registry, logical: Logical, job: Job) -> None:
    """A partition whose file the job may have been replacing stays closed until the job has resumed."""
    for partition in logical.partitions:
        is_concerned = job.details["is_new"] or partition.number == job.details["at"]
        if is_concerned and partition.number not in job.details["restored"]:
            partition.keep_closed("a restore")


async def _run(registry: Registry, job: Job) -> None:
    logical = registry.logicals[job.queue]
    directory = Path(job.details["directory"])
    is_new = job.details["is_new"]
    try:
        found = await registry.blocking(manifest.read, directory)
        entries = {entry.partition: entry for entry in found.partitions}
        job.total = sum(entries[number].bytes for number in job.details["partitions"])
        job.done = sum(entries[number].bytes for number in job.details["restored"])
        for number in job.details["partitions"]:
            if number not in job.details["restored"]:
                job.partition = number
                await _restore_one(registry, logical, logical.partitions[number], directory, entries[number], job)
    except BaseException:
        if is_new and not registry.stopping:
            await remove_queue(registry, logical)
        raise
    finally:
        if registry.logicals.get(job.queue) is logical:
            for partition in logical.partitions:
                if is_new or partition.number == job.details["at"]:
                    partition.allow_opening()
            logical.wake()
    if is_new:
        await registry.until_opened(logical)


async def _restore_one(
    registry: Registry, logical: Logical, partition: Partition, directory: Path, entry: manifest.Entry, job: Job
) -> None:
    placement = partition.placement
    storage = await usable_storage(registry, placement.storage)
    staging = await registry.blocking(storage.staging, placement.uuid)
    before = job.done

    def check(done: int) -> None:
        job.done = before + done
        registry.jobs.check(job)

    try:
        fresh = staging / file_name(placement)
        await registry.blocking(_stage, registry, directory / entry.file, fresh, entry, placement, check)
        job.done = before + entry.bytes
        failpoint("restore.staged")
        job.details["at"] = partition.number
        await registry.jobs.save(job)
        async with closed_partition(registry, logical, partition, "a restore"):
            failpoint("restore.closed")
            registry.jobs.check(job)
            await registry.blocking(storage.adopt, placement.uuid, fresh)
            failpoint("restore.placed")
            if job.details["is_new"]:
                new = await _as_it_was(registry, partition, entry)
            else:
                new = await save_state_after_reload(registry, partition)
            job.details["restored"].append(partition.number)
            await registry.jobs.save(job)
            failpoint("restore.recorded")

            def run(now_us: int) -> None:
                partition.change_placement(new)

            await change(logical, [], run)
    finally:
        await registry.blocking(shutil.rmtree, staging, True)
    if partition.health.error:
        raise RequestFailed(
            f"partition '{partition.number}' was restored and cannot be opened; {partition.health.error}"
        )


async def _as_it_was(registry: Registry, partition: Partition, entry: manifest.Entry) -> Placement:
    """Records the state that the partition had when it was backed up."""
    new = msgspec.structs.replace(partition.placement, requested=entry.state, resume_at=entry.resume_at)
    await registry.blocking(registry.catalog.save_placements, [new])
    return new


async def _try(registry: Registry, placement: Placement, directory: Path, entry: manifest.Entry) -> None:
    """Does everything that a restore does before it replaces files, and discards the result."""
    storage = await usable_storage(registry, placement.storage)
    staging = await registry.blocking(storage.staging, placement.uuid)
    fresh = staging / file_name(placement)

    def check(done: int) -> None:
        registry.check_running()

    try:
        await registry.blocking(_stage, registry, directory / entry.file, fresh, entry, placement, check)
    finally:
        await registry.blocking(shutil.rmtree, staging, True)


def _stage(
    registry: Registry,
    source: Path,
    fresh: Path,
    entry: manifest.Entry,
    placement: Placement,
    check: Callable[[int], None],
) -> None:
    """Blocking. Copies a file of the backup, and checks it against the manifest."""
    try:
        copied = copies.copy_file(source, fresh, registry.config.limits.job_bytes_per_second, check)
        if copied != entry.sha256:
            raise RequestFailed(f"the backup is damaged; {source} is not what its manifest says")
        found = copies.contents(fresh)
        if found.rows != entry.rows or found.uuid != entry.uuid:
            raise RequestFailed(f"the backup is damaged; {source} does not hold what its manifest says")
        if (entry.uuid, found.queue) != (placement.uuid, placement.queue):
            with copies.inspected(fresh, writable=True) as cursor:
                cursor.execute("UPDATE file.meta SET uuid = ?, queue = ?", [placement.uuid, placement.queue])
                cursor.execute("CHECKPOINT file")
    except StorageError as error:
        raise RequestFailed(f"the backup in {source.parent} cannot be used; {source.name}: {error}") from error


KINDS = {RESTORE: Kind(_run, _prepare)}
CALLS = {"partitions.restore": restore}
