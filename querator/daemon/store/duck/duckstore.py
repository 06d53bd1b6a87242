"""One partition in a DuckDB file: its unapplied batches in memory, and the file to which they will be applied."""

from __future__ import annotations

import logging
import os
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import duckdb

from querator import limits
from querator.daemon.store.base import RecordLost, StorageError, Summary
from querator.daemon.store.batches import Batch, decode
from querator.daemon.store.columnar import ItemColumns
from querator.daemon.store.delta import Delta, Left
from querator.daemon.store.duck import applying, reading
from querator.daemon.store.duck.attached import LARGE_BLOCK_BYTES, AttachedFiles, log_path
from querator.daemon.store.duck.database import with_room
from querator.daemon.store.duck.partition_file import Meta, PartitionFile
from querator.daemon.store.duck.resting import Rest, mark_of
from querator.daemon.store.duck.slices import Scan, Slice, read_slice, split_table
from querator.daemon.store.duck.snapshot import FileSnapshot
from querator.daemon.store.fingerprints import Fingerprints
from querator.daemon.store.journal import Journal, Place, Skip
from querator.daemon.store.unapplied import StagedBatches, UnappliedStore
from querator.items import Item

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


def _of_file(work: Callable[Concatenate[PartitionFile, P], T]) -> Callable[Concatenate[DuckStore, P], T]:
    """A method that works on the store's file, and raises the errors of the store contract."""

    def method(store: DuckStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store.failures():
            return work(store.file, *args, **kwargs)

    return method


class DuckStore(UnappliedStore):
    def __init__(
        self, files: AttachedFiles, journal: Journal, staged: StagedBatches, file: PartitionFile | None, meta: Meta
    ) -> None:
        """Without a `file`, the partition's file has no rows, and rests."""
        super().__init__(meta.uuid, staged, meta.applied, meta.last_seq)
        self._queue = meta.queue
        self._file = file
        self._attaching = threading.Lock()
        self.is_blank = file is None
        self._last_seq = meta.last_seq
        """The last sequence that was handed out when the file was put to rest."""
        self.path = files.path(meta.uuid)
        self.record_applied = meta.applied
        self._files = files
        self._journal = journal
        self._inode = _inode(self.path)
        self._mark = mark_of(self.path) if file is None else None
        """How the file looked when it was put to rest."""
        self._snapshots = 0
        """The snapshots that are open, which need the file to be attached."""
        self._is_doubtful = False
        """Whether a statement failed, so that the file may have been changed or may be unusable."""

    def failures(self) -> AbstractContextManager[None]:
        """Turns errors of DuckDB in a block into StorageError."""
        return self._files.failures(self.uuid)

    @property
    def file(self) -> PartitionFile:
        """The file, which is attached now if it rests."""
        with self._attaching:
            if self._file is None:
                self._check_open()
                self._check_in_place()
                self._file, _ = self._files.attach(self.uuid, self._journal.books.no_history())
            return self._file

    def _check_open(self) -> None:
        if self.is_closed:
            raise StorageError(f"partition {self.uuid} was closed meanwhile", [self.uuid])

    @property
    def is_resting(self) -> bool:
        return self._file is None

    def rest(self) -> bool:
        """Detaches the file if it has no rows, until it is needed again. Returns whether it rests now."""
        with self.failures():
            if self._snapshots or self.file.has_rows():
                return False
            self._last_seq = self.file.meta().last_seq
        self.checkpoint(force=True)
        with self._attaching:
            self._files.detach(self.uuid)
            self._mark = mark_of(self.path)
            self._file = None
        self.is_blank = True
        return True

    # Applying.

    def _record_applied(self) -> int:
        return self.record_applied

    def _can_skip(self, delta: Delta) -> bool:
        if self._is_doubtful or self.file_replaced():
            return False
        return self._journal.books.skip(self.partition, Skip(self.record_applied, delta.record, delta.last_seq))

    def _apply(self, delta: Delta) -> None:
        self._check_in_place()
        with self.failures():
            with_room(self.file.instance, lambda: self._apply_once(delta))
        self.report_applied()

    def _apply_once(self, delta: Delta) -> None:
        if self._is_doubtful:
            self._look_again()
        if self.record_applied < delta.record:
            if self.is_blank and delta.left_bytes >= limits.LARGE_BLOCKS_BYTES_MIN:
                self._enlarge_blocks()
            self.is_blank = False
            self._is_doubtful = True
            try:
                left = {one.place.number: one for one in delta.left.values()}
                applying.apply(self.file, delta, self._left_batches(left.values(), in_place=True))
            except duckdb.TransactionException:
                # Nobody else changes this file. So an earlier transaction failed and could not be undone, and all
                # further ones would conflict with it, until the file is attached again.
                self._check_in_place()
                self._file = self._files.attach_again(self.uuid)
                raise
            self._is_doubtful = False
            self.record_applied = delta.record

    def _left_batches(self, records: Iterable[Left], in_place: bool = False) -> Iterator[Batch]:
        places = sorted([record.place for record in records])
        try:
            for payload in self._payloads(places):
                yield decode(payload, in_place)
        except FileNotFoundError as error:
            raise RecordLost(f"partition {self.uuid}: {error}", [self.uuid]) from error

    def _payloads(self, places: list[Place]) -> Iterator[memoryview]:
        done = 0
        try:
            for number, payload in self._journal.payloads(places):
                yield payload
                done = number
        except FileNotFoundError:
            # The segment was trimmed meanwhile, and the records that this partition needs were copied out of it.
            wanted = {place.number for place in places if place.number > done}
            found = self._journal.books.history().replay(self.partition, done)
            places = [place for place in found if place.number in wanted]
            if len(places) < len(wanted):
                raise
            for _, payload in self._journal.payloads(places):
                yield payload

    def _look_again(self) -> None:
        """Reads again which records the file contains, because a transaction that failed may still be durable."""
        try:
            applied = self.file.meta().applied
        except Exception:  # attaching the file again either ends the failure or raises its reason
            self._check_in_place()
            self._file = self._files.attach_again(self.uuid)
            applied = self._file.meta().applied
        self.record_applied = applied
        self._is_doubtful = False

    def _check_in_place(self) -> None:
        """Raises StorageError if the path no longer leads to the open file: changes to that file would be lost."""
        if self.file_replaced():
            raise StorageError(f"{self.path} was replaced, removed or changed while it was in use", [self.uuid])

    def report_applied(self) -> None:
        """Tells the journal which records the file contains."""
        try:
            self._journal.books.applied(self.partition, self.record_applied)
        except OSError as error:
            # The records are applied. A segment that stays a little longer does no harm.
            _log.warning("journal of %s: %s", self.path, error)

    def checkpoint(self, force: bool = False) -> None:
        if self._file is None or (not force and self._log_bytes() < limits.CHECKPOINT_WAL_BYTES):
            return
        with self.failures():
            with_room(self.file.instance, self._checkpoint)

    def _checkpoint(self) -> None:
        try:
            self.file.checkpoint()
        except Exception:
            # A checkpoint that ran out of space leaves the file unusable until it is attached again.
            self._is_doubtful = True
            self._look_again()
            raise

    def close(self) -> None:
        self.close_file()
        self._journal.append_closed({self.partition: self.record_applied})

    def close_file(self) -> Rest | None:
        """Flushes and closes the file; the caller notes that in the journal. Returns what the next start need not read
        again, if the file has no rows."""
        self.flush()
        if self._file is not None and not self.rest():
            self.checkpoint(force=True)
            self._files.detach(self.uuid)
        self.unapplied.is_closed = True
        if not self.is_blank or self._mark is None:
            return None
        return Rest(self._queue, self.record_applied, self._last_seq, self._mark)

    def snapshot(self) -> FileSnapshot:
        with self.failures():
            snapshot = FileSnapshot(self.file.instance, self.file.name, self._snapshot_closed)
        self._snapshots += 1
        return snapshot

    def _snapshot_closed(self) -> None:
        self._snapshots -= 1

    def compact(self) -> None:
        self.flush()
        self._rewrite()

    def _enlarge_blocks(self) -> None:
        """Remakes a file without rows with larger blocks, before large payloads are applied: with small blocks an apply
        takes a third longer. Reads do not look into a file without rows, so none runs meanwhile.
        """
        if not self._snapshots and self.file.block_bytes() < LARGE_BLOCK_BYTES:
            self._rewrite()

    def _rewrite(self) -> None:
        self.checkpoint(force=True)
        with self.failures():
            self._is_doubtful = True  # if the file cannot be attached now, the next apply tries it again
            try:
                self._files.compact(self.uuid, self.file)
            finally:
                self._inode = _inode(self.path)
                self._file = self._files.attach_compacted(self.uuid)
                self._is_doubtful = False

    def file_replaced(self) -> bool:
        try:
            if self._file is None and self._mark is not None:
                return mark_of(self.path) != self._mark
            return _inode(self.path) != self._inode
        except StorageError:
            return True

    def size_bytes(self) -> int:
        return _size(self.path) + self._log_bytes()

    def _log_bytes(self) -> int:
        return _size(log_path(self.path))

    # Reading.

    def summary(self) -> Summary:
        return Summary(0, 0, 0, 0, self._last_seq, None, None) if self.is_blank else self._summary()

    def request_fingerprints(self, now_us: int) -> Fingerprints:
        return Fingerprints(array("Q")) if self.is_blank else self._request_fingerprints(now_us)

    def forget(self, now_us: int) -> None:
        if self.is_resting:
            return
        if not self.is_blank:
            self._forget(now_us)
        self.rest()  # a file without rows is attached if somebody has read it

    def _ready_in_file(self, after: int, before: int, items_max: int, bytes_max: int) -> list[Item] | ItemColumns:
        # A file without rows may be remade meanwhile.
        return [] if self.is_blank else self._read_ahead(after, before, items_max, bytes_max)

    free_share = _of_file(PartitionFile.free_share)
    _summary = _of_file(reading.summary)
    ready = _of_file(reading.ready)
    _read_ahead = _of_file(reading.ready_ahead)
    leased = _of_file(reading.leased)
    scheduled = _of_file(reading.scheduled)
    expired = _of_file(reading.expired)
    next_expiry = _of_file(reading.next_expiry)
    find = _of_file(reading.find)
    page = _of_file(reading.page)
    sources = _of_file(reading.sources)
    request_ids = _of_file(reading.request_ids)
    _request_fingerprints = _of_file(reading.request_fingerprints)
    remembered = _of_file(reading.remembered)
    _forget = _of_file(applying.forget)
    split = _of_file(split_table)
    _read_slice = _of_file(read_slice)

    def slice(self, scan: Scan, partition: int) -> Slice:
        """The next rows of a scan. `partition` is the partition's number, which the rows carry."""
        return self._read_slice(scan, self.prefix, partition)


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
