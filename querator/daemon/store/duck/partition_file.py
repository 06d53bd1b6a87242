"""One attached partition file: how statements run in it, and what concerns the file as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from querator.daemon.store.duck import tables
from querator.daemon.store.duck.database import Cursor, with_room
from querator.daemon.store.stretches import Stretch, Vetted

if TYPE_CHECKING:
    import pyarrow as pa

    from querator.daemon.store.duck.instance import Instance


_ANY_ROW: Final = " UNION ALL ".join(f"SELECT 1 FROM {{file}}.{table}" for table in tables.TABLES) + " LIMIT 1"


class Meta(NamedTuple):
    """The row of the table `meta`."""

    uuid: str
    queue: str
    schema_version: int
    applied: int
    """The last journal record that the file contains."""
    last_seq: int


class PartitionFile:
    """An attached file. `name` is the name under which it is attached; queries write `{file}` for it."""

    def __init__(self, name: str, instance: Instance) -> None:
        self.name = name
        self.instance = instance
        self.cursor = instance.cursor
        self.vetted: Vetted | None = None

    def select(self, query: str, *parameters: object, wanted: Sequence[int] = ()) -> pa.Table:
        """The rows of a query as columns; for many rows. The query can read the table `wanted`, whose column is seq."""
        text, values, cursor = query.format(file=self.name), list(parameters), self.cursor()
        if wanted:
            import pyarrow as pa

            from querator.daemon.store.duck import arrow_rows

            cursor.register("wanted", pa.table({"seq": arrow_rows.keys(wanted)}))
        try:
            return with_room(self.instance, lambda: cursor.sql(text, params=values).to_arrow_table())
        finally:
            if wanted:
                cursor.unregister("wanted")

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a query as tuples; for few rows. Costs less per statement than `select`, and more per row."""
        text = query.format(file=self.name)
        return with_room(self.instance, lambda: self.cursor().execute(text, parameters).fetchall())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """All or nothing. The thread's cursor serves other files too, so no transaction may stay open."""
        cursor = self.cursor()
        with self.instance.changing():
            cursor.execute("BEGIN")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                # A failed commit has rolled back already. Its own error matters, not that of the rollback.
                with contextlib.suppress(Exception):
                    cursor.execute("ROLLBACK")
                raise

    def insert(self, cursor: Cursor, table: str, rows: pa.Table) -> None:
        cursor.register("fresh", rows)
        try:
            cursor.execute(f"INSERT INTO {self.name}.{table} BY NAME SELECT * FROM fresh")
        finally:
            cursor.unregister("fresh")

    def add_rows(self, table: str, rows: pa.Table) -> None:
        self.insert(self.cursor(), table, rows)

    def create_tables(self) -> None:
        with self.transaction() as cursor:
            for statement in tables.SCHEMA:
                cursor.execute(statement.format(file=self.name))

    def claim(self, uuid: str, queue: str) -> None:
        """Writes the row of `meta`, which makes the file that of a partition."""
        self.cursor().execute(
            f"INSERT INTO {self.name}.meta VALUES (?, ?, ?, 0, 0)", [uuid, queue, tables.SCHEMA_VERSION]
        )

    def copy_rows(self, other: str, table: str, stretch: Stretch | None = None) -> None:
        """Adds the rows of another attached file: those of a stretch, or all of them."""
        where = f" WHERE {stretch.condition}" if stretch else ""
        query = f"INSERT INTO {self.name}.{table} SELECT * FROM {other}.{table}{where}"
        with_room(self.instance, lambda: self.cursor().execute(query))

    def meta(self) -> Meta:
        rows = self.rows("SELECT uuid, queue, schema_version, applied, last_seq FROM {file}.meta")
        if len(rows) != 1:
            raise ValueError(f"its meta table has {len(rows)} rows")
        return Meta(*rows[0])

    def has_rows(self) -> bool:
        """Whether a table other than `meta` has a row. One statement, because thousands of files may be opened."""
        return bool(self.rows(_ANY_ROW))

    def block_bytes(self) -> int:
        ((size,),) = (
            self.cursor()
            .execute("SELECT block_size FROM pragma_database_size() WHERE database_name = ?", [self.name])
            .fetchall()
        )
        return int(size)

    def checkpoint(self) -> None:
        with self.instance.changing():
            self.cursor().execute(f"CHECKPOINT {self.name}")

    def free_share(self) -> float:
        """The share of the file that unused blocks and deleted items take up, between 0 and 1."""
        execute = self.cursor().execute
        blocks = "SELECT total_blocks, used_blocks FROM pragma_database_size() WHERE database_name = ?"
        rows = "SELECT estimated_size FROM duckdb_tables() WHERE database_name = ? AND table_name = 'items'"
        ((total_blocks, used_blocks),) = execute(blocks, [self.name]).fetchall()
        ((stored,),) = execute(rows, [self.name]).fetchall()
        ((alive,),) = execute(f"SELECT count(*) FROM {self.name}.items").fetchall()
        return 1.0 - (used_blocks / total_blocks if total_blocks else 1.0) * (alive / stored if stored else 1.0)
