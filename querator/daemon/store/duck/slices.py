"""Reads a partition in slices: a bounded number of rows at a time, as Arrow columns, ordered by sequence.

A slice is one short query, so that no transaction stays open while a slow client reads. The file can be checkpointed,
closed and attached again between two slices, and a scan of any length takes the memory of one slice. A scan returns
every row with a sequence up to `upto` that still exists when its slice is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from querator.daemon.store.duck import parts
from querator.daemon.store.duck.partition_file import PartitionFile
from querator.daemon.store.stretches import next_stretch
from querator.limits import SLICE_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

ITEMS: Final = "items"
SCHEDULED: Final = "scheduled"
LEASES: Final = "leases"

_PLAIN: Final = ("kind", "reference", "encoding", "source_id", "payload")
_ITEM_SQL: Final = {
    **{name: f"items.{name}" for name in _PLAIN},
    "state": "CASE WHEN leases.seq IS NULL THEN 'ready' ELSE 'leased' END",
    "attempts": "coalesce(leases.attempts, items.attempts)::INTEGER",
    "max_attempts": "items.max_attempts::INTEGER",
    "created_at": "items.created_at",
    "expire_deadline": "items.expire_deadline",
    "lease_deadline": "leases.deadline",
    "client_id": "leases.client_id",
    "token_name": "nullif(leases.token_name, '')",
    "leased_at": "leases.leased_at",
    "enqueue_at": "NULL::TIMESTAMP",
    "history": "decode(items.history)",
    "text": "try(decode(items.payload))",
    "parts_bytes": "items.parts_bytes",
    "last_reason": (
        """CASE WHEN octet_length(items.history) > 0 THEN try(list_filter(from_json(decode(items.history),"""
        """ '[{{"reason":"VARCHAR","queue_name":"VARCHAR"}}]'), lambda e: e.queue_name IS NULL)[-1].reason) END"""
    ),
}
_SQL: Final[dict[str, dict[str, str]]] = {
    ITEMS: _ITEM_SQL,
    SCHEDULED: _ITEM_SQL
    | {
        "state": "'scheduled'",
        "attempts": "items.attempts::INTEGER",
        "lease_deadline": "NULL::TIMESTAMP",
        "client_id": "NULL::VARCHAR",
        "token_name": "NULL::VARCHAR",
        "leased_at": "NULL::TIMESTAMP",
        "enqueue_at": "items.enqueue_at",
    },
    LEASES: {
        "attempts": "items.attempts::INTEGER",
        "deadline": "items.deadline",
        "payload": "stored.payload",
        "text": "try(decode(stored.payload))",
        "parts_bytes": "coalesce(stored.parts_bytes, 0)",
        "client_id": "items.client_id",
        "token_name": "nullif(items.token_name, '')",
        "leased_at": "items.leased_at",
    },
}
_NEEDS_LEASES: Final = frozenset({"state", "attempts", "lease_deadline", "client_id", "token_name", "leased_at"})


def schemas() -> dict[str, pa.Schema]:
    """All columns of each table that can be scanned."""
    from querator.wire import arrow

    return {ITEMS: arrow.ITEM, SCHEDULED: arrow.ITEM, LEASES: arrow.LEASE}


class Scan(NamedTuple):
    """The columns and rows to read from a table of one partition: sequences after `after`, up to `upto`."""

    table: str
    columns: tuple[str, ...]
    after: int
    upto: int
    state: str = ""
    """Only items that are `ready` or `leased`; empty means both."""

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        from querator.wire import arrow

        return arrow.chosen(schemas()[self.table], self.columns) if self.columns else pa.schema([])

    @property
    def payload_copies(self) -> int:
        """How many columns of the result hold the payload."""
        return ("payload" in self.columns) + ("text" in self.columns)

    @property
    def content_copies(self) -> int:
        """How many columns of the result hold large contents of an item."""
        return self.payload_copies or int("history" in self.columns)


class Slice(NamedTuple):
    batch: pa.RecordBatch
    last: int
    """The sequence after which the next slice begins; `upto` when nothing is left."""


class SlicedStore(Protocol):
    """Reads that a store offers to bulk calls, beyond the contract of `base`."""

    def slice(self, scan: Scan, partition: int) -> Slice: ...

    def split(self, table: str, upto: int, parts: int) -> Split: ...


class Split(NamedTuple):
    rows: int
    bounds: list[int]
    """Sequences that cut the rows into about equal parts; the last one is `upto`."""


def read_slice(file: PartitionFile, scan: Scan, prefix: int, partition: int) -> Slice:
    """The next rows of a scan; blocking."""
    content_of = (SCHEDULED if scan.table == SCHEDULED else ITEMS) if scan.content_copies else ""
    bytes_max = SLICE_BYTES_MAX // max(1, scan.content_copies)
    last = next_stretch(file, scan.table, scan.after, scan.upto, content_of=content_of, bytes_max=bytes_max).last
    wanted = scan.schema
    names = [name for name in wanted.names if name not in ("id", "partition")]
    sql = _SQL[scan.table]
    where = f" AND leases.seq IS {'' if scan.state == 'ready' else 'NOT '}NULL" if scan.state else ""
    joins = scan.table == ITEMS and bool(scan.state or _NEEDS_LEASES.intersection(names))
    source = f"{{file}}.{scan.table} AS items"
    if joins:
        # Leases of this stretch only: joining all leases would be repeated for every slice.
        source += (
            f" LEFT JOIN (SELECT * FROM {{file}}.leases WHERE seq > {scan.after:d} AND seq <= {last:d}) AS leases"
            " ON leases.seq = items.seq"
        )
    elif scan.table == LEASES and scan.payload_copies:
        source += (
            " LEFT JOIN (SELECT seq, payload, parts_bytes FROM {file}.items"
            f" WHERE seq > {scan.after:d} AND seq <= {last:d}"
            " AND seq IN (SELECT seq FROM {file}.leases)) AS stored ON stored.seq = items.seq"
        )
    if scan.payload_copies:
        names.append("parts_bytes")
    selected = "".join([f", {sql[name]} AS {name}" for name in names])
    rows = file.select(
        f"SELECT items.seq{selected} FROM {source}"
        f" WHERE items.seq > {scan.after:d} AND items.seq <= {last:d}{where} ORDER BY items.seq"
    )
    if scan.payload_copies:
        rows = parts.filled(file, content_of, rows)
    return Slice(_batch(rows, wanted, prefix, partition), last)


def _batch(rows: pa.Table, wanted: pa.Schema, prefix: int, partition: int) -> pa.RecordBatch:
    import pyarrow as pa

    from querator.wire import arrow

    columns = []
    for field in wanted:
        if field.name == "partition":
            columns.append(pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows))
        elif field.name == "id":
            columns.append(arrow.id_column(prefix, _whole(rows.column("seq"))))
        else:
            columns.append(_whole(rows.column(field.name)).cast(field.type))
    if not columns:  # the caller only counts rows
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
    return pa.record_batch(columns, schema=wanted)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def split_table(file: PartitionFile, table: str, upto: int, pieces: int) -> Split:
    """Where to cut a table so that the pieces have about the same number of rows; blocking."""
    ((rows,),) = file.rows(f"SELECT count(*) FROM {{file}}.{table} WHERE seq <= {upto:d}")
    bounds: Sequence[int] = []
    if pieces > 1 and rows:
        shares = ", ".join(str(piece / pieces) for piece in range(1, pieces))
        ((found,),) = file.rows(
            # Doubles hold these sequences exactly, and the pieces need not be equal.
            f"SELECT approx_quantile(seq::DOUBLE, [{shares}]) FROM {{file}}.{table} WHERE seq <= {upto:d}"
        )
        bounds = sorted({int(bound) for bound in found if bound < upto})
    return Split(rows, [*bounds, upto])
