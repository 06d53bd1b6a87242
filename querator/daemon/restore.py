"""partitions.restore: a backup's files in the place of partitions' files, verified first.

One partition after the other: the copy is made beside the partition's file and compared with what the manifest says
while the partition still serves; then the partition is closed, the files are switched in one step, and it is read
again. A backup of a partition that no longer exists may be restored into the one that has its number.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from querator.daemon import maintenance, manifest
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs import Kind
from querator.daemon.logical import Logical
from querator.daemon.migrate import check_room
from querator.daemon.partition import Partition
from querator.daemon.store import copies
from querator.daemon.stored import change
from querator.errors import InvalidRequest, NotFound, RequestFailed
from querator.items import Job, Placement
from querator.wire import messages

if TYPE_CHECKING:
    from querator.daemon.service import Service

RESTORE = "restore"


async def restore(service: Service, request: messages.PartitionsRestoreRequest) -> messages.JobReply:
    logical = service.find(request.queue_name)
    named = [partition.number for partition in maintenance.chosen(service, logical, request.partitions)]
    directory = manifest.target_directory(request.from_, "from")
    found = await service.blocking(manifest.read, directory)
    if found.queue_name != request.queue_name:
        raise InvalidRequest(f"from is invalid; {directory} holds a backup of queue '{found.queue_name}'")
    entries = {entry.partition: entry for entry in found.partitions}
    numbers = named if request.partitions else sorted(entries)
    for number in numbers:
        if number not in entries:
            raise NotFound(f"partition is invalid; in the backup '{number}' is not a valid partition")
        if number >= len(logical.partitions):
            raise InvalidRequest(
                f"cannot restore partition; the backup has partition '{number}' and the queue has not,"
                " resize it first or name partitions"
            )
        _check_owner(service, logical.partitions[number].placement, entries[number])
    partitions = [logical.partitions[number] for number in numbers]
    maintenance.check_free(service, partitions)
    for partition in partitions:
        entry = entries[partition.number]
        if not (directory / entry.file).is_file():
            raise RequestFailed(f"the backup in {directory} is not whole; {entry.file} is missing")
        storage = await maintenance.usable(service, partition.placement.storage)
        await service.blocking(check_room, storage, partition.placement, entry.bytes)
    job = await service.jobs.start(RESTORE, logical.queue.name, numbers, directory=str(directory), restored=[], at=-1)
    return messages.JobReply(job_id=job.job_id)


def _check_owner(service: Service, placement: Placement, entry: manifest.Entry) -> None:
    """A file of another partition that is in use must not be had twice."""
    for logical in service.logicals.values():
        for other in logical.partitions:
            if other.placement.uuid == entry.uuid != placement.uuid:
                raise InvalidRequest(
                    f"cannot restore partition; the backup of partition '{entry.partition}' is of partition"
                    f" '{other.number}' of queue '{other.placement.queue}', which still exists"
                )


def _prepare(service: Service, logical: Logical, job: Job) -> None:
    """A partition whose files may be about to be switched stays closed until that is known."""
    at = job.details["at"]
    if at >= 0 and at not in job.details["restored"]:
        logical.partitions[at].closed_for = "a restore"


async def _run(service: Service, job: Job) -> None:
    logical = service.logicals[job.queue]
    directory = Path(job.details["directory"])
    try:
        found = await service.blocking(manifest.read, directory)
        entries = {entry.partition: entry for entry in found.partitions}
        job.total = sum(entries[number].bytes for number in job.details["partitions"])
        job.done = sum(entries[number].bytes for number in job.details["restored"])
        for number in job.details["partitions"]:
            if number not in job.details["restored"]:
                job.partition = number
                await _restore_one(service, logical, logical.partitions[number], directory, entries[number], job)
    finally:
        if job.details["at"] >= 0:
            logical.partitions[job.details["at"]].closed_for = ""
            logical.wake()


async def _restore_one(
    service: Service, logical: Logical, partition: Partition, directory: Path, entry: manifest.Entry, job: Job
) -> None:
    placement = partition.placement
    storage = await maintenance.usable(service, placement.storage)
    staging = await service.blocking(storage.staging, placement.uuid)
    try:
        fresh = staging / maintenance.file_name(placement)
        await service.blocking(_stage, service, job, directory / entry.file, fresh, entry, placement)
        failpoint("restore.staged")
        job.details["at"] = partition.number
        await service.jobs.save(job)
        async with maintenance.closed(service, logical, partition, "a restore"):
            failpoint("restore.closed")
            service.jobs.check(job)
            await service.blocking(storage.adopt, placement.uuid, fresh)
            failpoint("restore.placed")
            job.details["restored"].append(partition.number)
            await service.jobs.save(job)
            failpoint("restore.recorded")
            new = await maintenance.reloaded(service, partition)

            def run(now_us: int) -> None:
                partition.placement = new

            await change(logical, [], run)
    finally:
        await service.blocking(shutil.rmtree, staging, True)
    if partition.error:
        raise RequestFailed(f"partition '{partition.number}' was restored and cannot be opened; {partition.error}")


def _stage(service: Service, job: Job, source: Path, fresh: Path, entry: manifest.Entry, placement: Placement) -> None:
    """Blocking: copies a file of the backup and makes sure that it is what the manifest says."""
    before = job.done

    def check(done: int) -> None:
        job.done = before + done
        service.jobs.check(job)

    copied = copies.copy_file(source, fresh, service.config.limits.job_bytes_per_second, check)
    if copied != entry.sha256:
        raise RequestFailed(f"the backup is damaged; {source} is not what its manifest says")
    found = copies.contents(fresh)
    if found.rows != entry.rows or found.uuid != entry.uuid:
        raise RequestFailed(f"the backup is damaged; {source} does not hold what its manifest says")
    if entry.uuid != placement.uuid:
        with copies.inspected(fresh, writable=True) as cursor:
            cursor.execute("UPDATE file.meta SET uuid = ?, queue = ?", [placement.uuid, placement.queue])
            cursor.execute("CHECKPOINT file")
    job.done = before + entry.bytes


KINDS = {RESTORE: Kind(_run, _prepare)}
CALLS = {"partitions.restore": restore}
