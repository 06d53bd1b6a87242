"""A partition's file as it was at one moment, read at leisure while the partition goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import duckdb
import msgspec
import pyarrow as pa

from querator.daemon.store.base import StorageError
from querator.daemon.store.duck import tables
from querator.daemon.store.duck.partition_file import TABLES, Cursor, Database, is_lack_of_memory


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


class SnapshotLost(StorageError):
    """DuckDB had too little memory to go on with a snapshot. It has more now: take another one."""


class Snapshot:
    """A transaction that only reads. Whoever has it closes it; until then the file keeps what was deleted since."""

    def __init__(self, database: Database, cursor: Any, name: str) -> None:
        self._database = database
        self.cursor = cursor
        self.name = name
        cursor.execute("BEGIN")
        # DuckDB takes its picture of a file when the file is first touched.
        self.applied: int = cursor.execute(f"SELECT max(applied) FROM {name}.meta").fetchall()[0][0]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reads belong inside: a lack of memory ends the transaction, so that no statement can be repeated in it."""
        had_bytes = self._database.memory_bytes
        try:
            yield
        except duckdb.Error as error:
            if is_lack_of_memory(error) and self._database.make_room(had_bytes):
                raise SnapshotLost("DuckDB needed more memory") from error
            raise

    def select(self, query: str, *parameters: object, wanted: Sequence[int] = ()) -> pa.Table:
        if wanted:
            self.cursor.register("wanted", pa.table({"seq": tables.keys(wanted)}))
        with self.reading():
            return self.cursor.sql(query.format(file=self.name), params=list(parameters)).to_arrow_table()

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.reading():
            rows: list[tuple[Any, ...]] = self.cursor.execute(query.format(file=self.name), parameters).fetchall()
        return rows

    def contents(self) -> Contents:
        with self.reading():
            return read_contents(self.cursor, self.name)

    def audit(self) -> Audit:
        """Reads everything. Raises StorageError when that cannot be done: DuckDB tells of damage in many ways."""
        try:
            return Audit(
                self.contents().rows,
                self._number("SELECT coalesce(sum(epoch_us(created_at)::HUGEINT), 0) FROM {file}.items"),
                self._number("SELECT count(*) - count(DISTINCT seq) FROM {file}.items"),
                self._number("SELECT count(*) FROM {file}.leases ANTI JOIN {file}.items USING (seq)"),
            )
        except (duckdb.Error, ValueError) as error:
            raise StorageError(f"cannot be read: {str(error).splitlines()[0]}") from error

    def _number(self, query: str) -> int:
        return int(self.rows(query)[0][0])

    def close(self) -> None:
        try:
            self.cursor.execute("ROLLBACK")
        finally:
            self.cursor.close()
