"""The SQL of a partition file that is attached: how a net effect gets into it, and how things are read from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import duckdb
import pyarrow as pa

from querator import limits
from querator.daemon.store.base import Due, Found, Leased, Summary
from querator.daemon.store.delta import Delta
from querator.daemon.store.duck import tables
from querator.daemon.store.fingerprints import FINGERPRINT_SQL, Fingerprints, ascending
from querator.daemon.store.stretches import SEQ_MAX, Stretch, count_fitting, first_seqs, pieces, rows_of
from querator.items import NOBODY, Hold, Item

TABLES: Final = ("items", "leases", "scheduled", "lost", "requests")
MEASURED_TABLES: Final = ("items", "scheduled")
"""Those with payloads, which are read in stretches that fit in memory."""
_seq_of = attrgetter("seq")
T = TypeVar("T")


class Relation(Protocol):
    def to_arrow_table(self) -> pa.Table: ...


class Cursor(Protocol):
    """What is used of a DuckDB connection."""

    def execute(self, query: str, parameters: object = ...) -> Any: ...

    def sql(self, query: str, *, params: object = ...) -> Relation: ...

    def register(self, view_name: str, python_object: object) -> Any: ...

    def unregister(self, view_name: str) -> Any: ...


class Database(Protocol):
    """What is used of the DuckDB instance that a file is attached to."""

    def cursor(self) -> Cursor:
        """The calling thread's own."""

    @property
    def memory_bytes(self) -> int:
        """How much memory it may use."""

    def make_room(self, had_bytes: int) -> bool:
        """Sees to it that it may use more than `had_bytes`. False if that is not possible."""


def with_room(database: Database, work: Callable[[], T]) -> T:
    """Does `work`, which must change nothing when it fails, again with more memory for as long as it lacks memory."""
    while True:
        had_bytes = database.memory_bytes
        try:
            return work()
        except duckdb.Error as error:
            if not is_lack_of_memory(error) or not database.make_room(had_bytes):
                raise


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether DuckDB had too little memory.

    A statement raises that as OutOfMemoryException, but a commit, a checkpoint and an attach wrap it in an error of
    their own kind. What they wrap always ends with the advice to raise this setting. An error that asks for the file to
    be attached anew may quote an earlier lack of memory, and more memory does not help then.
    """
    if isinstance(error, duckdb.OutOfMemoryException):
        return True
    return isinstance(error, duckdb.Error) and "SET memory_limit=" in str(error) and "reattach" not in str(error)


class Meta(NamedTuple):
    uuid: str
    queue: str
    schema_version: int
    applied: int
    last_seq: int


class PartitionFile:
    """An attached file. `name` is what it is attached as."""

    def __init__(self, name: str, database: Database) -> None:
        self.name = name
        self.database = database
        self._cursor = database.cursor

    def select(self, query: str, *parameters: object, wanted: Sequence[int] = ()) -> pa.Table:
        """For many rows: they come as columns. A query can read the table `wanted`, whose column is seq."""
        text, values, cursor = query.format(file=self.name), list(parameters), self._cursor()
        if wanted:
            cursor.register("wanted", pa.table({"seq": tables.keys(wanted)}))
        try:
            return with_room(self.database, lambda: cursor.sql(text, params=values).to_arrow_table())
        finally:
            if wanted:
                cursor.unregister("wanted")

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """For few rows: costs less per statement, and more per row."""
        text = query.format(file=self.name)
        return with_room(self.database, lambda: self._cursor().execute(text, parameters).fetchall())

    # Writing.

    def create_tables(self) -> None:
        with self._transaction() as cursor:
            self._create_tables(cursor)

    def claim(self, uuid: str, queue: str) -> None:
        """Says whose file it is; until then it is nobody's."""
        self._cursor().execute(
            f"INSERT INTO {self.name}.meta VALUES (?, ?, ?, 0, 0)", [uuid, queue, tables.SCHEMA_VERSION]
        )

    def _create_tables(self, cursor: Cursor) -> None:
        for statement in tables.SCHEMA:
            cursor.execute(statement.format(file=self.name))

    def copy_rows(self, other: str, table: str, stretch: Stretch | None = None) -> None:
        """Adds rows of another attached file: those of a stretch, or all."""
        where = f" WHERE {stretch.condition}" if stretch else ""
        query = f"INSERT INTO {self.name}.{table} SELECT * FROM {other}.{table}{where}"
        with_room(self.database, lambda: self._cursor().execute(query))

    def add_rows(self, table: str, rows: pa.Table) -> None:
        self._insert(self._cursor(), table, rows)

    def meta(self) -> Meta:
        rows = self.rows("SELECT uuid, queue, schema_version, applied, last_seq FROM {file}.meta")
        if len(rows) != 1:
            raise ValueError(f"its meta table has {len(rows)} rows")
        return Meta(*rows[0])

    def apply(self, delta: Delta) -> None:
        """One transaction, which also notes how far the journal is applied."""
        with self._transaction() as cursor:
            self._clear(cursor, delta)
            for table in tables.tables_of(delta.rows, delta.removed):
                self._insert(cursor, "items", table)
            self._delete(cursor, delta.removed_from_file(), "seq", "items", "leases")
            self._delete(cursor, delta.unscheduled, "seq", "scheduled")
            for chunk in tables.chunks(delta.added.values()):
                self._insert(cursor, "items", pa.table(tables.item_rows(chunk)))
            for chunk in tables.chunks(delta.scheduled.values()):
                self._insert(cursor, "scheduled", pa.table(tables.scheduled_rows(chunk)))
            self._delete(cursor, (seq for seq in delta.leases if seq not in delta.added), "seq", "leases")
            for leases in tables.batches_of(delta.leases.items(), limits.APPLY_ROWS_PER_INSERT_MAX):
                self._insert(cursor, "leases", pa.table(tables.lease_rows(leases)))
            self._delete(cursor, delta.lost, "seq", "lost")
            for lost in tables.batches_of(delta.lost.items(), limits.APPLY_ROWS_PER_INSERT_MAX):
                self._insert(cursor, "lost", pa.table(tables.lost_rows(lost)))
            self._delete(cursor, delta.requests, "request_id", "requests")
            for requests in tables.batches_of(delta.requests.items(), limits.APPLY_ROWS_PER_INSERT_MAX):
                self._insert(cursor, "requests", pa.table(tables.request_rows(requests)))
            cursor.execute(
                f"INSERT INTO {self.name}.meta SELECT uuid, queue, schema_version, ?, ? FROM {self.name}.meta",
                [delta.record, delta.last_seq],
            )
            cursor.execute(f"DELETE FROM {self.name}.meta WHERE applied <> ?", [delta.record])

    def _clear(self, cursor: Cursor, delta: Delta) -> None:
        if delta.clear_ready:
            cursor.register("held", pa.table({"seq": pa.array(list(delta.leases), pa.int64())}))
            cursor.execute(
                f"DELETE FROM {self.name}.items"
                f" WHERE seq NOT IN (SELECT seq FROM {self.name}.leases) AND seq NOT IN (SELECT seq FROM held)"
            )
            cursor.unregister("held")
        if delta.clear_leased:
            cursor.execute(f"DELETE FROM {self.name}.items WHERE seq IN (SELECT seq FROM {self.name}.leases)")
            cursor.execute(f"DELETE FROM {self.name}.leases")
        if delta.clear_scheduled:
            cursor.execute(f"DELETE FROM {self.name}.scheduled")

    def _delete(self, cursor: Cursor, keys: Iterable[int] | Iterable[str], key: str, *names: str) -> None:
        batches: Iterator[Any] = tables.batches_of(keys, limits.APPLY_KEYS_PER_DELETE_MAX)
        for batch in batches:
            cursor.register("gone", pa.table({key: tables.keys(batch)}))
            for name in names:
                cursor.execute(f"DELETE FROM {self.name}.{name} WHERE {key} IN (SELECT {key} FROM gone)")
            cursor.unregister("gone")

    def _insert(self, cursor: Cursor, name: str, rows: pa.Table) -> None:
        cursor.register("fresh", rows)
        try:
            cursor.execute(f"INSERT INTO {self.name}.{name} BY NAME SELECT * FROM fresh")
        finally:
            cursor.unregister("fresh")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        """All or nothing. The thread's cursor serves other files too, so that none may be left open."""
        cursor = self._cursor()
        cursor.execute("BEGIN")
        try:
            yield cursor
            cursor.execute("COMMIT")
        except BaseException:
            # A failed commit has rolled back by itself; what matters is why it failed.
            with contextlib.suppress(Exception):
                cursor.execute("ROLLBACK")
            raise

    def checkpoint(self) -> None:
        self._cursor().execute(f"CHECKPOINT {self.name}")

    def free_share(self) -> float:
        """How much of the file is blocks that nothing uses, and items that were deleted among others that were not."""
        execute = self._cursor().execute
        blocks = "SELECT total_blocks, used_blocks FROM pragma_database_size() WHERE database_name = ?"
        rows = "SELECT estimated_size FROM duckdb_tables() WHERE database_name = ? AND table_name = 'items'"
        ((total_blocks, used_blocks),) = execute(blocks, [self.name]).fetchall()
        ((stored,),) = execute(rows, [self.name]).fetchall()
        ((alive,),) = execute(f"SELECT count(*) FROM {self.name}.items").fetchall()
        return 1.0 - (used_blocks / total_blocks if total_blocks else 1.0) * (alive / stored if stored else 1.0)

    def forget(self, now_us: int) -> None:
        cursor = self._cursor()
        cursor.execute(f"DELETE FROM {self.name}.requests WHERE until < make_timestamp(?)", [now_us])
        past = self.rows(
            "SELECT CASE birth WHEN 0 THEN seq ELSE birth END FROM {file}.lost WHERE until < make_timestamp(?)", now_us
        )
        if not past:
            return
        births = list({birth for (birth,) in past})
        # From few to many: asking of each item whether it is wanted would take a table of all of them.
        staying = self.rows(
            """
            SELECT birth FROM {file}.items WHERE birth IN (SELECT unnest($1::BIGINT[])) UNION
            SELECT seq FROM {file}.items WHERE birth = 0 AND seq IN (SELECT unnest($1::BIGINT[])) UNION
            SELECT birth FROM {file}.scheduled WHERE birth IN (SELECT unnest($1::BIGINT[])) UNION
            SELECT seq FROM {file}.scheduled WHERE birth = 0 AND seq IN (SELECT unnest($1::BIGINT[])) UNION
            SELECT CASE birth WHEN 0 THEN seq ELSE birth END FROM {file}.lost WHERE until >= make_timestamp($2)
            """,
            births,
            now_us,
        )
        gone = list(set(births) - {birth for (birth,) in staying})
        cursor.execute(
            f"DELETE FROM {self.name}.lost WHERE until < make_timestamp(?)"
            " AND CASE birth WHEN 0 THEN seq ELSE birth END IN (SELECT unnest(?::BIGINT[]))",
            [now_us, gone],
        )

    def drop_orphans(self) -> None:
        """Drops leases whose items somebody deleted by hand while the file was not ours."""
        ((leases,),) = self.rows("SELECT count(*) FROM {file}.leases")
        if leases and leases != self._leases():
            self._cursor().execute(
                f"DELETE FROM {self.name}.leases WHERE seq NOT IN (SELECT seq FROM {self.name}.items)"
            )

    def _leases(self) -> int:
        count: int = self.rows("SELECT count(*) FROM {file}.leases SEMI JOIN {file}.items USING (seq)")[0][0]
        return count

    # Reading.

    def summary(self) -> Summary:
        ((count, created_sum, last_item),) = self.rows(
            "SELECT count(*), coalesce(sum(epoch_us(created_at)::HUGEINT), 0), max(seq) FROM {file}.items"
        )
        ((scheduled, next_due, last_scheduled),) = self.rows(
            "SELECT count(*), epoch_us(min(enqueue_at)), max(seq) FROM {file}.scheduled"
        )
        leased = self._leases()
        return Summary(
            ready=count - leased,
            leased=leased,
            scheduled=scheduled,
            created_sum=created_sum,
            # Rows that somebody added by hand may have higher ones than we gave out.
            last_seq=max(self.meta().last_seq, last_item or 0, last_scheduled or 0),
            next_expiry=self.next_expiry(),
            next_due=next_due,
        )

    def ready(self, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item]:
        before = SEQ_MAX if before is None else before
        unleased = "{file}.items ANTI JOIN {file}.leases USING (seq)"
        seqs = first_seqs(self, f"{unleased} WHERE seq > {after:d} AND seq < {before:d}", items_max)
        return self._first_items("items", seqs, bytes_max)

    def _first_items(self, table: str, seqs: Sequence[int], bytes_max: int) -> list[Item]:
        """The items with these sequences, from the first on, that unpack to at most so much; ascending."""
        return self._items(table, seqs[: count_fitting(self, table, seqs, bytes_max)])

    def _all_items(self, table: str, seqs: Sequence[int]) -> Iterator[Item]:
        """The items with these sequences, however large they are together."""
        for piece in pieces(self, table, seqs, limits.READY_WINDOW_BYTES_MAX):
            yield from self._items(table, piece)

    def _items(self, table: str, seqs: Sequence[int], columns: str = tables.ITEM) -> list[Item]:
        """The items with these sequences, ascending. The caller knows that they fit in memory."""
        if not seqs:
            return []
        is_due = table == "scheduled"
        rows = rows_of(self, table, columns + (", epoch_us(items.enqueue_at)" if is_due else ""), seqs)
        items = tables.items_of(rows, tables.column(rows, tables.ITEM_COLUMNS)) if is_due else tables.items_of(rows)
        return sorted(items, key=_seq_of)

    def _leases_among(self, condition: str, wanted: Sequence[int] = ()) -> dict[int, tuple[int, int, Hold]]:
        """Attempts, deadlines and holds of leases, by sequence."""
        rows = self.select(
            f"SELECT seq, attempts, epoch_us(deadline), {tables.HOLD} FROM {{file}}.leases WHERE {condition}",
            wanted=wanted,
        )
        terms = zip(tables.column(rows, 1), tables.column(rows, 2), tables.holds_in(rows, 3), strict=True)
        return dict(zip(tables.column(rows), terms, strict=True))

    def leased(self) -> list[Leased]:
        leases = self._leases_among("seq IN (SELECT seq FROM {file}.items)")
        found = [Leased(item, *leases[item.seq]) for item in self._all_items("items", sorted(leases))]
        return sorted(found, key=lambda leased: (leased.deadline, leased.item.seq))

    def scheduled(self, items_max: int) -> Due:
        query = f"SELECT seq FROM {{file}}.scheduled ORDER BY enqueue_at, seq LIMIT {items_max + 1:d}"
        seqs = tables.column(self.select(query))
        items = self._first_items("scheduled", seqs[:items_max], limits.SCHEDULED_WINDOW_BYTES_MAX)
        return Due(sorted(items, key=lambda item: (item.enqueue_at, item.seq)), are_all=len(items) == len(seqs))

    def expired(self, now_us: int, items_max: int) -> list[Item]:
        rows = self.select(
            "SELECT seq FROM {file}.items WHERE expire_deadline < make_timestamp(?)"
            f" AND seq NOT IN (SELECT seq FROM {{file}}.leases) ORDER BY seq LIMIT {items_max:d}",
            now_us,
        )
        return self._first_items("items", tables.column(rows), limits.SLICE_BYTES_MAX)

    def next_expiry(self) -> int | None:
        earliest: int | None = self.rows(
            "SELECT epoch_us(min(expire_deadline)) FROM {file}.items WHERE seq NOT IN (SELECT seq FROM {file}.leases)"
        )[0][0]
        return earliest

    def find(self, seqs: Sequence[int], *, payloads: bool = True) -> dict[int, Found]:
        found: dict[int, Found] = {}
        rest = sorted({seq for seq in seqs if seq <= SEQ_MAX})
        leases = self._leases_among("seq IN (SELECT seq FROM wanted)", rest) if rest else {}
        for table in MEASURED_TABLES:
            if not rest:
                break
            present = self.select(
                f"SELECT DISTINCT seq FROM {{file}}.{table} WHERE seq IN (SELECT seq FROM wanted)", wanted=rest
            )
            here = sorted(tables.column(present))
            read = self._all_items(table, here) if payloads else self._items(table, here, tables.ITEM_WITHOUT_CONTENT)
            for item in read:
                if table == "scheduled":
                    found[item.seq] = Found("scheduled", item, item.attempts, 0)
                elif item.seq in leases:
                    found[item.seq] = Found("leased", item, *leases[item.seq])
                else:
                    found[item.seq] = Found("ready", item, item.attempts, 0)
            rest = [seq for seq in rest if seq not in found]
        if rest:
            lost = self.select("SELECT seq FROM {file}.lost WHERE seq IN (SELECT seq FROM wanted)", wanted=rest)
            found.update((seq, Found("lost", None, 0, 0)) for seq in tables.column(lost))
        return found

    def page(self, scheduled: bool, from_seq: int, items_max: int) -> list[Leased]:
        table = "scheduled" if scheduled else "items"
        seqs = first_seqs(self, f"{{file}}.{table} WHERE seq >= {from_seq:d}", items_max)
        items = self._first_items(table, seqs, limits.PAGE_BYTES_MAX)
        if scheduled or not items:
            return [Leased(item, item.attempts, 0) for item in items]
        leases = self._leases_among(f"seq >= {from_seq:d} AND seq <= {items[-1].seq:d}")
        return [Leased(item, *leases.get(item.seq, (item.attempts, 0, NOBODY))) for item in items]

    def sources(self, source_ids: Sequence[str]) -> set[str]:
        rows = self.rows(
            "SELECT source_id FROM {file}.items WHERE source_id IN (SELECT unnest($1::VARCHAR[])) UNION"
            " SELECT source_id FROM {file}.scheduled WHERE source_id IN (SELECT unnest($1::VARCHAR[]))",
            source_ids,
        )
        return {source_id for (source_id,) in rows}

    def request_ids(self, now_us: int, newest_max: int, always: tuple[str, ...]) -> list[tuple[str, int]]:
        is_always = " OR ".join(f"starts_with(request_id, '{prefix}')" for prefix in always) or "false"
        rows = self.select(
            "SELECT request_id, epoch_us(until) AS until_us FROM {file}.requests"
            f" WHERE until >= make_timestamp(?) AND ({is_always}"
            f" OR rowid IN (SELECT rowid FROM {{file}}.requests ORDER BY until DESC LIMIT {newest_max:d}))"
            " ORDER BY until_us",
            now_us,
        )
        return list(zip(tables.column(rows), tables.column(rows, 1), strict=True))

    def request_fingerprints(self, now_us: int) -> Fingerprints:
        values = self.select(
            f"SELECT {FINGERPRINT_SQL} FROM {{file}}.requests WHERE until >= make_timestamp(?) ORDER BY 1", now_us
        )
        ((until,),) = self.rows("SELECT coalesce(epoch_us(max(until)), 0) FROM {file}.requests")
        return Fingerprints(ascending(values.column(0)), until)

    def remembered(self, request_ids: Sequence[str], now_us: int) -> set[str]:
        rows = self.rows(
            "SELECT request_id FROM {file}.requests"
            " WHERE request_id IN (SELECT unnest(?::VARCHAR[])) AND until >= make_timestamp(?)",
            list(request_ids),
            now_us,
        )
        return {request_id for (request_id,) in rows}
