"""A storage of DuckDB files, with a journal in front of them."""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path
from uuid import UUID

from querator import limits
from querator.daemon.store.base import Loss, StorageError
from querator.daemon.store.batches import decode
from querator.daemon.store.delta import Delta
from querator.daemon.store.duck import applying, reading, tables
from querator.daemon.store.duck.attached import AttachedFiles, log_path
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.partition_file import Meta, PartitionFile
from querator.daemon.store.duck.resting import RestingFiles
from querator.daemon.store.files import make_directory, sync_directory
from querator.daemon.store.journal import RECORD_HEADER_BYTES, History, Journal, Opening
from querator.daemon.store.unapplied import StagedBatches, numbered
from querator.items import Room

_log = logging.getLogger(__name__)


def open_storage(name: str, directory: Path | str, is_copied: bool = False) -> DuckStorage:
    """Blocking. A storage that is ready for use. Raises StorageError or OSError. If an archive copies the journal
    (`is_copied`), segments stay until `feed` is told that they were copied.
    """
    storage = DuckStorage(name, directory)
    if is_copied:
        storage.feed.hold_everything()
    storage.recover()
    return storage


class DuckStorage:
    """A directory of partition files and their journal. Call `recover` before anything else."""

    def __init__(self, name: str, directory: Path | str) -> None:
        self.name = name
        directory = Path(directory)
        make_directory(directory)
        # DuckDB identifies files by their paths, so we must use the same paths as DuckDB.
        self.directory = directory.resolve()
        self._journal = Journal(self.directory / "journal")
        self.feed = self._journal.feed
        self._files = AttachedFiles(name, self.directory, self._journal)
        self._resting = RestingFiles(self.directory / "resting")
        self._staged = StagedBatches()
        # Methods of the contract that are those of a part. A turn takes no step in Python for `take`.
        self.take = self._staged.take
        self.trim = self._journal.books.trim
        self.note_acknowledged = self._journal.note_acknowledged
        self._written: tuple[Path, int] | None = None
        """Where the last write is in the journal, until it is absorbed."""
        self._stores: dict[str, DuckStore] = {}
        self._history = History()
        self._unopened: set[str] = set()
        """The partitions that were not opened since `recover`. `_history` is still right for them."""

    # Starting.

    def recover(self) -> None:
        """Reads the journal once, and puts aside every partition that cannot be trusted. Raises StorageError."""
        self._files.remove_staging()
        self._resting.take_note()
        self._unopened = {path.stem for path in self.directory.glob("*.duckdb") if _is_uuid(path.stem)}
        try:
            self._history = self._journal.recover()
            if self._journal.is_new and self._unopened:
                self._history.wound("the journal is missing, and so is the note of which segments it had", None)
            if self._history.wounds:
                self._put_aside_damaged()
            self._journal.seal()
        except OSError as error:
            raise StorageError(f"journal of storage {self.name}: {error}") from error

    def _put_aside_damaged(self) -> None:
        """Puts aside every partition that damage concerns. Done at once, so that damaged segments need not be kept for
        later.
        """
        for path in {wound.path for wound in self._history.wounds if wound.path}:
            self._files.quarantine.copy(path)
        for uuid in sorted(self._unopened):
            if not self._files.quarantine.reason(uuid):
                reason = self._history.missing(UUID(uuid).bytes, self._files.record_applied(uuid))
                if reason:
                    self._files.put_aside(uuid, reason)

    @property
    def failure(self) -> str:
        return self._journal.failure

    @property
    def shortage(self) -> str:
        return self._journal.shortage

    def check_room(self) -> Room:
        there = shutil.disk_usage(self.directory)
        room = Room(there.free, there.total)
        if self.shortage or room.free_bytes < limits.ROOM_PROBE_BELOW_BYTES:
            self._journal.probe()
        if room.is_low:
            # Segments that were held for the archive can be trimmed now.
            self._journal.books.trim()
        return room

    def reopen(self) -> None:
        self._journal.reopen()
        for uuid in tuple(self._stores):
            self._discard(uuid)
        self._files.reopen()
        self.recover()

    # Partitions.

    def create(self, uuid: str, queue: str) -> DuckStore:
        path = self._files.path(uuid)
        if path.exists():
            raise StorageError(f"{path} exists already", [uuid])
        try:
            with self._files.failures(uuid):
                self._files.create(uuid, queue)
                if self._history.wounds:
                    # A segment that stays damaged is older than this partition. The next start must know that.
                    self._journal.append_closed({UUID(uuid).bytes: 0}, always=True)
                self.feed.opened(Opening(uuid, queue, 0, is_new=True))
                return self._enter(None, Meta(uuid, queue, tables.SCHEMA_VERSION, 0, 0), self._history_of(uuid))
        except StorageError:
            with contextlib.suppress(StorageError, OSError):
                self._files.detach(uuid)
                self._files.delete(uuid)
            raise

    def open(self, uuid: str, queue: str, accept_loss: bool = False) -> DuckStore:
        """With `accept_loss`, opens a partition that was put aside, with everything that is left of it."""
        self._discard(uuid)
        path = self._files.path(uuid)
        # Attaching a missing file would create it.
        if not path.is_file() or path.is_symlink():
            raise StorageError(f"{path} is missing", [uuid])
        if accept_loss:
            for untouched in (path, log_path(path)):
                if not self._files.quarantine.copy(untouched):
                    raise StorageError(f"there is no room for a copy of {untouched} in quarantine", [uuid])
        elif reason := self._files.quarantine.reason(uuid):
            raise StorageError(f"partition {uuid} cannot be trusted: {reason}", [uuid])
        history = self._history_of(uuid)
        try:
            with self._files.failures(uuid):
                file: PartitionFile | None = None
                meta = self._resting.take(uuid, path)
                if meta is None or accept_loss:
                    file, meta = self._files.attach(uuid, history, accept_loss)
                file, meta = _with_skip(self._files, file, meta, history)
                self.feed.opened(Opening(uuid, queue, meta.applied, is_new=False))
                return self._enter(file, meta, history, accept_loss)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._files.detach(uuid)
            raise

    def _enter(self, file: PartitionFile | None, meta: Meta, history: History, accept_loss: bool = False) -> DuckStore:
        """The store of an attached file, or of a file without rows. First applies every record of the journal that the
        file lacks."""
        uuid, partition = meta.uuid, UUID(meta.uuid).bytes
        reason = history.missing(partition, meta.applied)
        if reason and not accept_loss:
            raise self._files.put_aside(uuid, reason)
        store = DuckStore(self._files, self._journal, self._staged, file, meta)
        self._replay(store, history)
        if not store.is_blank and not store.rest():
            applying.drop_orphans(store.file)
        if accept_loss:
            self._journal.append_closed({partition: store.record_applied}, always=True)
            self._files.quarantine.lift(uuid)
        store.report_applied()
        self._unopened.discard(uuid)
        self._history.places.pop(partition, None)
        self._stores[uuid] = store
        return store

    def _replay(self, store: DuckStore, history: History) -> None:
        while places := history.replay(store.partition, store.record_written):
            try:
                for number, payload in self._journal.payloads(places):
                    store.absorb(decode(payload), number, len(payload) + RECORD_HEADER_BYTES)
                    if store.unapplied_bytes >= limits.SEGMENT_BYTES_MAX:
                        store.flush()
            except FileNotFoundError:
                # The segment was trimmed meanwhile, and the records that this partition needs were copied out of it.
                history = self._journal.books.history()
                if reason := history.missing(store.partition, store.record_written):
                    raise self._files.put_aside(store.uuid, reason) from None
        store.flush()

    def _history_of(self, uuid: str) -> History:
        if uuid in self._unopened:
            return self._history
        return (
            self._journal.books.history()
            if self._journal.books.is_needed_by(UUID(uuid).bytes)
            else self._journal.books.no_history()
        )

    def replay(self, uuid: str, number: int, payload: bytes) -> bool:
        store = self._stores[uuid]
        if number <= store.record_written:
            return False
        if number > store.record_written + 1:
            raise StorageError(f"records {store.record_written + 1} to {number - 1} are missing", [uuid])
        batch = decode(payload)
        with self._staged.lock:
            store.absorb(batch, number, len(payload) + RECORD_HEADER_BYTES)
        if store.unapplied_bytes >= limits.SEGMENT_BYTES_MAX:
            store.flush()
            store.checkpoint()
        return True

    def loss(self, uuid: str) -> Loss | None:
        reason = self._files.quarantine.reason(uuid)
        if not reason:
            return None
        path = self._files.path(uuid)
        if not path.is_file():
            raise StorageError(f"{path} is missing", [uuid])
        with self._files.peek(uuid) as (file, meta):
            left = reading.summary(file)
        replayed = len(self._history_of(uuid).replay(UUID(uuid).bytes, meta.applied))
        return Loss(reason, meta.applied, replayed, left.ready, left.leased, left.scheduled)

    def accept_loss(self, uuid: str, queue: str) -> Loss:
        loss = self.loss(uuid)
        if loss is None:
            raise StorageError(f"partition {uuid} was not put aside", [uuid])
        store = self.open(uuid, queue, accept_loss=True)
        left = store.summary()
        store.close()
        return loss._replace(ready=left.ready, leased=left.leased, scheduled=left.scheduled)

    def release(self, uuid: str) -> None:
        self._discard(uuid)

    def adopt(self, uuid: str, fresh: Path) -> None:
        self._discard(uuid)
        try:
            # The file is used as it is. Records of the partition in the journal are void from now on.
            self._journal.append_closed({UUID(uuid).bytes: 0}, always=True)
            self._files.replace(uuid, fresh)
        except OSError as error:
            raise StorageError(f"{self._files.path(uuid)} cannot be put in place: {error.strerror}", [uuid]) from error
        self._files.quarantine.lift(uuid)
        self._unopened.discard(uuid)

    def staging(self, uuid: str) -> Path:
        return self._files.staging(uuid)

    def delete(self, uuid: str) -> None:
        self._discard(uuid)
        self._journal.append_closed({UUID(uuid).bytes: 0})
        self._files.delete(uuid)
        self._files.quarantine.lift(uuid)
        self._unopened.discard(uuid)
        sync_directory(self.directory)

    def _discard(self, uuid: str) -> None:
        """Detaches a partition as it is. What it has not applied is in the journal."""
        store = self._stores.pop(uuid, None)
        if store and not store.is_closed:
            store.unapplied.is_closed = True
            with contextlib.suppress(StorageError):
                self._files.detach(uuid)

    # Writing.

    @property
    def unapplied_bytes(self) -> int:
        return sum(store.unapplied_bytes for store in tuple(self._stores.values()))

    @property
    def staged_bytes(self) -> int:
        return self._staged.waiting_bytes

    def write(self, taken: object, on_loop: bool = False) -> None:
        assert isinstance(taken, list)
        try:
            self._written = self._journal.append(numbered(taken), on_loop)
        except StorageError:
            self._staged.drop(taken)
            raise

    def absorb(self, taken: object) -> int:
        assert isinstance(taken, list)
        return self._staged.absorb(taken, self._written)

    # Upkeep.

    def lagging(self, left_bytes: int = 0) -> set[str]:
        lagging = self._journal.books.lagging(2 * left_bytes // limits.SEGMENT_BYTES_MAX)
        return {str(UUID(bytes=partition)) for partition in lagging}

    def holding(self) -> set[str]:
        return {str(UUID(bytes=partition)) for partition in self._journal.books.holding()}

    @property
    def wants_preparing(self) -> bool:
        return self._journal.wants_spare

    def prepare(self) -> None:
        if self._journal.wants_spare:
            self._journal.make_spare()

    def roll(self) -> None:
        self._journal.roll()
        self._files.instance.forget_blocks()

    def close(self) -> None:
        rests = {}
        closed = {}
        for store in tuple(self._stores.values()):
            try:
                if not store.is_closed:
                    rest = store.close_file()
                    closed[store.partition] = store.record_applied
                    if rest is not None:
                        rests[store.uuid] = rest
            except StorageError as error:
                _log.error("partition %s of storage %s was not closed cleanly: %s", store.uuid, self.name, error)
        try:
            self._journal.append_closed(closed)
            self._resting.write_note(rests)
        except (StorageError, OSError) as error:
            _log.error("storage %s was not closed cleanly: %s", self.name, error)
        self._files.close()
        self._journal.close()


def _with_skip(
    files: AttachedFiles, file: PartitionFile | None, meta: Meta, history: History
) -> tuple[PartitionFile | None, Meta]:
    """Notes in a file that it has the records that it need not have, so that nobody else must know of them."""
    partition = UUID(meta.uuid).bytes
    skip = history.skip(partition, meta.applied)
    if skip is None or history.missing(partition, meta.applied):
        return file, meta
    if file is None:
        file, meta = files.attach(meta.uuid, history)
    meta = meta._replace(applied=skip.through, last_seq=max(meta.last_seq, skip.last_seq))
    applying.apply(file, Delta(meta.applied, meta.last_seq))
    return file, meta


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
