"""The statements that change a partition file: apply a net effect, and delete expired request ids and lost leases."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from querator import limits
from querator.daemon.store.batches import Batch, others_of
from querator.daemon.store.delta import Delta
from querator.daemon.store.duck import parts, tables
from querator.daemon.store.duck.database import Cursor
from querator.daemon.store.duck.partition_file import PartitionFile
from querator.daemon.store.duck.reading import count_leases
from querator.daemon.store.runs import GoneFrom, Rows, Run
from querator.items import Item

_ORPHANED_PARTS: Final = (
    "DELETE FROM {file}.parts"
    " WHERE seq NOT IN (SELECT seq FROM {file}.items UNION ALL SELECT seq FROM {file}.scheduled)"
)


def apply(file: PartitionFile, delta: Delta, left: Iterable[Batch] = ()) -> None:
    """Applies a net effect in one transaction, which also notes the last journal record that it contains. `left` are
    the batches of the items that were left in the journal.
    """
    import pyarrow as pa

    from querator.daemon.store.duck import arrow_rows

    with file.transaction() as cursor:
        _clear(file, cursor, delta)
        for items, rows in _together(delta, left):
            _insert_rows(file, cursor, rows, lambda one: bytes([seq not in delta.left for seq in one.seqs]))
            _insert(file, cursor, "items", items)
        _insert_rows(file, cursor, delta.rows, delta.gone_from)
        _delete(file, cursor, delta.removed_from_file(), "seq", "items", "leases", "parts")
        _delete(file, cursor, delta.unscheduled, "seq", "scheduled", "parts")
        _insert(file, cursor, "items", delta.added.values())
        _insert(file, cursor, "scheduled", delta.scheduled.values())
        _delete(file, cursor, (seq for seq, _ in delta.all_leases() if seq not in delta.added), "seq", "leases")
        for leases in tables.batches_of(delta.all_leases(), limits.APPLY_ROWS_PER_INSERT_MAX):
            file.insert(cursor, "leases", pa.table(arrow_rows.lease_rows(leases)))
        _delete(file, cursor, delta.lost, "seq", "lost")
        for lost in tables.batches_of(delta.lost.items(), limits.APPLY_ROWS_PER_INSERT_MAX):
            file.insert(cursor, "lost", pa.table(arrow_rows.lost_rows(lost)))
        _delete(file, cursor, delta.requests, "request_id", "requests")
        for requests in tables.batches_of(delta.requests.items(), limits.APPLY_ROWS_PER_INSERT_MAX):
            file.insert(cursor, "requests", pa.table(arrow_rows.request_rows(requests)))
        cursor.execute(
            f"INSERT INTO {file.name}.meta SELECT uuid, queue, schema_version, ?, ? FROM {file.name}.meta",
            [delta.record, delta.last_seq],
        )
        cursor.execute(f"DELETE FROM {file.name}.meta WHERE applied <> ?", [delta.record])


def _together(delta: Delta, left: Iterable[Batch]) -> Iterator[tuple[list[Item], list[Rows | Run]]]:
    """The items that were left in the journal and are still there, for inserts of a bounded size."""
    items: list[Item] = []
    rows: list[Rows | Run] = []
    size = 0
    for batch in left:
        some = list(batch.add or ())
        for one in others_of(batch).rows or ():
            if isinstance(one, Run) and max(map(len, one.payloads)) > limits.LARGE_PAYLOAD_BYTES:
                # In columnar form, payloads that are kept in parts would be copied several times.
                some += one.items(range(one.count))
            else:
                rows.append(one)
                size += one.size_bytes
        some = [item for item in some if item.seq in delta.left]
        items += some
        size += sum([len(item.payload) for item in some])
        if size >= limits.PARTS_BYTES_PER_INSERT_MAX:
            yield items, rows
            items, rows, size = [], [], 0
    yield items, rows


def _insert_rows(file: PartitionFile, cursor: Cursor, rows: Iterable[Rows | Run], gone_from: GoneFrom) -> None:
    """Adds items in columnar form, without those that are gone."""
    from querator.daemon.store.duck import arrow_rows

    for table in arrow_rows.tables_of(rows, gone_from):
        table, large = parts.cut(table)
        file.insert(cursor, "items", table)
        _insert_parts(file, cursor, large)


def _insert(file: PartitionFile, cursor: Cursor, name: str, items: Collection[Item]) -> None:
    """Adds items to `items` or `scheduled`, and their large payloads to `parts`."""
    import pyarrow as pa

    from querator.daemon.store.duck import arrow_rows

    rows_of = arrow_rows.item_rows if name == "items" else arrow_rows.scheduled_rows
    for chunk in tables.chunks(items):
        file.insert(cursor, name, pa.table(rows_of(chunk)))
    large = ((item.seq, item.payload) for item in items if len(item.payload) > limits.LARGE_PAYLOAD_BYTES)
    _insert_parts(file, cursor, large)


def _insert_parts(file: PartitionFile, cursor: Cursor, payloads: Iterable[tuple[int, bytes]]) -> None:
    for rows in parts.rows_of(payloads):
        file.insert(cursor, "parts", rows)


def _clear(file: PartitionFile, cursor: Cursor, delta: Delta) -> None:
    if delta.clear_ready:
        import pyarrow as pa

        cursor.register("held", pa.table({"seq": pa.array([seq for seq, _ in delta.all_leases()], pa.int64())}))
        cursor.execute(
            f"DELETE FROM {file.name}.items"
            f" WHERE seq NOT IN (SELECT seq FROM {file.name}.leases) AND seq NOT IN (SELECT seq FROM held)"
        )
        cursor.unregister("held")
    if delta.clear_leased:
        cursor.execute(f"DELETE FROM {file.name}.items WHERE seq IN (SELECT seq FROM {file.name}.leases)")
        cursor.execute(f"DELETE FROM {file.name}.leases")
    if delta.clear_scheduled:
        cursor.execute(f"DELETE FROM {file.name}.scheduled")
    if delta.clear_ready or delta.clear_leased or delta.clear_scheduled:
        cursor.execute(_ORPHANED_PARTS.format(file=file.name))


def _delete(file: PartitionFile, cursor: Cursor, keys: Iterable[int] | Iterable[str], key: str, *names: str) -> None:
    import pyarrow as pa

    from querator.daemon.store.duck import arrow_rows

    batches: Iterator[Any] = tables.batches_of(keys, limits.APPLY_KEYS_PER_DELETE_MAX)
    for batch in batches:
        cursor.register("gone", pa.table({key: arrow_rows.keys(batch)}))
        for name in names:
            cursor.execute(f"DELETE FROM {file.name}.{name} WHERE {key} IN (SELECT {key} FROM gone)")
        cursor.unregister("gone")


def forget(file: PartitionFile, now_us: int) -> None:
    """Deletes request ids and lost leases that need no longer be remembered."""
    cursor = file.cursor()
    cursor.execute(f"DELETE FROM {file.name}.requests WHERE until < make_timestamp(?)", [now_us])
    past = file.rows(
        "SELECT CASE birth WHEN 0 THEN seq ELSE birth END FROM {file}.lost WHERE until < make_timestamp(?)", now_us
    )
    if not past:
        return
    births = list({birth for (birth,) in past})
    # Looks up the few births among the many items. The other way round DuckDB would build a table of all items.
    staying = file.rows(
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
        f"DELETE FROM {file.name}.lost WHERE until < make_timestamp(?)"
        " AND CASE birth WHEN 0 THEN seq ELSE birth END IN (SELECT unnest(?::BIGINT[]))",
        [now_us, gone],
    )


def drop_orphans(file: PartitionFile) -> None:
    """Drops leases and parts whose items an operator deleted by hand while the file was closed."""
    ((leases,),) = file.rows("SELECT count(*) FROM {file}.leases")
    if leases and leases != count_leases(file):
        file.cursor().execute(f"DELETE FROM {file.name}.leases WHERE seq NOT IN (SELECT seq FROM {file.name}.items)")
    if file.rows("SELECT 1 FROM {file}.parts LIMIT 1"):
        file.cursor().execute(_ORPHANED_PARTS.format(file=file.name))
