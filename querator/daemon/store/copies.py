"""Copies of partition files that are closed, and what is in them. Nothing here touches a file that is in use.

Everything blocks, and runs in a worker thread.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from querator.daemon.store.base import StorageError
from querator.daemon.store.duckdb import Instance
from querator.daemon.store.partition_file import Cursor
from querator.daemon.store.tables import SCHEMA_VERSION

CHUNK_BYTES: Final = 4 << 20
TABLES: Final = ("items", "leases", "scheduled", "lost", "requests")


class Contents(msgspec.Struct):
    """What a partition file holds: rows per table, and a hash over all of them, whatever their order.

    The hash is for comparing two files with each other; another version of DuckDB may give another one.
    """

    uuid: str
    queue: str
    schema_version: int
    applied: int
    last_seq: int
    rows: dict[str, int]
    hashes: dict[str, int]

    def same_rows(self, other: Contents) -> bool:
        return self.rows == other.rows and self.hashes == other.hashes


def read_contents(cursor: Cursor, name: str) -> Contents:
    """Reads every row of an attached file."""
    found = cursor.execute(f"SELECT uuid, queue, schema_version, applied, last_seq FROM {name}.meta").fetchall()
    if len(found) != 1:
        raise ValueError(f"its meta table has {len(found)} rows")
    rows, hashes = {}, {}
    for table in TABLES:
        counted = cursor.execute(f"SELECT count(*), coalesce(bit_xor(hash(t)), 0) FROM {name}.{table} AS t")
        rows[table], hashes[table] = counted.fetchall()[0]
    uuid, queue, schema_version, applied, last_seq = found[0]
    return Contents(uuid, queue, schema_version, applied, last_seq, rows, hashes)


def contents(path: Path) -> Contents:
    """Reads a whole file that nobody has open. Raises StorageError if it is no partition file, or damaged."""
    with inspected(path) as cursor:
        return read_contents(cursor, "file")


@contextmanager
def inspected(path: Path, writable: bool = False) -> Iterator[Cursor]:
    """A file that nobody has open, attached as `file` to an instance of its own."""
    if not path.is_file():
        raise StorageError(f"{path} is missing")
    instance = Instance(path.parent)
    try:
        cursor = instance.cursor()
        place = str(path).replace("'", "''")
        try:
            cursor.execute(f"ATTACH '{place}' AS file" + ("" if writable else " (READ_ONLY)"))
            version = cursor.execute("SELECT schema_version FROM file.meta").fetchall()
            if version != [(SCHEMA_VERSION,)]:
                raise ValueError(f"its schema version is not {SCHEMA_VERSION}")
            yield cursor
            cursor.execute("DETACH file")
        except StorageError:
            raise
        except Exception as error:  # DuckDB tells of damage in many ways
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise StorageError(f"{path} cannot be read: {reason}") from error
    finally:
        instance.close()


def copy_file(source: Path, target: Path, bytes_per_second: int, check: Callable[[int], None]) -> str:
    """Copies a closed file, durably; returns its SHA-256. `check` is told the bytes done so far, and may raise."""
    digest = hashlib.sha256()
    done = 0
    started = time.monotonic()
    with open(source, "rb") as reading, open(target, "xb", opener=_private) as writing:
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
    check(done)
    return digest.hexdigest()


def file_hash(path: Path, check: Callable[[int], None] = lambda done: None) -> str:
    """SHA-256 of what is on disk, not of what is remembered of having written it."""
    digest = hashlib.sha256()
    done = 0
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(CHUNK_BYTES):
            check(done)
            digest.update(chunk)
            done += len(chunk)
    return digest.hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
