"""A partition's file as it was at one moment, read at leisure while the partition goes on."""

from __future__ import annotations

from typing import Any, NamedTuple

import duckdb
import msgspec

from querator.daemon.store.base import StorageError
from querator.daemon.store.partition_file import TABLES, Cursor


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


class Audit(NamedTuple):
    """What a check of a file by itself finds."""

    rows: dict[str, int]
    """Per table."""
    created_sum: int
    twice: int
    """Items that have the sequence of another one."""
    astray: int
    """Leases without an item."""


class Snapshot:
    """A transaction that only reads. Whoever has it closes it; until then the file keeps what was deleted since."""

    def __init__(self, cursor: Any, name: str) -> None:
        self.cursor = cursor
        self.name = name
        cursor.execute("BEGIN")
        # DuckDB takes its picture of a file when the file is first touched.
        self.applied: int = cursor.execute(f"SELECT max(applied) FROM {name}.meta").fetchall()[0][0]

    def contents(self) -> Contents:
        return read_contents(self.cursor, self.name)

    def audit(self) -> Audit:
        """Reads everything. Raises StorageError when that cannot be done: DuckDB tells of damage in many ways."""
        items, leases = f"{self.name}.items", f"{self.name}.leases"
        try:
            return Audit(
                self.contents().rows,
                self._number(f"SELECT coalesce(sum(epoch_us(created_at)::HUGEINT), 0) FROM {items}"),
                self._number(f"SELECT count(*) - count(DISTINCT seq) FROM {items}"),
                self._number(f"SELECT count(*) FROM {leases} ANTI JOIN {items} USING (seq)"),
            )
        except (duckdb.Error, ValueError) as error:
            raise StorageError(f"cannot be read: {str(error).splitlines()[0]}") from error

    def _number(self, query: str) -> int:
        return int(self.cursor.execute(query).fetchall()[0][0])

    def close(self) -> None:
        try:
            self.cursor.execute("ROLLBACK")
        finally:
            self.cursor.close()
