"""The SQL of a partition file that is attached: how a net effect gets into it, and how things are read from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from querator import limits
from querator.daemon.store import tables
from querator.daemon.store.base import Found, Leased, Summary
from querator.daemon.store.delta import Delta
from querator.daemon.store.fingerprints import FINGERPRINT_SQL, Fingerprints, ascending
from querator.items import Item

TABLES: Final = ("items", "leases", "scheduled", "lost", "requests")
_SEQ_MAX: Final = (1 << 63) - 1
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

    def make_room(self, error: Exception) -> bool: ...


def with_room(database: Database, work: Callable[[], T]) -> T:
    """Does something that changes nothing if it fails, again with more memory if that is what it takes."""
    while True:
        try:
            return work()
        except Exception as error:
            if not database.make_room(error):
                raise


def is_lack_of_memory(error: Exception) -> bool:
    """Each statement wraps this in an error of its own. A file that has to be attached anew names what it was once."""
    text = str(error)
    return ("failed to pin block" in text or "failed to allocate" in text) and "reattach" not in text


class Meta(NamedTuple):
    uuid: str
    queue: str
    schema_version: int
    applied: int
    last_seq: int


class First(NamedTuple):
    """The first rows that were found: the highest sequence, how many, and how large their payloads are."""

    last: int
    rows: int
    size: int


class PartitionFile:
    """An attached file. `name` is what it is attached as."""

    def __init__(self, name: str, database: Database) -> None:
        self.name = name
        self.database = database
        self._cursor = database.cursor

    def select(self, query: str, *parameters: object) -> pa.Table:
        """For many rows: they come as columns."""
        text, values = query.format(file=self.name), list(parameters)
        return with_room(self.database, lambda: self._cursor().sql(text, params=values).to_arrow_table())

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

    def copy_from(self, other: str) -> None:
        """Everything of another attached file. COPY FROM DATABASE would forget how columns are compressed."""
        with self._transaction() as cursor:
            self._create_tables(cursor)
            for table in ("meta", *TABLES):
                cursor.execute(f"INSERT INTO {self.name}.{table} SELECT * FROM {other}.{table}")

    def _create_tables(self, cursor: Cursor) -> None:
        for statement in tables.SCHEMA:
            cursor.execute(statement.format(file=self.name))

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
        cursor.execute(f"INSERT INTO {self.name}.{name} BY NAME SELECT * FROM fresh")
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
        before = _SEQ_MAX if before is None else before
        found = self._first_unleased(after, before, items_max)
        while found.size > bytes_max and found.rows > 1:
            fewer = min(found.rows - 1, found.rows * bytes_max // found.size)
            found = self._first_unleased(after, before, max(1, fewer))
        if not found.rows:
            return []
        leases = self.rows(f"SELECT seq FROM {{file}}.leases WHERE seq > {after:d} AND seq <= {found.last:d}")
        held = {seq for (seq,) in leases}
        rows = self._range(after, found.last, found.rows + len(held) + 1)
        if rows.num_rows > found.rows + len(held):
            rows = self._range(after, self._last_in_order(after, before, found.rows), found.rows + len(held))
        items = sorted(tables.items_of(rows), key=_seq_of)
        return [item for item in items if item.seq not in held] if held else items

    def _first_unleased(self, after: int, before: int, rows_max: int) -> First:
        # Without an order, DuckDB stops at the first rows it finds, and does not look at the millions behind them. They
        # are the lowest ones, because sequences rise as rows are added. Where somebody has added rows by hand they may
        # not be: then there turn out to be more rows up to `last`, and we let DuckDB put them in order for once.
        ((last, rows, size),) = self.rows(
            "SELECT coalesce(max(seq), 0), count(*), coalesce(sum(octet_length(payload)), 0)"
            " FROM (SELECT seq, payload FROM {file}.items"
            f" ANTI JOIN {{file}}.leases USING (seq) WHERE seq > {after:d} AND seq < {before:d} LIMIT {rows_max:d})"
        )
        return First(last, rows, size)

    def _last_in_order(self, after: int, before: int, rows_max: int) -> int:
        last: int = self.rows(
            "SELECT max(seq) FROM (SELECT seq FROM {file}.items ANTI JOIN {file}.leases USING (seq)"
            f" WHERE seq > {after:d} AND seq < {before:d} ORDER BY seq LIMIT {rows_max:d})"
        )[0][0]
        return last

    def _range(self, after: int, last: int, rows_max: int) -> pa.Table:
        return self.select(
            f"SELECT {tables.ITEM} FROM {{file}}.items WHERE seq > {after:d} AND seq <= {last:d} LIMIT {rows_max:d}"
        )

    def leased(self) -> list[Leased]:
        rows = self.select(
            f"SELECT {tables.ITEM}, leases.attempts, epoch_us(leases.deadline), {tables.HOLD}"
            " FROM {file}.leases JOIN {file}.items USING (seq) ORDER BY leases.deadline, leases.seq"
        )
        return _leased(rows)

    def scheduled(self, items_max: int) -> list[Item]:
        rows = self.select(
            f"SELECT {tables.ITEM}, epoch_us(items.enqueue_at) FROM {{file}}.scheduled AS items"
            f" ORDER BY items.enqueue_at, items.seq LIMIT {items_max:d}"
        )
        return list(tables.items_of(rows, tables.column(rows, tables.ITEM_COLUMNS)))

    def expired(self, now_us: int, items_max: int) -> list[Item]:
        rows = self.select(
            f"SELECT {tables.ITEM} FROM {{file}}.items WHERE items.expire_deadline < make_timestamp(?)"
            f" AND items.seq NOT IN (SELECT seq FROM {{file}}.leases) ORDER BY items.seq LIMIT {items_max:d}",
            now_us,
        )
        return list(tables.items_of(rows))

    def next_expiry(self) -> int | None:
        earliest: int | None = self.rows(
            "SELECT epoch_us(min(expire_deadline)) FROM {file}.items WHERE seq NOT IN (SELECT seq FROM {file}.leases)"
        )[0][0]
        return earliest

    def find(self, seqs: Sequence[int]) -> dict[int, Found]:
        found: dict[int, Found] = {}
        rows = self.select(
            f"SELECT {tables.ITEM}, coalesce(leases.attempts, items.attempts), coalesce(epoch_us(leases.deadline), 0),"
            f" {tables.HOLD}, leases.seq IS NOT NULL FROM {{file}}.items LEFT JOIN {{file}}.leases"
            " ON leases.seq = items.seq WHERE items.seq IN (SELECT unnest(?::BIGINT[]))",
            seqs,
        )
        for one, is_leased in zip(
            _leased(rows), tables.column(rows, tables.ITEM_COLUMNS + 2 + tables.HOLD_COLUMNS), strict=True
        ):
            found[one.item.seq] = Found("leased" if is_leased else "ready", *one)
        if seqs := [seq for seq in seqs if seq not in found]:
            rows = self.select(
                f"SELECT {tables.ITEM}, epoch_us(items.enqueue_at) FROM {{file}}.scheduled AS items"
                " WHERE items.seq IN (SELECT unnest(?::BIGINT[]))",
                seqs,
            )
            for scheduled in tables.items_of(rows, tables.column(rows, tables.ITEM_COLUMNS)):
                found[scheduled.seq] = Found("scheduled", scheduled, scheduled.attempts, 0)
        if seqs := [seq for seq in seqs if seq not in found]:
            lost = self.rows("SELECT seq FROM {file}.lost WHERE seq IN (SELECT unnest(?::BIGINT[]))", seqs)
            found.update((seq, Found("lost", None, 0, 0)) for (seq,) in lost)
        return found

    def page(self, scheduled: bool, from_seq: int, items_max: int) -> list[Leased]:
        if scheduled:
            rows = self.select(
                f"SELECT {tables.ITEM}, epoch_us(items.enqueue_at) FROM {{file}}.scheduled AS items"
                f" WHERE items.seq >= {from_seq:d} ORDER BY items.seq LIMIT {items_max:d}"
            )
            return [
                Leased(item, item.attempts, 0)
                for item in tables.items_of(rows, tables.column(rows, tables.ITEM_COLUMNS))
            ]
        ((last,),) = self.rows(
            f"SELECT max(seq) FROM (SELECT seq FROM {{file}}.items WHERE seq >= {from_seq:d}"
            f" ORDER BY seq LIMIT {items_max:d})"
        )
        if last is None:
            return []
        rows = self.select(
            f"SELECT {tables.ITEM}, coalesce(leases.attempts, items.attempts), coalesce(epoch_us(leases.deadline), 0),"
            f" {tables.HOLD}"
            " FROM {file}.items LEFT JOIN {file}.leases ON leases.seq = items.seq"
            f" WHERE items.seq >= {from_seq:d} AND items.seq <= {last:d} ORDER BY items.seq"
        )
        return _leased(rows)

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


def _leased(rows: pa.Table) -> list[Leased]:
    """From an item, its attempts, the deadline of its lease and its hold."""
    width = tables.ITEM_COLUMNS
    terms = (tables.column(rows, width), tables.column(rows, width + 1), tables.holds_in(rows, width + 2))
    return list(map(Leased, tables.items_of(rows), *terms))
