"""partitions.backup: copies live partitions, each as of one moment, while the queue keeps working.

The snapshots of all partitions are taken right after each other. Writing the copies may take long, and no client waits
for it. The copies are written to a directory of the job's own, where nobody else can have put a link, and are moved
beside the manifest when all of them are complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import msgspec

from querator import __version__, times
from querator.daemon.admin import check_readable, chosen_partitions, queue_info
from querator.daemon.engine import at_store
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs import manifest
from querator.daemon.jobs.runner import Kind
from querator.daemon.registry import Registry
from querator.daemon.store import FileSnapshot, SnapshotLost, Store, copies, sync_directory
from querator.errors import Conflict, InvalidRequest, RequestFailed
from querator.items import Job, Placement
from querator.wire import json as wire_json
from querator.wire import messages

BACKUP = "backup"


async def backup(registry: Registry, request: messages.PartitionsBackupRequest) -> messages.JobReply:
    logical = registry.find(request.queue_name)
    partitions = chosen_partitions(registry, logical, request.partitions)
    check_readable("back up", partitions)
    to = await registry.blocking(manifest.target_directory, request.to, "to")
    _check_unused(registry, to)
    replaced = await registry.blocking(_check_target, registry, to, request.queue_name)
    _check_unused(registry, to)  # another job may have started meanwhile
    numbers = [partition.number for partition in partitions]
    job = await registry.jobs.start(BACKUP, logical.queue.name, numbers, to=str(to), replaced=replaced)
    return messages.JobReply(job_id=job.job_id)


def _check_unused(registry: Registry, directory: Path) -> None:
    """Refuses while another job writes to the directory, because each would delete the other's files."""
    for job in registry.jobs.running():
        if job.kind == BACKUP and job.details["to"] == str(directory):
            raise Conflict(
                f"backup is already running; job '{job.job_id}' writes to {directory}, wait for its end or cancel it"
            )


def _check_target(registry: Registry, directory: Path, queue: str) -> list[str]:
    """Blocking. Refuses to overwrite anything but a backup of this queue. Returns the files of that backup."""
    for storage in registry.config.storages:
        if directory.is_relative_to(storage.directory.resolve()):
            raise InvalidRequest(f"to is invalid; {directory} is inside of storage '{storage.name}'")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {path.name for path in directory.iterdir()}
    except OSError as error:
        raise RequestFailed(f"backup cannot be written; {directory}: {error.strerror}") from None
    if not names:
        return []
    if manifest.NAME not in names:
        raise InvalidRequest(f"to is invalid; {directory} is not empty and holds no backup")
    there = manifest.read(directory)
    if there.settings.queue_name != queue:
        raise InvalidRequest(f"to is invalid; {directory} holds a backup of queue '{there.settings.queue_name}'")
    return [entry.file for entry in there.partitions]


async def _run(registry: Registry, job: Job) -> None:
    logical = registry.logicals[job.queue]
    directory = Path(job.details["to"])
    building = directory / f"building-{job.job_id}"
    if await registry.blocking(_is_published, directory, job):
        await registry.blocking(_delete_replaced, directory, job)
        return
    snapshots: list[tuple[Placement, FileSnapshot]] = []
    writing: asyncio.Future[manifest.Entry] | None = None
    try:
        # Deletes files of this job that a killed process left.
        await registry.blocking(_delete, directory, job, building)
        building.mkdir(mode=0o700)
        job.done = job.total = 0
        for number in job.details["partitions"]:
            partition = logical.partitions[number]
            job.total += partition.counts.stored
            placement = partition.placement
            snapshots.append((placement, await at_store(logical, partition, _take)))
        settings = queue_info(logical.queue)
        entries: list[manifest.Entry] = []
        while len(entries) < len(snapshots):
            placement, snapshot = snapshots[len(entries)]
            job.partition = placement.number
            writing = asyncio.ensure_future(registry.blocking(_write, registry, job, placement, snapshot, building))
            try:
                entries.append(await asyncio.shield(writing))
            except SnapshotLost:
                again = await at_store(logical, logical.partitions[placement.number], _take)
                snapshots[len(entries)] = placement, again
                await registry.blocking(snapshot.close)
                continue
            failpoint("backup.written")
        found = manifest.Manifest(
            querator_version=__version__,
            created_at=times.text(registry.clock.now_us()),
            queue=msgspec.json.decode(wire_json.encode(settings)),
            partitions=entries,
        )
        await registry.blocking(_publish, directory, job, building, found)
    except BaseException:
        await _wait_for(writing)
        await registry.blocking(_delete, directory, job, building)
        raise
    finally:
        for _, snapshot in snapshots:
            await registry.blocking(snapshot.close)


async def _wait_for(writing: asyncio.Future[manifest.Entry] | None) -> None:
    """Waits for a thread that still reads a snapshot, so that the snapshot is not closed under it."""
    if writing is not None and not writing.done():
        await asyncio.wait([writing])


def _publish(directory: Path, job: Job, building: Path, found: manifest.Manifest) -> None:
    """Blocking. Publishes the new backup by its manifest, and deletes the files of the previous one."""
    for entry in found.partitions:
        (building / entry.file).rename(directory / entry.file)
    building.rmdir()
    sync_directory(directory)
    failpoint("backup.placed")
    manifest.write(directory, found)
    failpoint("backup.published")
    _delete_replaced(directory, job)


def _is_published(directory: Path, job: Job) -> bool:
    """Blocking. Whether an earlier process finished this job's backup but was killed before it recorded that."""
    with contextlib.suppress(RequestFailed):
        return any(job.job_id in entry.file for entry in manifest.read(directory).partitions)
    return False


def _delete_replaced(directory: Path, job: Job) -> None:
    for name in job.details["replaced"]:
        (directory / name).unlink(missing_ok=True)


def _delete(directory: Path, job: Job, building: Path) -> None:
    """Blocking. Deletes the files that this job has written."""
    if not _is_published(directory, job):
        for number in job.details["partitions"]:
            (directory / manifest.file_name(number, job.job_id)).unlink(missing_ok=True)
    if building.is_dir() and not building.is_symlink():
        shutil.rmtree(building)


def _take(store: Store) -> FileSnapshot:
    store.flush()
    return store.snapshot()


def _write(
    registry: Registry, job: Job, placement: Placement, snapshot: FileSnapshot, building: Path
) -> manifest.Entry:
    """Blocking."""
    path = building / manifest.file_name(placement.number, job.job_id)
    before = job.done

    def check(done: int) -> None:
        job.done = before + done
        registry.jobs.check(job)

    try:
        if faults := snapshot.faults():
            raise RequestFailed(
                f"partition '{placement.number}' has rows that a restore would refuse: {', '.join(faults)}"
            )
        written = copies.write_snapshot(snapshot, path, check)
    except SnapshotLost:
        job.done = before
        for half in (path, path.with_name(path.name + ".wal")):
            half.unlink(missing_ok=True)
        raise
    job.done = before + written.rows["items"] + written.rows["scheduled"]
    return manifest.Entry(
        partition=placement.number,
        state=placement.requested,
        resume_at=placement.resume_at,
        uuid=written.uuid,
        file=path.name,
        bytes=path.stat().st_size,
        sha256=copies.file_hash(path),
        rows=written.rows,
    )


KINDS = {BACKUP: Kind(_run)}
CALLS = {"partitions.backup": backup}
