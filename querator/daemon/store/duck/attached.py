"""The partition files of one storage directory, attached to one DuckDB instance.

Creating, attaching, repairing and rewriting a file is done here, and so is the quarantine of a file that cannot be
trusted. A live file is never opened by hand: closing any descriptor of it would drop DuckDB's lock on it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from errno import EACCES, EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EPERM, EROFS
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import duckdb

from querator.daemon.failpoints import failpoint
from querator.daemon.store.base import LackOfMemory, StorageError
from querator.daemon.store.duck import tables
from querator.daemon.store.duck.database import is_lack_of_memory, reason_of, with_room
from querator.daemon.store.duck.instance import Instance
from querator.daemon.store.duck.partition_file import Meta, PartitionFile
from querator.daemon.store.duck.quarantine import Quarantine
from querator.daemon.store.duck.snapshot import FileContents, read_contents
from querator.daemon.store.files import sync_directory, sync_file, write_file
from querator.daemon.store.journal import History, Journal
from querator.daemon.store.stretches import stretches

_log = logging.getLogger(__name__)

SMALL_BLOCK_BYTES: Final = 16_384
"""The smallest blocks that DuckDB has. New files have them: most partitions are small, and there may be a thousand."""
LARGE_BLOCK_BYTES: Final = 262_144
"""DuckDB's own choice, for compacted files and for files into which many large payloads are written."""


class AttachedFiles:
    def __init__(self, storage: str, directory: Path, journal: Journal) -> None:
        self._storage = storage
        self._directory = directory
        self._journal = journal
        self.quarantine = Quarantine(directory / "quarantine")
        self.instance = Instance(directory)
        self._template = b""
        self._making_template = threading.Lock()

    def path(self, uuid: str) -> Path:
        return self._directory / f"{UUID(uuid)}.duckdb"

    def staging(self, uuid: str) -> Path:
        """An empty directory in which a file can be made. The next start removes it."""
        place = self.path(uuid).with_suffix(".creating")
        try:
            if place.exists():
                shutil.rmtree(place)
            place.mkdir(mode=0o700)
        except OSError as error:
            raise StorageError(f"storage {self._storage} cannot be written: {error.strerror}", [uuid]) from error
        return place

    def remove_staging(self) -> None:
        for leftover in self._directory.glob("*.creating"):
            shutil.rmtree(leftover)

    def create(self, uuid: str, queue: str) -> None:
        """Makes a new, empty file, durable on return and not attached. If the process ends half way, the file has no
        row in `meta`, and cannot be taken for a partition."""
        path = self.path(uuid)
        write_file(path, self._empty_file())
        sync_directory(self._directory)
        file = self.instance.attach(_name(uuid), path)
        file.claim(uuid, queue)
        # The file must name its partition even if DuckDB's log is damaged later.
        file.checkpoint()
        self.instance.detach(_name(uuid))

    def _empty_file(self) -> bytes:
        """The bytes of a file without rows. Writing them is much faster than creating the tables in each new file."""
        with self._making_template:
            if not self._template:
                self._template = self._make_template()
            return self._template

    def _make_template(self) -> bytes:
        staging = self.staging(str(uuid4()))
        path = staging / "template.duckdb"
        try:
            # The smallest blocks: most partitions are small, and there may be a thousand of them.
            file = self.instance.attach("template", path, f"BLOCK_SIZE {SMALL_BLOCK_BYTES:d}")
            file.create_tables()
            file.checkpoint()
            self.instance.detach("template")
            return path.read_bytes()
        finally:
            self.instance.detach("template")
            shutil.rmtree(staging)

    def attach(self, uuid: str, history: History, accept_loss: bool = False) -> tuple[PartitionFile, Meta]:
        """Attaches a file, and repairs its log if a crash left the log torn.

        Raises StorageError for a file of another partition or version, and for a log that `history` cannot repair. With
        `accept_loss`, the rest of such a log is discarded.
        """
        path = self.path(uuid)
        try:
            file = self.instance.attach(_name(uuid), path)
        except duckdb.Error as error:
            # DuckDB has no single error for a damaged log: each kind of damage raises a different one.
            if _is_temporary(error) or not log_path(path).exists():
                raise
            _log.warning("%s: %s", log_path(path), error)
            self._repair_log(uuid, history, accept_loss)
            file = self.instance.attach(_name(uuid), path)
        try:
            return file, _checked_meta(file, uuid, path)
        except Exception:
            # Otherwise it could not be attached again when the reason is gone.
            self.instance.detach(_name(uuid))
            raise

    def attach_again(self, uuid: str) -> PartitionFile:
        """Detaches and attaches a file that DuckDB can no longer use after a failure."""
        self.detach(uuid)
        return self.attach(uuid, self._journal.books.history())[0]

    def detach(self, uuid: str) -> None:
        with self.failures(uuid):
            self.instance.detach(_name(uuid))

    def _repair_log(self, uuid: str, history: History, accept_loss: bool) -> None:
        """Repairs DuckDB's log of a file after a kill in the middle of a commit.

        The journal still has everything that such a commit contained. If the journal does not, the log was damaged in
        some other way, and the partition is put aside.
        """
        path, partition = self.path(uuid), UUID(uuid).bytes
        instance = Instance(self._directory, trust_torn_logs=True, is_brief=True)
        try:
            file = instance.attach(_name(uuid), path)
            applied = _checked_meta(file, uuid, path).applied
            is_whole = history.replay(partition, applied) and not history.missing(partition, applied)
            if is_whole or accept_loss:
                file.checkpoint()
                instance.detach(_name(uuid))
                # The file contains every commit now. DuckDB does not remove a log that has no whole commit.
                log_path(path).unlink(missing_ok=True)
                sync_directory(self._directory)
                return
        except duckdb.Error as error:
            if _is_temporary(error):
                raise
            _log.warning("%s: %s", log_path(path), error)
        finally:
            instance.close()
        raise self.put_aside(uuid, f"{log_path(path).name} is damaged")

    @contextlib.contextmanager
    def peek(self, uuid: str) -> Iterator[tuple[PartitionFile, Meta]]:
        """Attaches a closed file to an instance of its own, for reading, however its log ends."""
        path = self.path(uuid)
        instance = Instance(self._directory, trust_torn_logs=True, is_brief=True)
        try:
            with self.failures(uuid):
                file = instance.attach(_name(uuid), path, "READ_ONLY")
                yield file, _checked_meta(file, uuid, path)
                instance.detach(_name(uuid))
        finally:
            instance.close()

    def record_applied(self, uuid: str) -> int:
        """The last journal record that a closed file contains; 0 if the file cannot be read."""
        try:
            file = self.instance.attach(_name(uuid), self.path(uuid))
            try:
                return file.meta().applied
            finally:
                self.instance.detach(_name(uuid))
        except (duckdb.Error, ValueError):
            return 0

    def put_aside(self, uuid: str, reason: str) -> StorageError:
        """Copies a file to the quarantine and notes the reason there; returns the error to raise."""
        _log.error("partition %s of storage %s is put aside: %s", uuid, self._storage, reason)
        with contextlib.suppress(StorageError):
            self.detach(uuid)
        path = self.path(uuid)
        self.quarantine.put(uuid, reason, [path, log_path(path)])
        return StorageError(f"partition {uuid} cannot be trusted: {reason}", [uuid])

    def replace(self, uuid: str, fresh: Path) -> None:
        """Puts a closed file in the place of a partition's file, durably."""
        path = self.path(uuid)
        # The new file must not meet the log of the old one.
        log_path(path).unlink(missing_ok=True)
        sync_directory(self._directory)
        fresh.rename(path)
        sync_directory(self._directory)

    def delete(self, uuid: str) -> None:
        for path in (self.path(uuid), log_path(self.path(uuid))):
            path.unlink(missing_ok=True)

    def compact(self, uuid: str, file: PartitionFile) -> None:
        """Copies a file without the space that deleted rows have left in it, and puts the copy in its place.

        The caller has checkpointed the file, and must call `attach_compacted` afterwards, also after a failure.
        """
        path, staging = self.path(uuid), self.staging(uuid)
        fresh = staging / path.name
        copy_name = file.name + "_copy"
        try:
            copy = self.instance.attach(copy_name, fresh, f"BLOCK_SIZE {LARGE_BLOCK_BYTES:d}")
            _copy_tables(file, copy)
            if self._contents(copy_name) != self._contents(file.name):
                raise StorageError(f"the copy of {path} does not hold what it should", [uuid])
            with_room(self.instance, copy.checkpoint)
            self.instance.detach(copy_name)
            fresh.chmod(0o600)
            sync_file(fresh)
            failpoint("compact.copied")
            self.instance.detach(file.name)
            # The log must be empty now: the copy could not tell that the log is not its own.
            if log_path(path).exists():
                raise StorageError(f"{log_path(path)} is still there", [uuid])
            fresh.rename(path)
            sync_directory(self._directory)
            failpoint("compact.switched")
        finally:
            self.instance.detach(copy_name)
            shutil.rmtree(staging, ignore_errors=True)

    def attach_compacted(self, uuid: str) -> PartitionFile:
        self.instance.detach(_name(uuid))
        return self.instance.attach(_name(uuid), self.path(uuid))

    def _contents(self, name: str) -> FileContents:
        return with_room(self.instance, lambda: read_contents(self.instance.cursor(), name))

    @contextlib.contextmanager
    def failures(self, uuid: str) -> Iterator[None]:
        """Turns any error of DuckDB or of the file system into a StorageError of this partition.

        If the whole instance has failed, the journal refuses further writes until the storage is reopened.
        """
        try:
            yield
        except (duckdb.Error, OSError, ValueError) as error:
            if is_lack_of_memory(error):
                megabytes = self.instance.memory_bytes // 1_000_000
                raise LackOfMemory(
                    f"it takes more than the {megabytes} MB of memory that DuckDB may use", [uuid]
                ) from error
            reason = reason_of(error)
            if isinstance(error, duckdb.Error) and not self.instance.is_alive():
                # DuckDB invalidates an instance when it cannot know what is on disk.
                self._journal.refuse(f"storage {self._storage}: {reason}")
                raise StorageError(f"storage {self._storage}: {reason}") from error
            raise StorageError(f"partition {uuid}: {reason}", [uuid]) from error

    def reopen(self) -> None:
        """Starts over with a new instance, to which nothing is attached."""
        self.instance.close()
        self.instance = Instance(self._directory)

    def close(self) -> None:
        self.instance.close()


def log_path(path: Path) -> Path:
    """DuckDB's own log of a file."""
    return path.with_name(path.name + ".wal")


def _name(uuid: str) -> str:
    return "p" + UUID(uuid).hex


def _checked_meta(file: PartitionFile, uuid: str, path: Path) -> Meta:
    meta = file.meta()
    if meta.uuid != uuid:
        raise StorageError(f"{path} is the file of another partition, {meta.uuid}", [uuid])
    if meta.schema_version != tables.SCHEMA_VERSION:
        raise StorageError(f"{path} has schema version {meta.schema_version}, not {tables.SCHEMA_VERSION}", [uuid])
    return meta


def _copy_tables(source: PartitionFile, target: PartitionFile) -> None:
    """Copies every row into an empty file. COPY FROM DATABASE would lose how columns are compressed."""
    target.create_tables()
    for table in ("meta", *tables.TABLES):
        for stretch in stretches(source, table) if table in tables.MEASURED_TABLES else [None]:
            target.copy_rows(source.name, table, stretch)


def _is_temporary(error: duckdb.Error) -> bool:
    """Whether a file cannot be opened for a temporary reason, and not because of its contents."""
    text = str(error)
    return "Could not set lock" in text or is_lack_of_memory(error) or any(reason in text for reason in _TEMPORARY)


_TEMPORARY = [
    *(os.strerror(number) for number in (EIO, ENOSPC, EDQUOT, EFBIG, EROFS, EACCES, EPERM, EMFILE, ENFILE, ENOMEM)),
    "fsync",
]
