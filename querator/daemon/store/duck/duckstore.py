"""One partition in a DuckDB file: what is unapplied in memory, and the file it will be applied to."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol
from uuid import UUID

from querator import limits
from querator.daemon.store.base import Batch, Due, Found, Leased, StorageError, Summary
from querator.daemon.store.delta import Delta
from querator.daemon.store.duck.partition_file import Meta, PartitionFile, with_room
from querator.daemon.store.duck.slices import Scan, Slice, Split, read_slice, split_table
from querator.daemon.store.duck.snapshot import Snapshot
from querator.daemon.store.fingerprints import Fingerprints
from querator.daemon.store.unapplied import UnappliedStore
from querator.items import Item


class Home(Protocol):
    """What a partition wants of its storage."""

    def stage(self, store: DuckStore, batch: Batch) -> None: ...

    def failures(self, uuid: str) -> AbstractContextManager[None]:
        """Turns whatever DuckDB raises inside into a StorageError."""

    def attach_again(self, store: DuckStore) -> None: ...

    def applied(self, store: DuckStore) -> None: ...

    def closed(self, store: DuckStore) -> None: ...

    def snapshot(self, store: DuckStore) -> Snapshot: ...

    def compact(self, store: DuckStore) -> None: ...


class DuckStore(UnappliedStore):
    def __init__(self, home: Home, lock: threading.Lock, file: PartitionFile, path: Path, meta: Meta) -> None:
        super().__init__(meta.uuid, lock, meta.applied, meta.last_seq)
        self.partition = UUID(meta.uuid).bytes
        self.file = file
        self.path = path
        self.record_applied = meta.applied
        self._home = home
        self._inode = _inode(path)
        self._is_doubtful = False

    def commit(self, batch: Batch) -> None:
        self._stage(batch)
        self._home.stage(self, batch)

    # Applying.

    def _record_applied(self) -> int:
        return self.record_applied

    def _apply(self, delta: Delta) -> None:
        if self.file_replaced():
            # What is applied now would go into a file that nobody will find again.
            raise StorageError(f"{self.path} was replaced or removed while it was open", [self.uuid])
        with self._home.failures(self.uuid):
            with_room(self.file.database, lambda: self._apply_once(delta))
        self._home.applied(self)

    def _apply_once(self, delta: Delta) -> None:
        if self._is_doubtful:
            self._look_again()
        if self.record_applied < delta.record:
            self._is_doubtful = True
            self.file.apply(delta)
            self._is_doubtful = False
            self.record_applied = delta.record

    def _look_again(self) -> None:
        """After a failure: a transaction that failed may be durable all the same, and the file may be unusable."""
        try:
            applied = self.file.meta().applied
        except Exception:  # whatever it was, attaching the file anew is the cure, or tells what is wrong
            self._home.attach_again(self)
            applied = self.file.meta().applied
        self.record_applied = applied
        self._is_doubtful = False

    def checkpoint(self, force: bool = False) -> None:
        if not force and self._log_bytes() < limits.CHECKPOINT_WAL_BYTES:
            return
        with self._home.failures(self.uuid):
            with_room(self.file.database, self._checkpoint)

    def _checkpoint(self) -> None:
        try:
            self.file.checkpoint()
        except Exception:
            # A checkpoint that ran out of space leaves the file unusable until it is attached anew.
            self._is_doubtful = True
            self._look_again()
            raise

    def close(self) -> None:
        self.flush()
        self.checkpoint(force=True)
        self._home.closed(self)

    def snapshot(self) -> Snapshot:
        with self._home.failures(self.uuid):
            return self._home.snapshot(self)

    def compact(self) -> None:
        self.flush()
        self.checkpoint(force=True)
        with self._home.failures(self.uuid):
            self._home.compact(self)

    def switched(self, file: PartitionFile) -> None:
        """The file at the partition's path is another one, with the same contents."""
        self.file = file
        self._inode = _inode(self.path)

    def free_share(self) -> float:
        with self._home.failures(self.uuid):
            return self.file.free_share()

    def file_replaced(self) -> bool:
        """Whether the file at the partition's path is no longer the one that is open, or is gone."""
        try:
            return _inode(self.path) != self._inode
        except StorageError:
            return True

    def size_bytes(self) -> int:
        return _size(self.path) + self._log_bytes()

    def _log_bytes(self) -> int:
        return _size(log_path(self.path))

    # Reading.

    def summary(self) -> Summary:
        with self._home.failures(self.uuid):
            return self.file.summary()

    def ready(self, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item]:
        with self._home.failures(self.uuid):
            return self.file.ready(after, before, items_max, bytes_max)

    def leased(self) -> list[Leased]:
        with self._home.failures(self.uuid):
            return self.file.leased()

    def scheduled(self, items_max: int) -> Due:
        with self._home.failures(self.uuid):
            return self.file.scheduled(items_max)

    def expired(self, now_us: int, items_max: int) -> list[Item]:
        with self._home.failures(self.uuid):
            return self.file.expired(now_us, items_max)

    def next_expiry(self) -> int | None:
        with self._home.failures(self.uuid):
            return self.file.next_expiry()

    def find(self, seqs: Iterable[int], *, payloads: bool = True) -> dict[int, Found]:
        with self._home.failures(self.uuid):
            return self.file.find(list(seqs), payloads=payloads)

    def page(self, scheduled: bool, from_seq: int, items_max: int) -> list[Leased]:
        with self._home.failures(self.uuid):
            return self.file.page(scheduled, from_seq, items_max)

    def sources(self, source_ids: Iterable[str]) -> set[str]:
        with self._home.failures(self.uuid):
            return self.file.sources([source_id for source_id in source_ids if source_id])

    def request_ids(self, now_us: int, newest_max: int, always: tuple[str, ...]) -> list[tuple[str, int]]:
        with self._home.failures(self.uuid):
            return self.file.request_ids(now_us, newest_max, always)

    def request_fingerprints(self, now_us: int) -> Fingerprints:
        with self._home.failures(self.uuid):
            return self.file.request_fingerprints(now_us)

    def remembered(self, request_ids: Sequence[str], now_us: int) -> set[str]:
        with self._home.failures(self.uuid):
            return self.file.remembered(request_ids, now_us)

    def forget(self, now_us: int) -> None:
        with self._home.failures(self.uuid):
            self.file.forget(now_us)

    def slice(self, scan: Scan, partition: int) -> Slice:
        """The next rows of a scan; `partition` is the number that its rows carry."""
        with self._home.failures(self.uuid):
            return read_slice(self.file, scan, self.prefix, partition)

    def split(self, table: str, upto: int, parts: int) -> Split:
        """Where to cut a table into about equal parts."""
        with self._home.failures(self.uuid):
            return split_table(self.file, table, upto, parts)


def log_path(path: Path) -> Path:
    """DuckDB's own log of a file."""
    return path.with_name(path.name + ".wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _inode(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise StorageError(f"{path} is missing") from None
    return status.st_dev, status.st_ino
