"""The SQL of a partition file that is attached: how a net effect gets into it, and how things are read from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from querator.daemon.store import tables
from querator.daemon.store.base import Found, Leased, Summary
from querator.daemon.store.delta import Delta
from querator.items import Item

_SEQ_MAX: Final = (1 << 63) - 1


class Relation(Protocol):
    def to_arrow_table(self) -> pa.Table: ...


class Cursor(Protocol):
    """What is used of a DuckDB connection."""

    def execute(self, query: str, parameters: object = ...) -> Any: ...

    def sql(self, query: str, *, params: object = ...) -> Relation: ...

    def register(self, view_name: str, python_object: object) -> Any: ...

    def unregister(self, view_name: str) -> Any: ...


class Meta(NamedTuple):
    uuid: str
    queue: str
    schema_version: int
    applied: int
    last_seq: int


class PartitionFile:
    """An attached file. `cursor` gives the calling thread's own cursor, `name` is what the file is attached as."""

    def __init__(self, name: str, cursor: Callable[[], Cursor]) -> None:
        self.name = name
        self._cursor = cursor

    def _select(self, query: str, *parameters: object) -> pa.Table:
        return self._cursor().sql(query.format(file=self.name), params=list(parameters)).to_arrow_table()

    def _value(self, query: str, *parameters: object) -> Any:
        return tables.column(self._select(query, *parameters))[0]

    # Writing.

    def create(self, uuid: str, queue: str) -> None:
        cursor = self._cursor()
        cursor.execute("BEGIN")
        for statement in tables.SCHEMA:
            cursor.execute(statement.format(file=self.name))
        cursor.execute(
            f"INSERT INTO {self.name}.meta VALUES (?, ?, ?, 0, 0)",
            [uuid, queue, tables.SCHEMA_VERSION],
        )
        cursor.execute("COMMIT")

    def meta(self) -> Meta:
        rows = self._select("SELECT uuid, queue, schema_version, applied, last_seq FROM {file}.meta")
        if rows.num_rows != 1:
            raise ValueError(f"its meta table has {rows.num_rows} rows")
        return Meta(*(column[0].as_py() for column in rows.columns))

    def apply(self, delta: Delta) -> None:
        """One transaction, which also notes how far the journal is applied."""
        cursor = self._cursor()
        cursor.execute("BEGIN")
        try:
            self._clear(cursor, delta)
            if delta.removed:
                self._delete(cursor, tables.seq_column(delta.removed), "seq", "items", "leases")
            if delta.unscheduled:
                self._delete(cursor, tables.seq_column(delta.unscheduled), "seq", "scheduled")
            for chunk in tables.chunks(delta.added.values()):
                self._insert(cursor, "items", tables.item_rows(chunk))
            for chunk in tables.chunks(delta.scheduled.values()):
                self._insert(cursor, "scheduled", tables.scheduled_rows(chunk))
            if delta.leases:
                extended = [seq for seq in delta.leases if seq not in delta.added]
                self._delete(cursor, tables.seq_column(extended), "seq", "leases")
                self._insert(cursor, "leases", tables.lease_rows(delta.leases))
            if delta.lost:
                self._delete(cursor, tables.seq_column(delta.lost), "seq", "lost")
                self._insert(cursor, "lost", tables.lost_rows(delta.lost))
            if delta.requests:
                rows = tables.request_rows(delta.requests)
                self._delete(cursor, rows["request_id"], "request_id", "requests")
                self._insert(cursor, "requests", rows)
            cursor.execute(
                f"INSERT INTO {self.name}.meta SELECT uuid, queue, schema_version, ?, ? FROM {self.name}.meta",
                [delta.record, delta.last_seq],
            )
            cursor.execute(f"DELETE FROM {self.name}.meta WHERE applied <> ?", [delta.record])
            cursor.execute("COMMIT")
        except BaseException:
            self._roll_back(cursor)
            raise

    def _clear(self, cursor: Cursor, delta: Delta) -> None:
        if delta.clear_ready:
            cursor.register("held", pa.table({"seq": tables.seq_column(delta.leases)}))
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

    def _delete(self, cursor: Cursor, keys: pa.Array, key: str, *names: str) -> None:
        if len(keys):
            cursor.register("gone", pa.table({key: keys}))
            for name in names:
                cursor.execute(f"DELETE FROM {self.name}.{name} WHERE {key} IN (SELECT {key} FROM gone)")
            cursor.unregister("gone")

    def _insert(self, cursor: Cursor, name: str, rows: dict[str, pa.Array]) -> None:
        cursor.register("fresh", pa.table(rows))
        cursor.execute(f"INSERT INTO {self.name}.{name} BY NAME SELECT * FROM fresh")
        cursor.unregister("fresh")

    def _roll_back(self, cursor: Cursor) -> None:
        # A failed commit has rolled back by itself; what matters is why it failed, and that is on its way already.
        with contextlib.suppress(Exception):
            cursor.execute("ROLLBACK")

    def checkpoint(self) -> None:
        self._cursor().execute(f"CHECKPOINT {self.name}")

    def forget(self, now_us: int) -> None:
        self._cursor().execute(f"DELETE FROM {self.name}.requests WHERE until < make_timestamp(?)", [now_us])
        self._cursor().execute(
            f"""
            DELETE FROM {self.name}.lost
            WHERE until < make_timestamp(?)
                AND CASE birth WHEN 0 THEN seq ELSE birth END NOT IN (
                    SELECT CASE birth WHEN 0 THEN seq ELSE birth END FROM {self.name}.items
                    UNION ALL
                    SELECT CASE birth WHEN 0 THEN seq ELSE birth END FROM {self.name}.scheduled
                )
            """,
            [now_us],
        )

    def drop_orphans(self) -> None:
        """Drops leases whose items somebody deleted by hand while the file was not ours."""
        cursor = self._cursor()
        leases = self._value("SELECT count(*) FROM {file}.leases")
        if leases != self._value("SELECT count(*) FROM {file}.leases SEMI JOIN {file}.items USING (seq)"):
            cursor.execute(f"DELETE FROM {self.name}.leases WHERE seq NOT IN (SELECT seq FROM {self.name}.items)")

    # Reading.

    def summary(self) -> Summary:
        items = self._select(
            "SELECT count(*), coalesce(sum(epoch_us(created_at)::HUGEINT), 0)::VARCHAR, max(seq) FROM {file}.items"
        )
        count, created_sum, last_item = (column[0].as_py() for column in items.columns)
        scheduled = self._select("SELECT count(*), epoch_us(min(enqueue_at)), max(seq) FROM {file}.scheduled")
        scheduled_count, next_due, last_scheduled = (column[0].as_py() for column in scheduled.columns)
        leased = self._value("SELECT count(*) FROM {file}.leases SEMI JOIN {file}.items USING (seq)")
        last_seq = self.meta().last_seq
        return Summary(
            ready=count - leased,
            leased=leased,
            scheduled=scheduled_count,
            created_sum=int(created_sum),
            # Rows that somebody added by hand may have higher ones than we gave out.
            last_seq=max(last_seq, last_item or 0, last_scheduled or 0),
            next_expiry=self.next_expiry(),
            next_due=next_due,
        )

    def ready(self, after: int, before: int | None, items_max: int, bytes_max: int) -> list[Item]:
        # The end of the range comes first: with both ends known, only the row groups in between are touched.
        found: list[Item] = []
        before = _SEQ_MAX if before is None else before
        while len(found) < items_max and bytes_max > 0:
            last = self._end_of_range("items", after, before, items_max)
            if last is None:
                break
            cut, size = self._cut(after, last, items_max - len(found), bytes_max, at_least_one=not found)
            found += self._unleased(after, cut)
            bytes_max -= size
            if cut < last:
                break
            after = last
        return found

    def _end_of_range(self, table: str, after: int, before: int, rows_max: int) -> int | None:
        last: int | None = self._value(
            f"SELECT max(seq) FROM (SELECT seq FROM {{file}}.{table} WHERE seq > ? AND seq < ?"
            f" ORDER BY seq LIMIT {rows_max:d})",
            after,
            before,
        )
        return last

    def _cut(self, after: int, last: int, items_max: int, bytes_max: int, at_least_one: bool) -> tuple[int, int]:
        """How far to read so that neither bound is passed, and how many bytes that is."""
        rows = self._select(
            "SELECT seq, octet_length(payload) FROM {file}.items WHERE seq > ? AND seq <= ?"
            " AND seq NOT IN (SELECT seq FROM {file}.leases WHERE seq > ? AND seq <= ?) ORDER BY seq",
            after,
            last,
            after,
            last,
        )
        size, cut = 0, after
        for count, (seq, length) in enumerate(zip(tables.column(rows), tables.column(rows, 1), strict=True)):
            if count == items_max or (size + length > bytes_max and (count or not at_least_one)):
                return cut, size
            size, cut = size + length, seq
        return last, size

    def _unleased(self, after: int, last: int) -> Iterable[Item]:
        return tables.items_of(
            self._select(
                f"SELECT {tables.ITEM} FROM {{file}}.items WHERE seq > ? AND seq <= ?"
                " AND seq NOT IN (SELECT seq FROM {file}.leases WHERE seq > ? AND seq <= ?) ORDER BY seq",
                after,
                last,
                after,
                last,
            )
        )

    def leased(self) -> list[Leased]:
        rows = self._select(
            f"SELECT {tables.ITEM}, leases.attempts, epoch_us(leases.deadline)"
            " FROM {file}.leases JOIN {file}.items USING (seq) ORDER BY leases.deadline, leases.seq"
        )
        return list(map(Leased, tables.items_of(rows), tables.column(rows, 12), tables.column(rows, 13)))

    def scheduled(self, items_max: int) -> list[Item]:
        rows = self._select(
            f"SELECT {tables.ITEM}, epoch_us(items.enqueue_at) FROM {{file}}.scheduled AS items"
            f" ORDER BY items.enqueue_at, items.seq LIMIT {items_max:d}"
        )
        return list(tables.items_of(rows, tables.column(rows, 12)))

    def expired(self, now_us: int, items_max: int) -> list[Item]:
        rows = self._select(
            f"SELECT {tables.ITEM} FROM {{file}}.items WHERE items.expire_deadline < make_timestamp(?)"
            f" AND items.seq NOT IN (SELECT seq FROM {{file}}.leases) ORDER BY items.seq LIMIT {items_max:d}",
            now_us,
        )
        return list(tables.items_of(rows))

    def next_expiry(self) -> int | None:
        earliest: int | None = self._value(
            "SELECT epoch_us(min(expire_deadline)) FROM {file}.items WHERE seq NOT IN (SELECT seq FROM {file}.leases)"
        )
        return earliest

    def find(self, seqs: Sequence[int]) -> dict[int, Found]:
        found: dict[int, Found] = {}
        rows = self._select(
            f"SELECT {tables.ITEM}, coalesce(leases.attempts, items.attempts), coalesce(epoch_us(leases.deadline), 0),"
            " leases.seq IS NOT NULL FROM {file}.items LEFT JOIN {file}.leases ON leases.seq = items.seq"
            " WHERE items.seq IN (SELECT unnest(?::BIGINT[]))",
            seqs,
        )
        states = ["leased" if leased else "ready" for leased in tables.column(rows, 14)]
        for item in map(Found, states, tables.items_of(rows), tables.column(rows, 12), tables.column(rows, 13)):
            if item.item:
                found[item.item.seq] = item
        if seqs := [seq for seq in seqs if seq not in found]:
            rows = self._select(
                f"SELECT {tables.ITEM}, epoch_us(items.enqueue_at) FROM {{file}}.scheduled AS items"
                " WHERE items.seq IN (SELECT unnest(?::BIGINT[]))",
                seqs,
            )
            for scheduled in tables.items_of(rows, tables.column(rows, 12)):
                found[scheduled.seq] = Found("scheduled", scheduled, scheduled.attempts, 0)
        if seqs := [seq for seq in seqs if seq not in found]:
            rows = self._select("SELECT DISTINCT seq FROM {file}.lost WHERE seq IN (SELECT unnest(?::BIGINT[]))", seqs)
            found.update((seq, Found("lost", None, 0, 0)) for seq in tables.column(rows))
        return found

    def page(self, scheduled: bool, from_seq: int, items_max: int) -> list[Leased]:
        last = self._end_of_range("scheduled" if scheduled else "items", from_seq - 1, _SEQ_MAX, items_max)
        if last is None:
            return []
        if scheduled:
            rows = self._select(
                f"SELECT {tables.ITEM}, epoch_us(items.enqueue_at) FROM {{file}}.scheduled AS items"
                " WHERE items.seq >= ? AND items.seq <= ? ORDER BY items.seq",
                from_seq,
                last,
            )
            return [Leased(item, item.attempts, 0) for item in tables.items_of(rows, tables.column(rows, 12))]
        rows = self._select(
            f"SELECT {tables.ITEM}, coalesce(leases.attempts, items.attempts), coalesce(epoch_us(leases.deadline), 0)"
            " FROM {file}.items LEFT JOIN {file}.leases ON leases.seq = items.seq"
            " WHERE items.seq >= ? AND items.seq <= ? ORDER BY items.seq",
            from_seq,
            last,
        )
        return list(map(Leased, tables.items_of(rows), tables.column(rows, 12), tables.column(rows, 13)))

    def sources(self, source_ids: Sequence[str]) -> set[str]:
        rows = self._select(
            "SELECT source_id FROM {file}.items WHERE source_id IN (SELECT unnest(?::VARCHAR[])) UNION"
            " SELECT source_id FROM {file}.scheduled WHERE source_id IN (SELECT unnest(?::VARCHAR[]))",
            source_ids,
            source_ids,
        )
        return set(tables.column(rows))

    def request_ids(self, now_us: int) -> list[tuple[str, int]]:
        rows = self._select(
            "SELECT request_id, epoch_us(until) FROM {file}.requests WHERE until >= make_timestamp(?)", now_us
        )
        return list(zip(tables.column(rows), tables.column(rows, 1), strict=True))
