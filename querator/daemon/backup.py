"""partitions.backup: copies of live partitions, each as it was at one moment, while the queue goes on.

The moments of all partitions are taken right after each other; writing the copies then takes as long as it takes, and
nobody waits for it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from querator import __version__, times
from querator.daemon import maintenance, manifest
from querator.daemon.failpoints import failpoint
from querator.daemon.jobs import Kind
from querator.daemon.partition import Partition
from querator.daemon.states import refusal
from querator.daemon.store import copies
from querator.daemon.store.base import Store
from querator.daemon.store.snapshot import Snapshot
from querator.errors import Conflict, InvalidRequest, RequestFailed
from querator.items import Job
from querator.wire import messages

if TYPE_CHECKING:
    from querator.daemon.service import Service

BACKUP = "backup"


async def backup(service: Service, request: messages.PartitionsBackupRequest) -> messages.JobReply:
    logical = service.find(request.queue_name)
    partitions = maintenance.chosen(service, logical, request.partitions)
    directory = manifest.target_directory(request.to, "to")
    check_open("back up", partitions)
    to = await service.blocking(directory.resolve)
    _check_unused(service, to)
    await service.blocking(_check_target, service, to, request.queue_name)
    _check_unused(service, to)  # looking took a moment
    numbers = [partition.number for partition in partitions]
    job = await service.jobs.start(BACKUP, logical.queue.name, numbers, to=str(to))
    return messages.JobReply(job_id=job.job_id)


def check_open(verb: str, partitions: list[Partition]) -> None:
    for partition in partitions:
        if not partition.allows.storage:
            raise refusal(verb, partition.number, partition.state)


def _check_unused(service: Service, directory: Path) -> None:
    """Refuses while another job writes there: each would delete the files of the other."""
    for job in service.jobs.running():
        if job.kind == BACKUP and job.details["to"] == str(directory):
            raise Conflict(
                f"backup is already running; job '{job.job_id}' writes to {directory}, wait for its end or cancel it"
            )


def _check_target(service: Service, directory: Path, queue: str) -> None:
    """Blocking. Nothing that is not a backup of this queue is written over."""
    for storage in service.config.storages:
        if directory.is_relative_to(storage.directory.resolve()):
            raise InvalidRequest(f"to is invalid; {directory} is inside of storage '{storage.name}'")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(directory.iterdir())
    except OSError as error:
        raise RequestFailed(f"backup cannot be written; {directory}: {error.strerror}") from None
    if is_empty:
        return
    if not (directory / manifest.NAME).exists():
        raise InvalidRequest(f"to is invalid; {directory} is not empty and holds no backup")
    there = manifest.read(directory).queue_name
    if there != queue:
        raise InvalidRequest(f"to is invalid; {directory} holds a backup of queue '{there}'")


async def _run(service: Service, job: Job) -> None:
    logical = service.logicals[job.queue]
    directory = Path(job.details["to"])
    snapshots: list[tuple[Partition, Snapshot]] = []
    writing: asyncio.Future[manifest.Entry] | None = None
    try:
        for number in job.details["partitions"]:
            partition = logical.partitions[number]
            job.total += partition.total + partition.scheduled_count
            snapshots.append((partition, await maintenance.at_store(logical, partition, _take)))
        entries = []
        for partition, snapshot in snapshots:
            job.partition = partition.number
            writing = asyncio.ensure_future(service.blocking(_write, service, job, partition, snapshot, directory))
            entries.append(await asyncio.shield(writing))
            failpoint("backup.written")
        found = manifest.Manifest(
            querator_version=__version__,
            queue_name=job.queue,
            created_at=times.text(service.clock.now_us()),
            partitions=entries,
        )
        await service.blocking(manifest.write, directory, found)
    except BaseException:
        await _wait_for(writing)
        await service.blocking(_delete, directory, job)
        raise
    finally:
        for _, snapshot in snapshots:
            await service.blocking(snapshot.close)


async def _wait_for(writing: asyncio.Future[manifest.Entry] | None) -> None:
    """A snapshot must not be closed while it is read, whatever has happened to the job's task."""
    if writing is not None and not writing.done():
        await asyncio.wait([writing])


def _delete(directory: Path, job: Job) -> None:
    """Blocking: what no manifest names is nobody's, and would be in the way of the next backup."""
    kept = manifest.files(directory)
    for path in directory.glob(_file_name("*", job) + "*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _file_name(partition: int | str, job: Job) -> str:
    return f"partition-{partition}-{job.job_id}.duckdb"


def _take(store: Store) -> Snapshot:
    store.flush()
    return store.snapshot()


def _write(service: Service, job: Job, partition: Partition, snapshot: Snapshot, directory: Path) -> manifest.Entry:
    """Blocking. The manifest does not name the file yet, so that a half written one is nobody's."""
    path = directory / _file_name(partition.number, job)
    before = job.done

    def check(done: int) -> None:
        job.done = before + done
        service.jobs.check(job)

    for leftover in (path, path.with_name(path.name + ".wal")):
        leftover.unlink(missing_ok=True)
    try:
        written = copies.write_snapshot(snapshot, path, check)
        job.done = before + written.rows["items"] + written.rows["scheduled"]
        return manifest.Entry(
            partition=partition.number,
            uuid=written.uuid,
            file=path.name,
            bytes=path.stat().st_size,
            sha256=copies.file_hash(path),
            rows=written.rows,
        )
    except BaseException:
        path.unlink(missing_ok=True)
        raise


KINDS = {BACKUP: Kind(_run)}
CALLS = {"partitions.backup": backup}
