"""The tables of a partition file, as an operator sees them in the duckdb shell, and what is read from them.

Rows are added and deleted, never updated: an update makes the next checkpoint rewrite whole row groups. There are no
indexes: sequences rise, so DuckDB's own statistics per row group say where to look. Texts are compressed with zstd,
because DuckDB's own choice (dict_fsst) makes a checkpoint of payloads that do not compress well fifty times slower, and
the payloads no smaller. Parts of large payloads that do not compress well are not compressed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

from querator import limits
from querator.daemon.store.columnar import values_of
from querator.items import Hold, Item

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

SCHEMA_VERSION: Final = 6
"""Raise it with every change of SCHEMA: a file of another version is refused instead of failing in some query."""
TABLES: Final[tuple[str, ...]] = ("items", "leases", "scheduled", "lost", "requests", "parts")
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
    imported_deadline TIMESTAMP,
    parts_bytes BIGINT NOT NULL DEFAULT 0
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
    "CREATE TABLE {file}.parts (seq BIGINT NOT NULL, number BIGINT NOT NULL,"
    " content BLOB USING COMPRESSION uncompressed NOT NULL DEFAULT ''::BLOB,"
    " packed BLOB USING COMPRESSION zstd NOT NULL DEFAULT ''::BLOB)",
    "CREATE TABLE {file}.meta (uuid VARCHAR NOT NULL, queue VARCHAR NOT NULL, schema_version BIGINT NOT NULL,"
    " applied UBIGINT NOT NULL, last_seq BIGINT NOT NULL)",
)

ITEM: Final = (
    "items.seq, items.created_at, items.expire_deadline, items.payload, items.kind, items.reference, items.encoding,"
    " items.attempts, items.max_attempts, items.source_id, items.birth, items.history, items.imported_deadline,"
    " items.parts_bytes"
)
ITEM_COLUMNS: Final = 14
"""How many columns `ITEM` selects. `items_of` reads them; the query names the table `items`."""

HOLD: Final = (
    "coalesce(leases.client_id, ''), coalesce(epoch_us(leases.leased_at), 0),"
    " coalesce(epoch_us(leases.ended_at), 0), coalesce(leases.reason, ''), coalesce(leases.token_name, '')"
)
HOLD_COLUMNS: Final = 5
"""How many columns `HOLD` selects. `holds_in` reads them."""

ITEM_WITHOUT_CONTENT: Final = (
    "items.seq, items.created_at, items.expire_deadline, ''::BLOB, '', '', '',"
    " items.attempts, items.max_attempts, items.source_id, items.birth, ''::BLOB, items.imported_deadline, 0"
)
"""The same columns with empty contents, for callers that need no payloads."""


def items_of(rows: pa.Table, enqueue_at: Iterable[int] = repeat(0)) -> Iterator[Item]:
    """Items from the first columns of a result, as `ITEM` selects them. Payloads in parts are empty."""
    # Converting whole columns takes one short call each. Fetching rows would hold up the loop for much longer.
    seqs, *start, birth, history, imported = [_values(column) for column in rows.columns[: ITEM_COLUMNS - 1]]
    return map(Item, seqs, *start, enqueue_at, birth, history, imported)


def _values(column: pa.ChunkedArray) -> Iterable[Any]:
    """The values of a column, with 0 for NULL. Most columns of most items are empty or 0, and need no list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        if not pc.max(pc.binary_length(column)).as_py():
            return repeat(b"" if pa.types.is_binary(column.type) else "")
    elif column.null_count == len(column) or pc.min_max(column.cast(pa.int64())).as_py() == {"min": 0, "max": 0}:
        return repeat(0)
    return values_of(column, 0)


def holds_in(rows: pa.Table, first: int) -> list[Hold]:
    """Holds from the columns that `HOLD` selects, which begin at column `first`."""
    found = zip(*(column.to_pylist() for column in rows.columns[first : first + HOLD_COLUMNS]), strict=True)
    shared: dict[tuple[Any, ...], Hold] = {}
    return [shared.get(values) or shared.setdefault(values, Hold(*values)) for values in found]


def batches_of(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Cuts values into batches that are small enough not to hold up other threads for long."""
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The same for items. Payloads that are kept in parts do not count."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        if len(item.payload) <= limits.LARGE_PAYLOAD_BYTES:
            size += len(item.payload)
        if len(chunk) >= limits.APPLY_ROWS_PER_INSERT_MAX or size >= limits.APPLY_BYTES_PER_INSERT_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def column(rows: pa.Table, number: int = 0) -> list[Any]:
    values: list[Any] = rows.column(number).to_pylist()
    return values
