"""The tables of a partition file, as an operator sees them in the duckdb shell, and their rows as Arrow and Items.

Rows are added and deleted, never updated: an update makes the next checkpoint rewrite whole row groups. There are no
indexes: sequences rise, so DuckDB's own statistics per row group say where to look. Texts are compressed with zstd,
because DuckDB's own choice (dict_fsst) makes a checkpoint of payloads that do not compress well fifty times slower, and
the payloads no smaller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from querator import limits
from querator.daemon.store.base import Rows
from querator.daemon.store.columnar import read_columns
from querator.items import Hold, Item

T = TypeVar("T")

SCHEMA_VERSION: Final = 4
"""Raise it with every change of SCHEMA: a file of another version is refused instead of failing in some query."""
TABLES: Final = ("items", "leases", "scheduled", "lost", "requests")
MEASURED_TABLES: Final = ("items", "scheduled")
"""The tables with payloads. They are read in stretches that fit in memory."""

_ITEM_COLUMNS: Final = """
    seq BIGINT NOT NULL,
    created_at TIMESTAMP NOT NULL,
    expire_deadline TIMESTAMP NOT NULL,
    payload BLOB USING COMPRESSION zstd NOT NULL DEFAULT ''::BLOB,
    kind VARCHAR USING COMPRESSION zstd NOT NULL DEFAULT '',
    reference VARCHAR USING COMPRESSION zstd NOT NULL DEFAULT '',
    encoding VARCHAR USING COMPRESSION zstd NOT NULL DEFAULT '',
    attempts BIGINT NOT NULL DEFAULT 0,
    max_attempts BIGINT NOT NULL DEFAULT 0,
    source_id VARCHAR USING COMPRESSION zstd NOT NULL DEFAULT '',
    birth BIGINT NOT NULL DEFAULT 0,
    history BLOB USING COMPRESSION zstd NOT NULL DEFAULT ''::BLOB,
    imported_deadline TIMESTAMP
"""

SCHEMA: Final = (
    f"CREATE TABLE {{file}}.items ({_ITEM_COLUMNS})",
    f"CREATE TABLE {{file}}.scheduled ({_ITEM_COLUMNS}, enqueue_at TIMESTAMP NOT NULL)",
    "CREATE TABLE {file}.leases (seq BIGINT NOT NULL, attempts BIGINT NOT NULL, deadline TIMESTAMP NOT NULL,"
    " client_id VARCHAR USING COMPRESSION zstd NOT NULL DEFAULT '', leased_at TIMESTAMP,"
    " ended_at TIMESTAMP, reason VARCHAR USING COMPRESSION zstd NOT NULL DEFAULT '',"
    " token_name VARCHAR USING COMPRESSION zstd NOT NULL DEFAULT '')",
    "CREATE TABLE {file}.lost (seq BIGINT NOT NULL, birth BIGINT NOT NULL, until TIMESTAMP NOT NULL)",
    "CREATE TABLE {file}.requests (request_id VARCHAR USING COMPRESSION zstd NOT NULL, until TIMESTAMP NOT NULL)",
    "CREATE TABLE {file}.meta (uuid VARCHAR NOT NULL, queue VARCHAR NOT NULL, schema_version BIGINT NOT NULL,"
    " applied UBIGINT NOT NULL, last_seq BIGINT NOT NULL)",
)

ITEM: Final = (
    "items.seq, epoch_us(items.created_at), epoch_us(items.expire_deadline), items.payload, items.kind,"
    " items.reference, items.encoding, items.attempts, items.max_attempts, items.source_id, items.birth, items.history,"
    " coalesce(epoch_us(items.imported_deadline), 0)"
)
ITEM_COLUMNS: Final = 13
"""How many columns `ITEM` selects. `items_of` reads them; the query names the table `items`."""

HOLD: Final = (
    "coalesce(leases.client_id, ''), coalesce(epoch_us(leases.leased_at), 0),"
    " coalesce(epoch_us(leases.ended_at), 0), coalesce(leases.reason, ''), coalesce(leases.token_name, '')"
)
HOLD_COLUMNS: Final = 5
"""How many columns `HOLD` selects. `holds_in` reads them."""

ITEM_WITHOUT_CONTENT: Final = (
    "items.seq, epoch_us(items.created_at), epoch_us(items.expire_deadline), ''::BLOB, '', '', '',"
    " items.attempts, items.max_attempts, items.source_id, items.birth, ''::BLOB,"
    " coalesce(epoch_us(items.imported_deadline), 0)"
)
"""The same columns with empty contents, for callers that need no payloads."""

_MICROSECONDS: Final = pa.timestamp("us")


def warm_up() -> None:
    """Makes the first Arrow array, which imports pandas if it is installed. This is slow, so do it at the start."""
    pa.array([0])


def items_of(rows: pa.Table, enqueue_at: Iterable[int] = repeat(0)) -> Iterator[Item]:
    """Items from the first columns of a result, as `ITEM` selects them."""
    columns = [column.to_pylist() for column in rows.columns[:ITEM_COLUMNS]]
    *start, birth, history, imported_deadline = columns
    # Converting whole columns takes one short call each. Fetching rows would hold up the loop for much longer.
    return map(Item, *start, enqueue_at, birth, history, imported_deadline)


def _times(values: Sequence[int]) -> pa.Array:
    return pa.array(values, pa.int64()).view(_MICROSECONDS)


def item_rows(items: Sequence[Item]) -> dict[str, pa.Array]:
    return {
        "seq": pa.array([item.seq for item in items], pa.int64()),
        "created_at": _times([item.created_at for item in items]),
        "expire_deadline": _times([item.expire_deadline for item in items]),
        "payload": pa.array([item.payload for item in items], pa.binary()),
        "kind": pa.array([item.kind for item in items], pa.string()),
        "reference": pa.array([item.reference for item in items], pa.string()),
        "encoding": pa.array([item.encoding for item in items], pa.string()),
        "attempts": pa.array([item.attempts for item in items], pa.int64()),
        "max_attempts": pa.array([item.max_attempts for item in items], pa.int64()),
        "source_id": pa.array([item.source_id for item in items], pa.string()),
        "birth": pa.array([item.birth for item in items], pa.int64()),
        "history": pa.array([item.history for item in items], pa.binary()),
        "imported_deadline": pa.array([item.imported_deadline or None for item in items], _MICROSECONDS),
    }


def table_of(rows: Rows) -> pa.Table:
    """Columnar items as rows of the items table. Columns that are missing get their defaults."""
    table = read_columns(rows)
    table = table.append_column("seq", pa.arange(rows.first_seq, rows.first_seq + rows.count))
    for name, default in (("created_at", rows.created_at), ("expire_deadline", rows.expire_deadline)):
        if name in table.column_names:
            at = table.column_names.index(name)
            table = table.set_column(at, name, pc.fill_null(table.column(at), pa.scalar(default, _MICROSECONDS)))
        else:
            table = table.append_column(name, pa.repeat(pa.scalar(default, _MICROSECONDS), rows.count))
    return table


def tables_of(all_rows: Iterable[Rows], removed: Collection[int]) -> Iterator[pa.Table]:
    """The same for many, without the removed items. Rows with the same columns come together."""
    together: list[pa.Table] = []
    size = 0
    for rows in all_rows:
        table = table_of(rows)
        if removed:
            stays = [seq not in removed for seq in range(rows.first_seq, rows.last_seq + 1)]
            if not any(stays):
                continue
            if not all(stays):
                table = table.filter(pa.array(stays))
        if together and (size >= limits.APPLY_BYTES_PER_INSERT_MAX or table.schema != together[0].schema):
            yield pa.concat_tables(together)
            together, size = [], 0
        together.append(table)
        size += len(rows.columns)
    if together:
        yield pa.concat_tables(together)


def scheduled_rows(items: Sequence[Item]) -> dict[str, pa.Array]:
    return item_rows(items) | {"enqueue_at": _times([item.enqueue_at for item in items])}


def lease_rows(leases: Iterable[tuple[int, tuple[int, int, Hold]]]) -> dict[str, pa.Array]:
    seqs, terms = zip(*leases, strict=True)
    attempts, deadlines, holds = zip(*terms, strict=True)
    return {
        "seq": keys(seqs),
        "attempts": pa.array(attempts, pa.int64()),
        "deadline": _times(deadlines),
        "client_id": pa.array([hold.client_id for hold in holds], pa.string()),
        "leased_at": pa.array([hold.leased_at or None for hold in holds], pa.int64()).view(_MICROSECONDS),
        "ended_at": pa.array([hold.ended_at or None for hold in holds], pa.int64()).view(_MICROSECONDS),
        "reason": pa.array([hold.reason for hold in holds], pa.string()),
        "token_name": pa.array([hold.token_name for hold in holds], pa.string()),
    }


def holds_in(rows: pa.Table, first: int) -> list[Hold]:
    """Holds from the columns that `HOLD` selects, which begin at column `first`."""
    found = zip(*(column.to_pylist() for column in rows.columns[first : first + HOLD_COLUMNS]), strict=True)
    shared: dict[tuple[Any, ...], Hold] = {}
    return [shared.get(values) or shared.setdefault(values, Hold(*values)) for values in found]


def lost_rows(lost: Iterable[tuple[int, tuple[int, int]]]) -> dict[str, pa.Array]:
    seqs, terms = zip(*lost, strict=True)
    births, until = zip(*terms, strict=True)
    return {"seq": keys(seqs), "birth": pa.array(births, pa.int64()), "until": _times(until)}


def request_rows(requests: Iterable[tuple[str, int]]) -> dict[str, pa.Array]:
    ids, until = zip(*requests, strict=True)
    return {"request_id": pa.array(ids, pa.string()), "until": _times(until)}


def keys(values: Sequence[int] | Sequence[str]) -> pa.Array:
    return pa.array(values, pa.string() if isinstance(values[0], str) else pa.int64())


def batches_of(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cuts values into batches that are small enough not to hold up other threads for long."""
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The same for items, which may have large payloads."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(item.payload)
        if len(chunk) >= limits.APPLY_ROWS_PER_INSERT_MAX or size >= limits.APPLY_BYTES_PER_INSERT_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def column(rows: pa.Table, number: int = 0) -> list[Any]:
    values: list[Any] = rows.column(number).to_pylist()
    return values
