"""A storage of DuckDB files, with a journal in front of them.

One DuckDB instance per storage, in memory, to which every partition's file is attached; each worker thread has a cursor
of its own. A live file is never opened by hand: closing any descriptor of it would drop DuckDB's lock on it.
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
from uuid import UUID, uuid4

import duckdb
import msgspec

from querator import limits
from querator.daemon import priority
from querator.daemon.failpoints import failpoint
from querator.daemon.store.base import Batch, LackOfMemory, Loss, StorageError
from querator.daemon.store.duck import tables
from querator.daemon.store.duck.duckstore import DuckStore, log_path
from querator.daemon.store.duck.partition_file import (
    MEASURED_TABLES,
    TABLES,
    Meta,
    PartitionFile,
    is_lack_of_memory,
    with_room,
)
from querator.daemon.store.duck.quarantine import Quarantine
from querator.daemon.store.duck.snapshot import Contents, Snapshot, read_contents
from querator.daemon.store.files import make_directory, sync_directory, sync_file, write_file
from querator.daemon.store.journal import records
from querator.daemon.store.journal.history import History
from querator.daemon.store.journal.segments import Entry, Journal
from querator.daemon.store.stretches import stretches
from querator.items import Room

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


class Instance:
    """A DuckDB instance that can reach the files of one directory and nothing else."""

    def __init__(self, directory: Path, trust_torn_logs: bool = False, is_brief: bool = False) -> None:
        """`is_brief`: made for one job and gone after it, so that it may take more memory at once."""
        self._database = priority.at_low_priority(lambda: duckdb.connect(":memory:"))
        self._cursors = threading.local()
        self.memory_bytes = limits.DUCKDB_MEMORY_BYTES
        if is_brief:
            self.memory_bytes = min(limits.DUCKDB_JOB_MEMORY_BYTES, _memory_bytes_max())
        self._raising = threading.Lock()
        place = str(directory).replace("'", "''")
        for setting in (
            f"memory_limit = '{self.memory_bytes} B'",
            f"temp_directory = '{place}/tmp'",
            # A commit that trips over a checkpoint waits for it. Checkpoints happen when we say so.
            "checkpoint_threshold = '1TB'",
            # A bad log is an error then, instead of commits that are silently gone.
            f"debug_abort_on_wal_failure = {not trust_torn_logs}",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            f"allowed_directories = ['{place}']",
            "enable_external_access = false",
            "allowed_configs = ['memory_limit']",
            "lock_configuration = true",
        ):
            self._database.execute(f"SET {setting}")

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """The calling thread's own."""
        cursor: duckdb.DuckDBPyConnection | None = getattr(self._cursors, "cursor", None)
        if cursor is None:
            cursor = self._cursors.cursor = self._database.cursor()
        return cursor

    def new_cursor(self) -> duckdb.DuckDBPyConnection:
        """One for a transaction that outlives a call."""
        return self._database.cursor()

    def attach(self, name: str, path: Path, options: str = "") -> PartitionFile:
        place = str(path).replace("'", "''")
        with_room(self, lambda: self.cursor().execute(f"ATTACH '{place}' AS {name} {options}"))
        return PartitionFile(name, self)

    def make_room(self, had_bytes: int) -> bool:
        """Lets DuckDB use twice as much memory as it had, up to its share of the machine. False if it has all of that.

        It unpacks the payloads of 2,048 neighbouring rows at once, however large they are. Most payloads are small, and
        with a high limit from the start DuckDB would fill its memory with blocks that it does not need.
        """
        with self._raising:
            if self.memory_bytes > had_bytes:
                return True  # another thread has asked for more meanwhile
            wanted = min(2 * had_bytes, _memory_bytes_max())
            if wanted <= had_bytes:
                return False
            self.cursor().execute(f"SET memory_limit = '{wanted} B'")
            self.memory_bytes = wanted
        _log.warning("DuckDB needs more memory for large payloads; it may use %d MB now", wanted // 1_000_000)
        return True

    def forget_blocks(self) -> None:
        """Lets go of the blocks that DuckDB keeps in case it needs them again."""
        with self._raising:
            for allowed in (limits.DUCKDB_RESTING_BYTES, self.memory_bytes):
                # Should something be under way after all, it keeps what it needs.
                with contextlib.suppress(duckdb.Error):
                    self.cursor().execute(f"SET memory_limit = '{allowed} B'")

    def detach(self, name: str) -> None:
        self.cursor().execute(f"DETACH DATABASE IF EXISTS {name}")

    def is_alive(self) -> bool:
        try:
            self.cursor().execute("SELECT 1").fetchall()
        except duckdb.Error:
            return False
        return True

    def close(self) -> None:
        self._cursors = threading.local()
        self._database.close()


Taken = list[tuple[DuckStore, Batch, bytes]]


class DuckStorage:
    """A directory of partition files and their journal. Call `recover` before anything else."""

    def __init__(self, name: str, directory: Path | str) -> None:
        self.name = name
        directory = Path(directory)
        make_directory(directory)
        # DuckDB and we must agree on what a file is called: it tells files apart by their names.
        self.directory = directory.resolve()
        self._journal = Journal(self.directory / "journal")
        self._quarantine = Quarantine(self.directory / "quarantine")
        self._instance = Instance(self.directory)
        self._lock = threading.Lock()
        self._stores: dict[str, DuckStore] = {}
        self._pending: Taken = []
        self._history = History()
        self._unopened: set[str] = set()
        self._template = b""
        self._making_template = threading.Lock()

    # Starting.

    def recover(self) -> None:
        """Reads the journal, once, and puts aside whatever is not to be trusted. Raises StorageError."""
        tables.warm_up()
        for leftover in self.directory.glob("*.creating"):
            shutil.rmtree(leftover)
        self._unopened = {path.stem for path in self.directory.glob("*.duckdb") if _is_uuid(path.stem)}
        try:
            self._history = self._journal.recover()
            if self._journal.is_new and self._unopened:
                self._history.wound("the journal is missing, and so is the note of what was in it", None)
            if self._history.wounds:
                self._judge()
            self._journal.seal()
        except OSError as error:
            raise StorageError(f"journal of storage {self.name}: {error}") from error

    def _judge(self) -> None:
        """Decides who is concerned by damage now, so that damaged segments need not be kept for that."""
        for path in {wound.path for wound in self._history.wounds if wound.path}:
            self._quarantine.copy(path)
        for uuid in sorted(self._unopened):
            if not self._quarantine.reason(uuid):
                reason = self._history.missing(UUID(uuid).bytes, self._peek_applied(uuid))
                if reason:
                    self._put_aside(uuid, reason)

    def _peek_applied(self, uuid: str) -> int:
        try:
            file = self._instance.attach(_name(uuid), self._path(uuid))
            try:
                return file.meta().applied
            finally:
                self._instance.detach(_name(uuid))
        except (duckdb.Error, ValueError):
            return 0

    def _put_aside(self, uuid: str, reason: str) -> StorageError:
        _log.error("partition %s of storage %s is put aside: %s", uuid, self.name, reason)
        with contextlib.suppress(StorageError):
            self._detach(uuid)
        path = self._path(uuid)
        self._quarantine.put(uuid, reason, [path, log_path(path)])
        return StorageError(f"partition {uuid} cannot be trusted: {reason}", [uuid])

    @property
    def failure(self) -> str:
        return self._journal.failure

    @property
    def shortage(self) -> str:
        return self._journal.shortage

    def check_room(self) -> Room:
        there = os.statvfs(self.directory)
        room = Room(there.f_bavail * there.f_frsize, there.f_blocks * there.f_frsize)
        if self.shortage or room.free_bytes < limits.ROOM_PROBE_BELOW_BYTES:
            self._journal.probe()
        return room

    def reopen(self) -> None:
        """After a failure: starts over from what is durable. Every partition must be opened again afterwards."""
        self._journal.reopen()
        for store in tuple(self._stores.values()):
            self._discard(store.uuid)
        self._instance.close()
        self._instance = Instance(self.directory)
        self.recover()

    # Partitions.

    def create(self, uuid: str, queue: str) -> DuckStore:
        """If the process ends half way, the file has no row in `meta`, and nobody can take it for a partition."""
        path = self._path(uuid)
        if path.exists():
            raise StorageError(f"{path} exists already", [uuid])
        try:
            with self.failures(uuid):
                write_file(path, self._empty_file())
                sync_directory(self.directory)
                file = self._instance.attach(_name(uuid), path)
                file.claim(uuid, queue)
                # Whose file it is must be known even if DuckDB's log is damaged later.
                file.checkpoint()
                if self._history.wounds:
                    # A segment that stays damaged is older than this partition, and does not concern it next time.
                    self._journal.append_closed({UUID(uuid).bytes: 0}, always=True)
                return self._entered(file, Meta(uuid, queue, tables.SCHEMA_VERSION, 0, 0), self._history_of(uuid))
        except StorageError:
            with contextlib.suppress(StorageError, OSError):
                self._detach(uuid)
                for made in (path, log_path(path)):
                    made.unlink(missing_ok=True)
            raise

    def _empty_file(self) -> bytes:
        """A partition file without a row: writing these bytes takes a fraction of creating the tables of each file."""
        with self._making_template:
            if not self._template:
                self._template = self._make_template()
            return self._template

    def _make_template(self) -> bytes:
        staging = self.staging(str(uuid4()))
        path = staging / "template.duckdb"
        try:
            # The smallest blocks: most partitions are small, and there may be a thousand of them.
            file = self._instance.attach("template", path, "(BLOCK_SIZE 16384)")
            file.create_tables()
            file.checkpoint()
            self._instance.detach("template")
            return path.read_bytes()
        finally:
            self._instance.detach("template")
            shutil.rmtree(staging)

    def open(self, uuid: str, queue: str, accept_loss: bool = False) -> DuckStore:
        """With `accept_loss`, a partition that was put aside is opened with whatever is left of it."""
        self._discard(uuid)
        path = self._path(uuid)
        # Attaching a file that is not there would create it.
        if not path.is_file() or path.is_symlink():
            raise StorageError(f"{path} is missing", [uuid])
        if accept_loss:
            for untouched in (path, log_path(path)):
                if not self._quarantine.copy(untouched):
                    raise StorageError(f"there is no room for a copy of {untouched} in quarantine", [uuid])
        elif reason := self._quarantine.reason(uuid):
            raise StorageError(f"partition {uuid} cannot be trusted: {reason}", [uuid])
        history = self._history_of(uuid)
        try:
            with self.failures(uuid):
                file, meta = self._attach(uuid, history, accept_loss)
                return self._entered(file, meta, history, accept_loss)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._detach(uuid)
            raise

    def _entered(self, file: PartitionFile, meta: Meta, history: History, accept_loss: bool = False) -> DuckStore:
        """The store of an attached file, with everything applied that the journal has of it."""
        uuid, partition = meta.uuid, UUID(meta.uuid).bytes
        reason = history.missing(partition, meta.applied)
        if reason and not accept_loss:
            raise self._put_aside(uuid, reason)
        store = DuckStore(self, self._lock, file, self._path(uuid), meta)
        self._replay(store, history)
        file.drop_orphans()
        if accept_loss:
            self._journal.append_closed({partition: store.record_applied}, always=True)
            self._quarantine.lift(uuid)
        self.applied(store)
        self._unopened.discard(uuid)
        self._history.places.pop(partition, None)
        self._stores[uuid] = store
        return store

    def loss(self, uuid: str) -> Loss:
        reason = self._quarantine.reason(uuid)
        if not reason:
            raise StorageError(f"partition {uuid} was not put aside", [uuid])
        path = self._path(uuid)
        if not path.is_file():
            raise StorageError(f"{path} is missing", [uuid])
        instance = Instance(self.directory, trust_torn_logs=True, is_brief=True)
        try:
            with self.failures(uuid):
                file = instance.attach(_name(uuid), path, "(READ_ONLY)")
                applied, there = _checked_meta(file, uuid, path).applied, file.summary()
                instance.detach(_name(uuid))
        finally:
            instance.close()
        replayed = len(self._history_of(uuid).replay(UUID(uuid).bytes, applied))
        return Loss(reason, applied, replayed, there.ready, there.leased, there.scheduled)

    def accept_loss(self, uuid: str, queue: str) -> Loss:
        loss = self.loss(uuid)
        store = self.open(uuid, queue, accept_loss=True)
        there = store.summary()
        store.close()
        return loss._replace(ready=there.ready, leased=there.leased, scheduled=there.scheduled)

    def _history_of(self, uuid: str) -> History:
        if uuid in self._unopened:
            return self._history
        return self._journal.history() if self._journal.is_needed_by(UUID(uuid).bytes) else self._journal.no_history()

    def _attach(self, uuid: str, history: History, accept_loss: bool) -> tuple[PartitionFile, Meta]:
        path = self._path(uuid)
        try:
            file = self._instance.attach(_name(uuid), path)
        except duckdb.Error as error:
            # Every kind of damage to a log has an error of its own, and so has every other reason.
            if _may_pass(error) or not log_path(path).exists():
                raise
            _log.warning("%s: %s", log_path(path), error)
            self._repair_log(uuid, history, accept_loss)
            file = self._instance.attach(_name(uuid), path)
        return file, _checked_meta(file, uuid, path)

    def _repair_log(self, uuid: str, history: History, accept_loss: bool) -> None:
        """DuckDB's log of the file ends badly: in the middle of a commit, when the process was killed there.

        What that commit held is then still in the journal, all of it. If it is not, something else is wrong.
        """
        path, partition = self._path(uuid), UUID(uuid).bytes
        instance = Instance(self.directory, trust_torn_logs=True, is_brief=True)
        try:
            file = instance.attach(_name(uuid), path)
            applied = _checked_meta(file, uuid, path).applied
            is_whole = history.replay(partition, applied) and not history.missing(partition, applied)
            if is_whole or accept_loss:
                file.checkpoint()
                instance.detach(_name(uuid))
                # Everything committed is in the file now. A log without a whole commit is left lying by DuckDB.
                log_path(path).unlink(missing_ok=True)
                sync_directory(self.directory)
                return
        except duckdb.Error as error:
            if _may_pass(error):
                raise
            _log.warning("%s: %s", log_path(path), error)
        finally:
            instance.close()
        raise self._put_aside(uuid, f"{log_path(path).name} is damaged")

    def _replay(self, store: DuckStore, history: History) -> None:
        while places := history.replay(store.partition, store.record_written):
            try:
                for number, payload in self._journal.payloads(places):
                    store.absorb(_decode(payload), number, len(payload) + records.RECORD_HEADER_BYTES)
                    if store.unapplied_bytes >= limits.SEGMENT_BYTES_MAX:
                        store.flush()
            except FileNotFoundError:
                # A segment went because others need it no longer, and what we need of it was copied out.
                history = self._journal.history()
                if reason := history.missing(store.partition, store.record_written):
                    raise self._put_aside(store.uuid, reason) from None
        store.flush()

    def release(self, uuid: str) -> None:
        self._discard(uuid)

    def adopt(self, uuid: str, fresh: Path) -> None:
        """Puts a whole file that nobody has open in the place of a partition's, or where there was none.

        It is taken as it is: what the journal has of the partition is void from now on.
        """
        path = self._path(uuid)
        self._discard(uuid)
        try:
            self._journal.append_closed({UUID(uuid).bytes: 0}, always=True)
            # The log of the file that goes must not be met by the file that comes.
            log_path(path).unlink(missing_ok=True)
            sync_directory(self.directory)
            fresh.rename(path)
            sync_directory(self.directory)
        except OSError as error:
            raise StorageError(f"{path} cannot be put in place: {error.strerror}", [uuid]) from error
        self._quarantine.lift(uuid)
        self._unopened.discard(uuid)

    def staging(self, uuid: str) -> Path:
        """An empty directory in this storage in which a file can be made; gone at the next start."""
        place = self._path(uuid).with_suffix(".creating")
        try:
            if place.exists():
                shutil.rmtree(place)
            place.mkdir(mode=0o700)
        except OSError as error:
            raise StorageError(f"storage {self.name} cannot be written: {error.strerror}", [uuid]) from error
        return place

    def delete(self, uuid: str) -> None:
        self._discard(uuid)
        self._journal.append_closed({UUID(uuid).bytes: 0})
        for path in (self._path(uuid), log_path(self._path(uuid))):
            path.unlink(missing_ok=True)
        self._quarantine.lift(uuid)
        self._unopened.discard(uuid)
        sync_directory(self.directory)

    def _discard(self, uuid: str) -> None:
        """Lets go of a partition as it is; what it has not applied is in the journal."""
        if self._stores.pop(uuid, None):
            with contextlib.suppress(StorageError):
                self._detach(uuid)

    def _detach(self, uuid: str) -> None:
        with self.failures(uuid):
            self._instance.detach(_name(uuid))

    def _path(self, uuid: str) -> Path:
        return self.directory / f"{UUID(uuid)}.duckdb"

    # Committing.

    def stage(self, store: DuckStore, batch: Batch) -> None:
        self._pending.append((store, batch, _encode(batch)))

    @property
    def unapplied_bytes(self) -> int:
        return sum(store.unapplied_bytes for store in tuple(self._stores.values()))

    @property
    def held_bytes(self) -> int:
        return sum(store.held_bytes for store in tuple(self._stores.values()))

    @property
    def memory_bytes(self) -> int:
        return sum(store.memory_bytes for store in tuple(self._stores.values()))

    def take(self) -> object | None:
        taken, self._pending = self._pending, []
        return taken or None

    def write(self, taken: object, on_loop: bool = False) -> None:
        assert isinstance(taken, list)
        batches: Taken = taken
        numbers: dict[bytes, int] = {}
        entries: list[Entry] = []
        gone: list[str] = []
        for store, _, payload in batches:
            partition = store.partition
            number = numbers[partition] = numbers.get(partition, store.record_written) + 1
            entries.append(Entry(records.BATCH, number, partition, payload))
            if self._stores.get(store.uuid) is not store:
                gone.append(store.uuid)
        try:
            if gone:
                raise StorageError(f"partition {gone[0]} was closed meanwhile", gone)
            self._journal.append(entries, numbers, on_loop)
        except StorageError:
            with self._lock:
                for store, batch, _ in batches:
                    store.drop_staged(batch)
            raise

    def absorb(self, taken: object) -> None:
        assert isinstance(taken, list)
        batches: Taken = taken
        with self._lock:
            for store, batch, payload in batches:
                store.absorb_staged(batch, store.record_written + 1, len(payload) + records.RECORD_HEADER_BYTES)

    # What partitions tell, see Home.

    def applied(self, store: DuckStore) -> None:
        try:
            self._journal.applied(store.partition, store.record_applied)
        except OSError as error:
            # It is applied; that a segment stays a little longer does no harm.
            _log.warning("journal of storage %s: %s", self.name, error)

    def attach_again(self, store: DuckStore) -> None:
        if store.file_replaced():
            raise StorageError(f"{store.path} was replaced or removed while it was open", [store.uuid])
        self._detach(store.uuid)
        store.file, _ = self._attach(store.uuid, self._journal.history(), accept_loss=False)

    def snapshot(self, store: DuckStore) -> Snapshot:
        return Snapshot(self._instance, self._instance.new_cursor(), store.file.name)

    def compact(self, store: DuckStore) -> None:
        """Copies a file without the room that deleted rows have left in it, and puts the copy in its place."""
        path, staging = store.path, self.staging(store.uuid)
        fresh = staging / path.name
        name, copy = store.file.name, store.file.name + "_copy"
        try:
            file = self._instance.attach(copy, fresh)
            _copy_rows(store.file, file)
            if self._contents(copy) != self._contents(name):
                raise StorageError(f"the copy of {path} does not hold what it should", [store.uuid])
            with_room(self._instance, file.checkpoint)
            self._instance.detach(copy)
            fresh.chmod(0o600)
            sync_file(fresh)
            failpoint("compact.copied")
            self._instance.detach(name)
            # Its log must be empty now: the file that comes could not tell that it is not its own.
            if log_path(path).exists():
                raise StorageError(f"{log_path(path)} is still there", [store.uuid])
            fresh.rename(path)
            sync_directory(self.directory)
            failpoint("compact.switched")
        finally:
            self._instance.detach(copy)
            shutil.rmtree(staging, ignore_errors=True)
            self._instance.detach(name)
            store.switched(self._instance.attach(name, path))

    def _contents(self, name: str) -> Contents:
        return with_room(self._instance, lambda: read_contents(self._instance.cursor(), name))

    def closed(self, store: DuckStore) -> None:
        self._detach(store.uuid)
        self._stores.pop(store.uuid, None)
        self._journal.append_closed({store.partition: store.record_applied})

    @contextlib.contextmanager
    def failures(self, uuid: str) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, OSError, ValueError) as error:
            if is_lack_of_memory(error):
                megabytes = self._instance.memory_bytes // 1_000_000
                raise LackOfMemory(
                    f"it takes more than the {megabytes} MB of memory that DuckDB may use", [uuid]
                ) from error
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if isinstance(error, duckdb.Error) and not self._instance.is_alive():
                # DuckDB gives up as a whole when it cannot know what is on disk.
                self._journal.refuse(f"storage {self.name}: {reason}")
                raise StorageError(f"storage {self.name}: {reason}") from error
            raise StorageError(f"partition {uuid}: {reason}", [uuid]) from error

    # Keeping house.

    def lagging(self) -> set[str]:
        """The partitions that keep old segments of the journal from going; apply these first."""
        return {str(UUID(bytes=partition)) for partition in self._journal.lagging()}

    @property
    def wants_preparing(self) -> bool:
        return self._journal.wants_spare

    def prepare(self) -> None:
        self._journal.note_acknowledged()
        if self._journal.wants_spare:
            self._journal.make_spare()

    def roll(self) -> None:
        """When things are idle: closes the journal's segment, so that it can go, and lets go of memory."""
        self._journal.roll()
        self._instance.forget_blocks()

    def close(self) -> None:
        for store in tuple(self._stores.values()):
            try:
                store.close()
            except StorageError as error:
                _log.error("partition %s of storage %s was not closed in order: %s", store.uuid, self.name, error)
        self._instance.close()
        self._journal.close()


def open_storage(name: str, directory: Path | str) -> DuckStorage:
    """A storage that is ready for use; blocking. Raises StorageError or OSError."""
    storage = DuckStorage(name, directory)
    storage.recover()
    return storage


def _copy_rows(source: PartitionFile, target: PartitionFile) -> None:
    """Everything of a file into one that is empty. COPY FROM DATABASE would forget how columns are compressed."""
    target.create_tables()
    for table in ("meta", *TABLES):
        for stretch in stretches(source, table) if table in MEASURED_TABLES else [None]:
            target.copy_rows(source.name, table, stretch)


def _may_pass(error: duckdb.Error) -> bool:
    """Whether a file cannot be opened now, for want of something, and not because of what is in it."""
    text = str(error)
    return "Could not set lock" in text or is_lack_of_memory(error) or any(reason in text for reason in _PASSING)


_PASSING = [
    *(os.strerror(number) for number in (EIO, ENOSPC, EDQUOT, EFBIG, EROFS, EACCES, EPERM, EMFILE, ENFILE, ENOMEM)),
    "fsync",
]


def _memory_bytes_max() -> int:
    there: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return there * limits.DUCKDB_MEMORY_PERCENT_MAX // 100


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _name(uuid: str) -> str:
    return "p" + UUID(uuid).hex


def _checked_meta(file: PartitionFile, uuid: str, path: Path) -> Meta:
    meta = file.meta()
    if meta.uuid != uuid:
        raise StorageError(f"{path} is the file of another partition, {meta.uuid}", [uuid])
    if meta.schema_version != tables.SCHEMA_VERSION:
        raise StorageError(f"{path} has schema version {meta.schema_version}, not {tables.SCHEMA_VERSION}", [uuid])
    return meta
