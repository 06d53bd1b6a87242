"""Makes items from Arrow columns. This needs only pyarrow, so the queue can use it without DuckDB."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Any

from querator.daemon.store.batches import Rows
from querator.items import Item

if TYPE_CHECKING:
    import pyarrow as pa


def read_columns(rows: Rows) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(rows.columns).read_all()


def values_of(column: pa.ChunkedArray, default: Any = None) -> list[Any]:
    """The values of a column in Python, with `default` for NULL. Times are microseconds."""
    import pyarrow as pa

    if column.type == pa.timestamp("us"):
        # As numbers: pyarrow would make a datetime of each time, which takes fifty times as long.
        column = column.combine_chunks().view(pa.int64())
    if column.null_count:
        column = column.fill_null(default)
    listed: list[Any]
    if column.type == pa.int64():
        # From the buffers, which takes a third of the time.
        listed = []
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            listed += memoryview(chunk.buffers()[1]).cast("q")[chunk.offset : chunk.offset + len(chunk)].tolist()
    else:
        listed = column.to_pylist()
    return listed


def items_in(rows: Rows) -> list[Item]:
    """The items of a batch that is kept in columnar form."""
    seqs = range(rows.first_seq, rows.last_seq + 1)
    return items_from(read_columns(rows), seqs, rows.created_at, rows.expire_deadline)


def items_from(
    table: pa.Table, seqs: Iterable[int] = repeat(0), created_at: int = 0, expire_deadline: int = 0
) -> list[Item]:
    """The items of a table that has some columns of the items table.

    `created_at` and `expire_deadline` are for rows that carry no value of their own.
    """

    def values(name: str, default: Any) -> Iterable[Any]:
        return values_of(table.column(name), default) if name in table.column_names else repeat(default)

    return list(
        map(
            Item,
            seqs,
            values("created_at", created_at),
            values("expire_deadline", expire_deadline),
            values("payload", b""),
            values("kind", ""),
            values("reference", ""),
            values("encoding", ""),
            values("attempts", 0),
            values("max_attempts", 0),
            values("source_id", ""),
            values("enqueue_at", 0),
            repeat(0),
            values("history", b""),
        )
    )
