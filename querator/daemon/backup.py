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
from querator.daemon.states import WAY_OUT
from querator.daemon.store import copies
from querator.daemon.store.base import Store
from querator.daemon.store.snapshot import Snapshot
from querator.errors import InvalidRequest, RequestFailed
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
    await service.blocking(_check_target, service, directory, request.queue_name)
    numbers = [partition.number for partition in partitions]
    job = await service.jobs.start(BACKUP, logical.queue.name, numbers, to=str(directory))
    return messages.JobReply(job_id=job.job_id)


def check_open(verb: str, partitions: list[Partition]) -> None:
    for partition in partitions:
        if not partition.allows.storage:
            raise InvalidRequest(
                f"cannot {verb} partition; partition '{partition.number}' is {partition.state},"
                f" {WAY_OUT[partition.state]}"
            )


def _check_target(service: Service, directory: Path, queue: str) -> None:
    """Blocking. Nothing that is not a backup of this queue is written over."""
    resolved = directory.resolve()
    for storage in service.config.storages:
        if resolved.is_relative_to(storage.directory.resolve()):
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
    try:
        for number in job.details["partitions"]:
            partition = logical.partitions[number]
            job.total += partition.total + partition.scheduled_count
            snapshots.append((partition, await maintenance.at_store(logical, partition, _take)))
        entries = []
        for partition, snapshot in snapshots:
            job.partition = partition.number
            writing = asyncio.ensure_future(service.blocking(_write, service, job, partition, snapshot, directory))
            # The snapshot must not be closed while it is read, whatever happens to this task.
            entries.append(await asyncio.shield(writing))
            failpoint("backup.written")
    finally:
        for _, snapshot in snapshots:
            await service.blocking(snapshot.close)
    found = manifest.Manifest(
        querator_version=__version__,
        queue_name=job.queue,
        created_at=times.text(service.clock.now_us()),
        partitions=entries,
    )
    await service.blocking(manifest.write, directory, found)


def _take(store: Store) -> Snapshot:
    store.flush()
    return store.snapshot()


def _write(service: Service, job: Job, partition: Partition, snapshot: Snapshot, directory: Path) -> manifest.Entry:
    """Blocking. The manifest does not name the file yet, so that a half written one is nobody's."""
    path = directory / f"partition-{partition.number}-{job.job_id}.duckdb"
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
