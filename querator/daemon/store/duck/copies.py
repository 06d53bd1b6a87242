"""Copies of closed partition files, and what they contain. Nothing here touches a file that is in use.

Every function blocks, and runs in a worker thread.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from querator.daemon.store.base import StorageError
from querator.daemon.store.duck import soundness
from querator.daemon.store.duck.database import Cursor, reason_of, with_room
from querator.daemon.store.duck.instance import Instance
from querator.daemon.store.duck.snapshot import FileContents, FileSnapshot, read_contents
from querator.daemon.store.duck.tables import MEASURED_TABLES, SCHEMA_VERSION, TABLES
from querator.daemon.store.files import open_regular, private, sync_file
from querator.daemon.store.stretches import stretches

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES: Final = 4 << 20
ROWS_PER_INSERT: Final = 100_000
PARTS_PER_INSERT: Final = 4_096


def contents(path: Path) -> FileContents:
    """Reads a whole closed file. Raises StorageError if it is not a partition file, or is damaged or unsound."""
    with _attached(path) as instance:
        soundness.check(instance.cursor(), "file")
        return with_room(instance, lambda: read_contents(instance.cursor(), "file"))


def row_counts(path: Path) -> dict[str, int]:
    """The number of rows of each table of a closed file. Fast, because hardly any of the file is read."""
    with inspected(path) as cursor:
        return {table: cursor.execute(f"SELECT count(*) FROM file.{table}").fetchall()[0][0] for table in TABLES}


@contextmanager
def inspected(path: Path, writable: bool = False) -> Iterator[Cursor]:
    """A cursor of a DuckDB instance to which a closed file is attached as `file`."""
    with _attached(path, writable) as instance:
        yield instance.cursor()


@contextmanager
def _attached(path: Path, writable: bool = False) -> Iterator[Instance]:
    if not path.is_file():
        raise StorageError(f"{path} is missing")
    instance = Instance(path.parent, is_brief=True)
    try:
        cursor = instance.cursor()
        place = str(path).replace("'", "''")
        try:
            cursor.execute(f"ATTACH '{place}' AS file" + ("" if writable else " (READ_ONLY)"))
            version = cursor.execute("SELECT schema_version FROM file.meta").fetchall()
            if version != [(SCHEMA_VERSION,)]:
                raise ValueError(f"its schema version is not {SCHEMA_VERSION}")
            yield instance
            cursor.execute("DETACH file")
        except StorageError:
            raise
        except Exception as error:  # DuckDB reports damage in many ways
            raise StorageError(f"{path} cannot be read: {reason_of(error)}") from error
    finally:
        instance.close()


def write_snapshot(snapshot: FileSnapshot, path: Path, check: Callable[[int], None]) -> FileContents:
    """Writes the rows of a snapshot to a new partition file, durably. `check` gets the number of rows written so far.

    Raises StorageError if the file cannot be written, for example on a full disk.
    """
    try:
        wanted = snapshot.contents()
        written, done = _write_snapshot(snapshot, path, wanted, check)
    except duckdb.Error as error:
        raise StorageError(f"{path} cannot be written: {reason_of(error)}") from error
    if not written.same_rows(wanted):
        raise StorageError(f"{path} does not hold what was written to it")
    sync_file(path)
    check(done)
    return written


def _write_snapshot(
    snapshot: FileSnapshot, path: Path, wanted: FileContents, check: Callable[[int], None]
) -> tuple[FileContents, int]:
    instance = Instance(path.parent, is_brief=True)
    try:
        file = instance.attach("file", path)
        file.create_tables()
        file.claim(wanted.uuid, wanted.queue)
        path.chmod(0o600)
        cursor = instance.cursor()
        cursor.execute("UPDATE file.meta SET applied = ?, last_seq = ?", [wanted.applied, wanted.last_seq])
        done = 0
        for table in TABLES:
            for rows in _rows(snapshot, table):
                check(done)
                with_room(instance, lambda rows=rows, table=table: file.add_rows(table, rows))  # type: ignore[misc]
                done += rows.num_rows
        written = with_room(instance, lambda: read_contents(cursor, "file"))
        with_room(instance, file.checkpoint)
        instance.detach("file")
    finally:
        instance.close()
    return written, done


def _rows(snapshot: FileSnapshot, table: str) -> Iterator[pa.Table]:
    """The rows of a table of a snapshot, in pieces that fit in memory."""
    import pyarrow as pa

    if table in MEASURED_TABLES:
        for stretch in stretches(snapshot, table):
            yield snapshot.select(f"SELECT * FROM {{file}}.{table} WHERE {stretch.condition}")
        return
    with snapshot.reading():
        rows_max = PARTS_PER_INSERT if table == "parts" else ROWS_PER_INSERT
        reader = snapshot.cursor.sql(f"SELECT * FROM {snapshot.name}.{table}").to_arrow_reader(rows_max)
        # The snapshot cannot be closed before this reader is.
        with reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])


def copy_file(source: Path, target: Path, bytes_per_second: int, check: Callable[[int], None]) -> str:
    """Copies a closed file, durably; returns its SHA-256. `check` gets the number of bytes copied, and may raise."""
    digest = hashlib.sha256()
    done = 0
    started = time.monotonic()
    try:
        with open_regular(source) as reading, open(target, "xb", opener=private) as writing:
            while chunk := reading.read(CHUNK_BYTES):
                check(done)
                digest.update(chunk)
                writing.write(chunk)
                done += len(chunk)
                ahead = done / bytes_per_second - (time.monotonic() - started)
                if ahead > 0:
                    time.sleep(ahead)
            writing.flush()
            os.fsync(writing.fileno())
    except OSError as error:
        raise StorageError(f"{source} cannot be copied to {target}: {error.strerror}") from error
    check(done)
    return digest.hexdigest()


def file_hash(path: Path, check: Callable[[int], None] = lambda done: None) -> str:
    """The SHA-256 of a file as it is on disk, not as the page cache has it."""
    digest = hashlib.sha256()
    done = 0
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(CHUNK_BYTES):
            check(done)
            digest.update(chunk)
            done += len(chunk)
    return digest.hexdigest()
