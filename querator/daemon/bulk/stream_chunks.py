"""Cuts an Arrow stream from a client into chunks, checks their values, and brings them into the form of the store."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from querator.daemon import validation
from querator.daemon.queue import Columns, lifecycle
from querator.daemon.store import items_from
from querator.errors import InvalidRequest
from querator.items import Item
from querator.limits import (
    BULK_BATCH_BYTES_MAX,
    BULK_CHUNK_BYTES_MAX,
    BULK_CHUNK_ROWS_MAX,
    BULK_PAYLOAD_BYTES_MAX,
)
from querator.wire import arrow


class StreamChunk(NamedTuple):
    """A piece of a stream. It enters the queue as a whole."""

    rows: pa.Table
    sources: list[str]
    """The `source_id` of each row, empty for a row without one. The list is empty if no row has one."""
    columns: Columns
    timed: list[Item]
    """The rows with an `enqueue_at`. All other rows are in `columns`."""
    digest: str
    """The digest of the content. A repeated chunk must have the same one."""


def chunks(source: Any, wanted: pa.Schema) -> Iterator[StreamChunk]:
    """The chunks of a stream. The same stream always gives the same chunks. Blocks; raises InvalidRequest."""
    try:
        row = 0
        for batch in arrow.untrusted_batches(source, wanted, BULK_BATCH_BYTES_MAX):
            rows = _rows_per_chunk(batch)
            for first in range(0, batch.num_rows, rows):
                yield chunk_of(arrow.fitted(batch.slice(first, rows), wanted), row + first)
            row += batch.num_rows
    except (ValueError, struct.error, pa.ArrowException) as error:
        raise InvalidRequest(f"stream is invalid; {error}") from None
    except OSError as error:
        raise InvalidRequest(f"stream is invalid; it ends too early: {error}") from None


def _rows_per_chunk(batch: pa.RecordBatch) -> int:
    size_bytes: int = max(1, batch.nbytes)
    rows: int = batch.num_rows * BULK_CHUNK_BYTES_MAX // size_bytes
    return max(1, min(BULK_CHUNK_ROWS_MAX, rows))


def chunk_of(batch: pa.RecordBatch, row: int) -> StreamChunk:
    lengths = pc.binary_length(batch.column("payload"))
    longest = pc.max(lengths).as_py() or 0
    if longest > BULK_PAYLOAD_BYTES_MAX:
        at = row + pc.index(lengths, longest).as_py()
        raise InvalidRequest(
            f"payload is invalid; that of row {at:,} has {longest:,} bytes,"
            f" at most {BULK_PAYLOAD_BYTES_MAX:,} are taken"
        )
    rows = pa.table({name: _stored(name, batch.column(name)) for name in batch.schema.names})
    sources = rows.column("source_id").to_pylist() if "source_id" in rows.column_names else []
    return split_by_time(rows, sources if any(sources) else [], _digest(rows))


def _digest(rows: pa.Table) -> str:
    """A digest of the values only: the buffers of equal rows can differ under nulls and after the last value."""
    digest = hashlib.blake2b(digest_size=8)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        values = column.chunk(0)
        if pa.types.is_timestamp(values.type):
            values = pc.fill_null(values.cast(pa.int64()), 0)
        _, *buffers = pa.concat_arrays([values, values[:0]]).buffers()  # a copy of the slice alone
        is_number = pa.types.is_integer(values.type)
        sizes = [8 * len(values)] if is_number else [4 * len(values) + 4, pc.sum(pc.binary_length(values)).as_py()]
        digest.update(f"{name} ".encode())
        for buffer, size in zip(buffers, sizes, strict=True):
            if size:
                digest.update(memoryview(buffer)[:size])
    return digest.hexdigest()


def _stored(name: str, values: pa.Array) -> pa.Array:
    """A column in the form of the store. Absent times stay null. Raises InvalidRequest."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
        if values.null_count < len(values):
            for bound in pc.min_max(values).values():
                validation.year(name, bound.as_py())
        # Some clients write 1970 for an absent time.
        return pc.if_else(pc.equal(values, 0), None, values).view(pa.timestamp("us"))
    if pa.types.is_integer(values.type):
        values = pc.fill_null(values, 0).cast(pa.int64())
        if (pc.min(values).as_py() or 0) < 0:
            raise InvalidRequest(f"stream is invalid; column '{name}' has a negative number")
        return values
    if pa.types.is_string(values.type):
        values = pc.fill_null(values, "")
    if name == "history":
        values = values.cast(pa.binary())
        for text in pc.unique(values).to_pylist():
            if not lifecycle.is_history(text):
                raise InvalidRequest("history is invalid; it is no list of attempts and deaths")
    return values


def split_by_time(rows: pa.Table, sources: list[str], digest: str) -> StreamChunk:
    timed: list[Item] = []
    ready = rows
    if "enqueue_at" in rows.column_names:
        is_timed = pc.is_valid(rows.column("enqueue_at"))
        timed = items_from(rows.filter(is_timed))
        ready = rows.filter(pc.invert(is_timed)).drop_columns("enqueue_at")
    return StreamChunk(rows, sources, _columns(ready), timed, digest)


def _columns(rows: pa.Table) -> Columns:
    created, expires = _times_present(rows, "created_at"), _times_present(rows, "expire_deadline")
    return Columns(
        rows=rows.num_rows,
        stream=arrow.encode_batches(rows.to_batches(), rows.schema),
        created_sum=sum(created.to_pylist()),  # the sum can exceed 64 bits
        rows_without_created_at=rows.num_rows - len(created),
        first_expiry=pc.min(expires).as_py(),
        has_rows_without_expiry=len(expires) < rows.num_rows,
    )


def _times_present(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """The times that are present, as numbers."""
    if name not in rows.column_names:
        return pa.chunked_array([], pa.int64())
    return rows.column(name).drop_null().cast(pa.int64())
