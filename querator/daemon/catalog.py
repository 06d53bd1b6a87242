"""The catalog: queues, partitions, requested states, jobs and tokens, in one small DuckDB file.

Every change is one transaction, which is durable when the method returns. All methods block and run in worker threads,
one at a time. The registry keeps the same facts in memory, and reads them from the catalog only at the start.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb
import msgspec

from querator import limits
from querator.daemon.store import FINGERPRINT_SQL, Fingerprints, ascending, sync_directory
from querator.errors import RequestFailed
from querator.items import Counts, Job, Placement, Queue, Role, State, Token

SCHEMA_VERSION = 4
"""Raise it with every change of _SCHEMA, so that a catalog of another version is refused at the start."""

_META = "create table if not exists meta (schema_version integer)"
_SCHEMA = """
create table if not exists queues (
    name varchar, namespace varchar, lease_timeout_ns bigint, expire_timeout_ns bigint, max_attempts integer,
    dead_queue varchar, reference varchar, requested_partitions integer, created_at bigint, updated_at bigint,
    retention_ns bigint);
create table if not exists partitions (
    queue varchar, number integer, uuid varchar, storage varchar, requested varchar, since bigint, resume_at bigint,
    reason varchar);
-- The numbers of items in each partition that is offline.
create table if not exists counts (
    uuid varchar, ready bigint, leased bigint, scheduled bigint, created_sum hugeint, is_remembered boolean);
-- The request ids that offline partitions remember. They are complete if counts.is_remembered is true.
create table if not exists remembered (uuid varchar, request_id varchar, until bigint);
-- Partition files that are no longer in use and have to be deleted.
create table if not exists leftovers (uuid varchar, storage varchar);
create table if not exists jobs (
    job_id varchar, kind varchar, queue varchar, partition integer, state varchar, done bigint, total bigint,
    reason varchar, created_at bigint, ended_at bigint, details varchar);
create table if not exists tokens (
    name varchar, digest varchar, prefix varchar, role varchar, queues varchar[], created_at bigint, created_by varchar,
    expires_at bigint, last_used_at bigint, revoked_at bigint);
"""


_ROWS_PER_INSERT = 100
_NOT_COPIED = ("meta", "remembered")
"""Tables that a copy of the catalog leaves out. A partition that was offline counts as one whose request ids are not
known, which is right for any partition whose file could not be read."""

T = TypeVar("T")


log = logging.getLogger("querator.daemon")

_TORN = ("not enough data in file", "entry size exceeded remaining data in file")
"""What DuckDB says of a log whose last change is cut off, or of one in which the length of an entry is damaged."""
_END_OF_CHANGE = bytes.fromhex("0500000000000000e7fe7d722fed3d5e640064ffff")
"""The entry with which each change ends in DuckDB's log: its length, its checksum, and its five bytes."""


class Leftover(NamedTuple):
    uuid: str
    storage: str


class CatalogError(RequestFailed):
    """The catalog cannot be read or written."""


class Catalog:
    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        self._path = path
        self._lock = threading.Lock()
        self._changes = 0
        """How many changes were committed since the start."""
        self._has_log = True
        """Whether DuckDB's log may have changes that the file lacks."""
        try:
            self._connection = _connected_after_crash(path)
            self._connection.execute(_META)
            found = self._connection.execute("select schema_version from meta").fetchone()
            if found is not None and found[0] != SCHEMA_VERSION:
                self._connection.close()
                raise CatalogError(f"catalog {path} has schema version {found[0]}, this daemon knows {SCHEMA_VERSION}")
            self._connection.execute(_SCHEMA)
            if found is None:
                self._connection.execute("insert into meta values (?)", [SCHEMA_VERSION])
        except duckdb.Error as error:
            raise CatalogError(f"catalog {path} cannot be opened: {error}") from error
        if is_new:
            os.chmod(path, 0o600)
            sync_directory(path.parent)

    def _usable(self) -> duckdb.DuckDBPyConnection:
        """The connection. Opened again if DuckDB has invalidated it, which happens when the disk was full."""
        try:
            self._connection.execute("select 1").fetchall()
        except duckdb.Error:
            with suppress(duckdb.Error):
                self._connection.close()
            self._connection = _connected(self._path)
        return self._connection

    def queues(self) -> list[Queue]:
        return [Queue(**row) for row in self._rows("select * from queues order by name")]

    def placements(self) -> list[Placement]:
        rows = self._rows("select * from partitions order by queue, number")
        return [Placement(**{**row, "requested": State(row["requested"])}) for row in rows]

    def counts(self) -> dict[str, Counts]:
        """By UUID."""
        return {row.pop("uuid"): Counts(**row) for row in self._rows("select * exclude (is_remembered) from counts")}

    def offline_keys(self, uuid: str, always: tuple[str, ...]) -> tuple[list[tuple[str, int]], Fingerprints] | None:
        """The request ids of an offline partition that begin with one of `always`, and fingerprints of all of them.

        None if they are not known, because the file could not be read when the partition was taken offline.
        """
        is_always = " or ".join(f"starts_with(request_id, '{prefix}')" for prefix in always)
        with self._lock:
            connection = self._usable()
            if connection.execute("select is_remembered from counts where uuid = ?", [uuid]).fetchall() != [(True,)]:
                return None
            of_this = "from remembered where uuid = ?"
            exact = connection.execute(f"select request_id, until {of_this} and ({is_always})", [uuid]).fetchall()
            (until,) = connection.execute(f"select coalesce(max(until), 0) {of_this}", [uuid]).fetchall()[0]
            values = connection.sql(f"select {FINGERPRINT_SQL} {of_this} order by 1", params=[uuid]).to_arrow_table()
        return exact, Fingerprints(ascending(values.column(0)), until)

    def remembered(self, uuid: str, request_ids: Sequence[str], now_us: int) -> set[str]:
        """Which of these request ids an offline partition remembers."""
        query = "select request_id from remembered where uuid = ? and until >= ? and list_contains(?, request_id)"
        with self._lock:
            rows = self._usable().execute(query, [uuid, now_us, list(request_ids)]).fetchall()
        return {request_id for (request_id,) in rows}

    def save_offline(self, uuid: str, counts: Counts, remembered: Iterable[Sequence[tuple[str, int]]] | None) -> None:
        """Saves the counts and the request ids of an offline partition. The ids come in pages; None if unknown."""
        with self._transaction():
            self._forget_offline(uuid)
            self._connection.execute(
                "insert into counts values (?, ?, ?, ?, ?, ?)", [uuid, *counts, remembered is not None]
            )
            for page in remembered or ():
                request_ids, until = zip(*page, strict=True)
                self._connection.execute(
                    "insert into remembered select ?, unnest(?::varchar[]), unnest(?::bigint[])",
                    [uuid, list(request_ids), list(until)],
                )

    def _forget_offline(self, uuid: str) -> None:
        for table in ("counts", "remembered"):
            self._connection.execute(f"delete from {table} where uuid = ?", [uuid])

    def leftovers(self) -> list[Leftover]:
        return [Leftover(**row) for row in self._rows("select * from leftovers")]

    def announce(self, placements: Sequence[Placement]) -> None:
        """Announces files that are about to be created. They count as leftovers until their partitions are added."""
        with self._transaction():
            self._insert("leftovers", [Leftover(one.uuid, one.storage) for one in placements])

    def add(self, queue: Queue, placements: Sequence[Placement]) -> None:
        """Adds a queue and its partitions. Their files exist already."""
        with self._transaction():
            self._insert("queues", [queue])
            self._insert_placements(placements)

    def save_queues(self, queues: Sequence[Queue]) -> None:
        with self._transaction():
            self._replace_queues([queue.name for queue in queues], queues)

    def save_placements(self, placements: Sequence[Placement]) -> None:
        """Saves the requested states of partitions. Skips partitions that were removed meanwhile."""
        with self._transaction():
            for one in placements:
                self._connection.execute(
                    "update partitions set requested = ?, since = ?, resume_at = ?, reason = ? where uuid = ?",
                    [one.requested, one.since, one.resume_at, one.reason, one.uuid],
                )

    def grow(self, queue: Queue, placements: Sequence[Placement]) -> None:
        """Saves a queue's settings together with its additional partitions."""
        with self._transaction():
            self._replace_queues([queue.name], [queue])
            self._insert_placements(placements)

    def shrink(self, placement: Placement) -> None:
        """Removes a partition. Its file becomes a leftover."""
        with self._transaction():
            self._forget_offline(placement.uuid)
            self._connection.execute("delete from partitions where uuid = ?", [placement.uuid])
            self._connection.execute("insert into leftovers values (?, ?)", [placement.uuid, placement.storage])

    def switch_storage(self, placement: Placement, storage: str) -> None:
        """Records that the partition's file is in another storage now. The old file becomes a leftover."""
        with self._transaction():
            self._connection.execute("delete from leftovers where uuid = ? and storage = ?", [placement.uuid, storage])
            self._connection.execute("insert into leftovers values (?, ?)", [placement.uuid, placement.storage])
            self._connection.execute("update partitions set storage = ? where uuid = ?", [storage, placement.uuid])

    def jobs(self) -> list[Job]:
        rows = self._rows("select * from jobs order by created_at, job_id")
        return [Job(**{**row, "details": msgspec.json.decode(row["details"])}) for row in rows]

    def save_job(self, job: Job) -> None:
        with self._transaction():
            self._connection.execute("delete from jobs where job_id = ?", [job.job_id])
            self._insert("jobs", [msgspec.structs.replace(job, details=msgspec.json.encode(job.details).decode())])

    def forget_jobs(self, job_ids: Iterable[str]) -> None:
        with self._transaction():
            for job_id in job_ids:
                self._connection.execute("delete from jobs where job_id = ?", [job_id])

    def tokens(self) -> list[Token]:
        rows = self._rows("select * from tokens order by created_at, name")
        return [Token(**{**row, "role": Role(row["role"]), "queues": tuple(row["queues"])}) for row in rows]

    def save_tokens(self, tokens: Sequence[Token]) -> None:
        """Replaces all tokens by these."""
        with self._transaction():
            self._connection.execute("delete from tokens")
            self._insert("tokens", tokens)

    def remove(self, name: str, changed: Sequence[Queue]) -> None:
        """Removes a queue; its files become leftovers. `changed` are queues that lose it as their dead queue."""
        with self._transaction():
            self._connection.execute(
                "insert into leftovers select uuid, storage from partitions where queue = ?", [name]
            )
            for table in ("counts", "remembered"):
                self._connection.execute(
                    f"delete from {table} where uuid in (select uuid from partitions where queue = ?)", [name]
                )
            self._connection.execute("delete from partitions where queue = ?", [name])
            self._replace_queues([name, *(queue.name for queue in changed)], changed)

    def forget_leftovers(self, leftovers: Iterable[Leftover]) -> None:
        with self._transaction():
            for uuid, storage in leftovers:
                self._connection.execute("delete from leftovers where uuid = ? and storage = ?", [uuid, storage])

    # Copies.

    def copied(self, seen: int, meanwhile: Callable[[], T]) -> tuple[int, bytes, T]:
        """A copy of the catalog, as bytes for `load`; empty if there were no changes since `seen`.

        Also returns the number of changes so far, and the result of `meanwhile`, which runs while nothing can change.
        """
        with self._lock:
            result = meanwhile()
            return self._changes, b"" if seen == self._changes else self._copy(), result

    def _copy(self) -> bytes:
        connection = self._usable()
        names = [name for (name,) in connection.execute("select table_name from duckdb_tables()").fetchall()]
        tables = {}
        for name in sorted(set(names) - set(_NOT_COPIED)):
            cursor = connection.execute(f"select * from {name}")
            columns = [column[0] for column in cursor.description or ()]
            tables[name] = [columns, cursor.fetchall()]
        return json.dumps({"schema_version": SCHEMA_VERSION, "tables": tables}, default=_json_value).encode()

    def load(self, copy: bytes) -> None:
        """Replaces everything in the catalog by a copy."""
        found = json.loads(copy)
        if found["schema_version"] != SCHEMA_VERSION:
            raise CatalogError(
                f"the catalog has schema version {found['schema_version']}, this version knows {SCHEMA_VERSION}"
            )
        with self._transaction():
            self._connection.execute("delete from remembered")
            for name, (columns, rows) in found["tables"].items():
                self._connection.execute(f"delete from {name}")
                for at in range(0, len(rows), _ROWS_PER_INSERT):
                    some = rows[at : at + _ROWS_PER_INSERT]
                    marks = ", ".join(f"({', '.join('?' * len(columns))})" for _ in some)
                    values = [_python_value(value) for row in some for value in row]
                    self._connection.execute(f"insert into {name} ({', '.join(columns)}) values {marks}", values)
            self._connection.execute("update counts set is_remembered = false")

    def forget_elsewhere(self, queue: str = "") -> None:
        """In a copy of a catalog: forgets files that were not copied, and all other queues if one is named."""
        with self._transaction():
            self._connection.execute("delete from leftovers")
            if queue:
                for table, column in (("queues", "name"), ("partitions", "queue"), ("jobs", "queue")):
                    self._connection.execute(f"delete from {table} where {column} <> ?", [queue])
                self._connection.execute("delete from counts where uuid not in (select uuid from partitions)")
                self._connection.execute(
                    "update queues set dead_queue = '' where dead_queue not in (select name from queues)"
                )

    def close(self) -> None:
        # If the checkpoint fails, DuckDB's log keeps the changes that the file lacks.
        with suppress(duckdb.Error):
            self._connection.execute("checkpoint")
        self._connection.close()

    def _rows(self, query: str) -> list[dict[str, Any]]:
        with self._lock:
            cursor = self._usable().execute(query)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _replace_queues(self, names: list[str], queues: Sequence[Queue]) -> None:
        self._connection.execute("delete from queues where name in (select unnest(?::varchar[]))", [names])
        self._insert("queues", queues)

    def _insert_placements(self, placements: Sequence[Placement]) -> None:
        uuids = [one.uuid for one in placements]
        self._connection.execute("delete from leftovers where uuid in (select unnest(?::varchar[]))", [uuids])
        self._insert("partitions", placements)

    def _insert(self, table: str, rows: Sequence[msgspec.Struct | Leftover]) -> None:
        """Inserts all rows in one statement, because a statement costs as much as a hundred rows."""
        found = [row._asdict() if isinstance(row, Leftover) else msgspec.structs.asdict(row) for row in rows]
        if found:
            columns = ", ".join(found[0])
            marks = ", ".join(f"({', '.join('?' * len(found[0]))})" for _ in found)
            values = [value for row in found for value in row.values()]
            self._connection.execute(f"insert into {table} ({columns}) values {marks}", values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A change, durable at the end of the block."""
        with self._lock:
            try:
                self._usable().execute("begin")
                yield
                self._connection.execute("commit")
            except BaseException as error:
                # A failed commit has rolled back already.
                with suppress(duckdb.Error):
                    self._connection.execute("rollback")
                if isinstance(error, duckdb.Error):
                    reason = str(error).splitlines()[0]
                    raise CatalogError(f"the catalog cannot be written; {reason}") from error
                raise
            self._changes += 1
            self._has_log = True
            log_path = _log_path(self._path)
            log_bytes = log_path.stat().st_size if log_path.exists() else 0
            is_small = self._path.stat().st_size < limits.CATALOG_SMALL_BYTES_MAX
            if is_small or log_bytes >= limits.CATALOG_LOG_BYTES_MAX:
                self._checkpoint()

    def checkpoint(self) -> None:
        """Puts everything into the file. Until then DuckDB's log has the latest changes.

        A checkpoint writes whole tables. After every change of a large catalog, the cost of a new queue would grow with
        their number, so that is done every few seconds.
        """
        if self._has_log:
            with self._lock:
                self._checkpoint()

    def _checkpoint(self) -> None:
        with suppress(duckdb.Error):  # the disk is too full
            self._connection.execute("checkpoint")
            self._has_log = False


def _connected_after_crash(path: Path) -> duckdb.DuckDBPyConnection:
    """Leaves out a change that a crash cut off in DuckDB's log: it was not acknowledged. Keeps a copy of the log."""
    try:
        return _connected(path)
    except duckdb.Error as error:
        changes = _log_path(path)
        log_bytes = changes.read_bytes() if changes.exists() else b""
        # After a power cut, a file may be as long as it was to become, and have zeros where nothing was written yet.
        is_cut_off = log_bytes.endswith(b"\0") or any(text in str(error) for text in _TORN)
        whole = (
            log_bytes[: log_bytes.rfind(_END_OF_CHANGE) + len(_END_OF_CHANGE)] if _END_OF_CHANGE in log_bytes else b""
        )
        if not is_cut_off or not _can_be_opened(path, whole):
            raise
        kept = path.with_name(path.name + ".wal.torn")
        shutil.copyfile(changes, kept)
        log.warning(
            "a crash interrupted the last change of the catalog, which is left out",
            extra={"log": str(kept), "reason": str(error)},
        )
        if whole:
            os.truncate(changes, len(whole))
        else:
            changes.unlink()
        connection = _connected(path)
        connection.execute("checkpoint")
        return connection


def _can_be_opened(path: Path, log_bytes: bytes) -> bool:
    """Whether a catalog can be opened with the whole changes of its log. If not, the log was damaged, not cut off, and
    changes behind the damage were acknowledged. Tried with a copy, because DuckDB writes a log into its file."""
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        copy = Path(place) / path.name
        shutil.copyfile(path, copy)
        if log_bytes:
            _log_path(copy).write_bytes(log_bytes)
        try:
            _connected(copy).close()
        except duckdb.Error:
            return False
    return True


def _connected(path: Path) -> duckdb.DuckDBPyConnection:
    # With this setting a damaged log is an error, instead of a catalog that silently lost its last changes.
    # One thread: with more of them, DuckDB takes half as long again for statements as small as these.
    return duckdb.connect(str(path), config={"debug_abort_on_wal_failure": True, "threads": 1})


def _log_path(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


def placements_in(copy: bytes) -> dict[str, tuple[str, str]]:
    """The queue and the storage of each partition in a copy of a catalog, by UUID."""
    return {row["uuid"]: (row["queue"], row["storage"]) for row in rows_in(copy, "partitions")}


def leftovers_in(copy: bytes) -> set[str]:
    """The UUIDs of files in a copy of a catalog that belong to no queue, or not yet."""
    return {row["uuid"] for row in rows_in(copy, "leftovers")}


def rows_in(copy: bytes, table: str) -> list[dict[str, Any]]:
    """The rows of a table in a copy of a catalog, by the names of its columns."""
    columns, rows = json.loads(copy)["tables"][table]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _json_value(value: object) -> object:
    return {"hex": value.hex()} if isinstance(value, bytes) else str(value)


def _python_value(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value
