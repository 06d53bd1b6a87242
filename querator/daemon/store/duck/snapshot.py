"""A partition file as it was at one moment, for reads that take long while the partition stays in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import msgspec

from querator.daemon.store.base import StorageError
from querator.daemon.store.duck import soundness, tables
from querator.daemon.store.duck.database import Cursor, is_lack_of_memory, reason_of

if TYPE_CHECKING:
    import pyarrow as pa

    from querator.daemon.store.duck.instance import Instance


class FileContents(msgspec.Struct):
    """The number of rows of each table of a partition file, and a hash over them that does not depend on their order.

    Hashes serve to compare two files with each other. Another version of DuckDB may compute other hashes.
    """

    uuid: str
    queue: str
    schema_version: int
    applied: int
    last_seq: int
    rows: dict[str, int]
    hashes: dict[str, int]

    def same_rows(self, other: FileContents) -> bool:
        return self.rows == other.rows and self.hashes == other.hashes


def read_contents(cursor: Cursor, name: str) -> FileContents:
    """Reads every row of an attached file."""
    found = cursor.execute(f"SELECT uuid, queue, schema_version, applied, last_seq FROM {name}.meta").fetchall()
    if len(found) != 1:
        raise ValueError(f"its meta table has {len(found)} rows")
    rows, hashes = {}, {}
    for table in tables.TABLES:
        counted = cursor.execute(f"SELECT count(*), coalesce(bit_xor(hash(t)), 0) FROM {name}.{table} AS t")
        rows[table], hashes[table] = counted.fetchall()[0]
    uuid, queue, schema_version, applied, last_seq = found[0]
    return FileContents(uuid, queue, schema_version, applied, last_seq, rows, hashes)


class Audit(NamedTuple):
    """The result of reading a whole file."""

    rows: dict[str, int]
    """Per table."""
    created_sum: int
    orphaned_leases: int
    """How many leases have no item."""
    faults: list[str]
    """Values that a daemon never writes. A restore would refuse the file."""


class SnapshotLost(StorageError):
    """DuckDB ran out of memory, which ended the snapshot. It has more memory now: take another snapshot."""


class FileSnapshot:
    """A transaction that only reads. The caller closes it. Until then the file keeps deleted rows."""

    def __init__(self, instance: Instance, name: str, closed: Callable[[], None] = lambda: None) -> None:
        self._closed = closed
        self._instance = instance
        self.cursor = cursor = instance.new_cursor()
        self.name = name
        cursor.execute("BEGIN")
        # A transaction of DuckDB sees a file as it is at the first statement that reads it.
        self.applied: int = cursor.execute(f"SELECT max(applied) FROM {name}.meta").fetchall()[0][0]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Every read runs inside of this. A lack of memory ends the transaction, so a statement cannot be repeated."""
        had_bytes, forgotten = self._instance.memory_bytes, self._instance.forgotten
        try:
            yield
        except duckdb.Error as error:
            if is_lack_of_memory(error) and self._instance.make_room(had_bytes, forgotten):
                raise SnapshotLost("DuckDB needed more memory") from error
            raise

    def select(self, query: str, *parameters: object, wanted: Sequence[int] = ()) -> pa.Table:
        if wanted:
            import pyarrow as pa

            from querator.daemon.store.duck import arrow_rows

            self.cursor.register("wanted", pa.table({"seq": arrow_rows.keys(wanted)}))
        with self.reading():
            return self.cursor.sql(query.format(file=self.name), params=list(parameters)).to_arrow_table()

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.reading():
            rows: list[tuple[Any, ...]] = self.cursor.execute(query.format(file=self.name), parameters).fetchall()
        return rows

    def contents(self) -> FileContents:
        with self.reading():
            return read_contents(self.cursor, self.name)

    def audit(self) -> Audit:
        """Reads everything. Raises StorageError if the file is damaged, which DuckDB reports in many ways."""
        try:
            return Audit(
                self.contents().rows,
                self._number("SELECT coalesce(sum(epoch_us(created_at)::HUGEINT), 0) FROM {file}.items"),
                self._number("SELECT count(*) FROM {file}.leases ANTI JOIN {file}.items USING (seq)"),
                self.faults(),
            )
        except (duckdb.Error, ValueError) as error:
            raise StorageError(f"cannot be read: {reason_of(error)}") from error

    def faults(self) -> list[str]:
        """The faults of its rows: values that a daemon never writes. Raises StorageError if the file is damaged."""
        try:
            with self.reading():
                return soundness.faults(self.cursor, self.name)
        except duckdb.Error as error:
            raise StorageError(f"cannot be read: {reason_of(error)}") from error

    def _number(self, query: str) -> int:
        return int(self.rows(query)[0][0])

    def close(self) -> None:
        try:
            self.cursor.execute("ROLLBACK")
        finally:
            self.cursor.close()
            self._closed()
