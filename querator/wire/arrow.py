"""Arrow on the wire: the columns of an item, and streams of record batches as bytes.

The bulk endpoints, the SQL worker and the Spark data source use it. Nothing here knows HTTP.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from querator import ids
from querator.limits import US_PER_SECOND

TIME: Final = pa.timestamp("us", "UTC")

ITEM: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("reference", pa.string(), nullable=False),
        pa.field("encoding", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("max_attempts", pa.int32(), nullable=False),
        pa.field("created_at", TIME, nullable=False),
        pa.field("expire_deadline", TIME, nullable=False),
        pa.field("lease_deadline", TIME),
        pa.field("client_id", pa.string()),
        pa.field("token_name", pa.string()),
        pa.field("leased_at", TIME),
        pa.field("enqueue_at", TIME),
        pa.field("source_id", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("history", pa.string(), nullable=False),
        pa.field("last_reason", pa.string()),
    ]
)
"""An item and its state, as a scan and `querator sql` show it.

`history` is a JSON list of failed attempts and deaths, or empty; a death has a `queue_name`. `last_reason` is the
reason of the last failed attempt, null if there was none; it is computed on reading.
`text` is the payload as text, null if the payload is not UTF-8. It is computed on reading and stored nowhere.
"""

LEASE: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("deadline", TIME, nullable=False),
        pa.field("payload", pa.binary()),
        pa.field("text", pa.string()),
        pa.field("client_id", pa.string(), nullable=False),
        pa.field("token_name", pa.string()),
        pa.field("leased_at", TIME),
    ]
)
"""A lease, and the payload of its item. The payload is null if the file holds no such item."""

PRODUCED: Final = pa.schema(
    [
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("kind", pa.string()),
        pa.field("reference", pa.string()),
        pa.field("encoding", pa.string()),
        pa.field("enqueue_at", TIME),
    ]
)
"""The columns of a bulk produce. All but the payload can be absent or null."""

IMPORTED: Final = pa.schema(
    [
        *PRODUCED,
        pa.field("attempts", pa.int32()),
        pa.field("max_attempts", pa.int32()),
        pa.field("created_at", TIME),
        pa.field("expire_deadline", TIME),
        pa.field("source_id", pa.string()),
        pa.field("history", pa.string()),
    ]
)
"""The columns of a bulk import: stored items with their past. Items whose `source_id` the queue has are skipped."""


class SchemaError(ValueError):
    """Columns are missing, unknown or of the wrong type."""


def fitted(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch with the types and the column order of `wanted`. Nulls stay nulls. Raises SchemaError."""
    check(batch.schema, wanted)
    fields = [field for field in wanted if field.name in batch.schema.names]
    columns = []
    for field in fields:
        column = batch.column(field.name)
        if not field.nullable and column.null_count:
            raise SchemaError(f"column '{field.name}' has rows without a value")
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as error:
            raise SchemaError(f"column '{field.name}' does not fit: {error}") from None
    return pa.record_batch(columns, schema=pa.schema(fields))


def check(schema: pa.Schema, wanted: pa.Schema) -> None:
    """Raises SchemaError if a schema does not fit, before any row is read."""
    names = schema.names
    if len(set(names)) != len(names):
        raise SchemaError("a column occurs twice")
    unknown = [name for name in names if name not in wanted.names]
    if unknown:
        raise SchemaError(f"column '{unknown[0]}' is unknown; known are {', '.join(wanted.names)}")
    for field in wanted:
        if field.name not in names:
            if not field.nullable:
                raise SchemaError(f"column '{field.name}' is missing")
        elif not _converts(schema.field(field.name).type, field.type):
            raise SchemaError(f"column '{field.name}' is {schema.field(field.name).type}, not {field.type}")


def _converts(given: pa.DataType, wanted: pa.DataType) -> bool:
    is_text: bool = pa.types.is_string(given) or pa.types.is_large_string(given)
    fits: bool = pa.types.is_null(given)
    if pa.types.is_binary(wanted):
        fits = fits or is_text or pa.types.is_binary(given) or pa.types.is_large_binary(given)
    elif pa.types.is_string(wanted):
        fits = fits or is_text
    elif pa.types.is_timestamp(wanted):
        fits = fits or pa.types.is_timestamp(given)
    else:
        fits = fits or pa.types.is_integer(given)
    return fits


def encode_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """A whole stream as bytes. For batches that fit in memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def stream_start(schema: pa.Schema) -> bytes:
    """The start of a stream. `stream_part` makes its parts, and `STREAM_END` ends it."""
    return schema.serialize().to_pybytes()  # type: ignore[no-any-return]


def stream_part(batch: pa.RecordBatch) -> bytes:
    return batch.serialize().to_pybytes()  # type: ignore[no-any-return]


STREAM_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read_batches(source: object) -> Iterator[pa.RecordBatch]:
    """The batches of a stream. The source is bytes or an object with `read`."""
    with pa.ipc.open_stream(source) as reader:
        yield from reader


def untrusted_batches(source: object, wanted: pa.Schema, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batches of a stream from an untrusted client. Arrow trusts its input, and crashes on some invalid input.

    Raises SchemaError when a batch does not fit `wanted` or is larger than `bytes_max`, and Arrow's own errors.
    """
    messages = pa.ipc.MessageReader.open_stream(source)
    first = next(iter(messages), None)
    if first is None or first.type != "schema":
        raise SchemaError("it does not begin with a schema")
    schema = pa.ipc.read_schema(first)
    check(schema, wanted)
    for message in messages:
        if message.type != "record batch":
            raise SchemaError(f"it has a {message.type} where a record batch should be")
        size_bytes = _expanded_bytes(message)
        if size_bytes > bytes_max:
            raise SchemaError(f"a record batch has {size_bytes:,} bytes, at most {bytes_max:,} are taken")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        yield batch


_RECORD_BATCH_BUFFERS: Final = 2
_RECORD_BATCH_COMPRESSION: Final = 3
_MESSAGE_HEADER: Final = 2


def _expanded_bytes(message: pa.ipc.Message) -> int:
    """The size of a record batch's body after decompression. Each compressed buffer begins with its real length.

    Arrow checked the metadata, a flatbuffer, when it read the message, but it has no API to read the metadata.
    """
    metadata, body = message.metadata, message.body
    batch = _follow(metadata, _field(metadata, _follow(metadata, 0), _MESSAGE_HEADER))
    if not _field(metadata, batch, _RECORD_BATCH_COMPRESSION):
        return int(body.size)
    buffers = _follow(metadata, _field(metadata, batch, _RECORD_BATCH_BUFFERS))
    (count,) = _UINT32.unpack_from(metadata, buffers)
    size = 0
    for number in range(count):
        offset, length = _BUFFER.unpack_from(metadata, buffers + _UINT32.size + number * _BUFFER.size)
        if length:
            if not 0 <= offset <= body.size - _INT64.size:
                raise SchemaError("a buffer lies outside of its record batch")
            (expanded,) = _INT64.unpack_from(body, offset)
            size += expanded if expanded >= 0 else length
    return size


_UINT32: Final = struct.Struct("<I")
_INT64: Final = struct.Struct("<q")
_BUFFER: Final = struct.Struct("<qq")


def _follow(data: pa.Buffer, at: int) -> int:
    """The position that the offset at `at` points to."""
    (offset,) = _UINT32.unpack_from(data, at)
    return at + int(offset)


def _field(data: pa.Buffer, table: int, number: int) -> int:
    """The position of a field in a table of a flatbuffer; 0 if the table lacks the field."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
    at = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", data, vtable + at) if at < vtable_bytes else (0,)
    return table + int(offset) if offset else 0


# -- ids, a column at a time

_NINE_DIGITS: Final = 62**9
_SIX_DIGITS: Final = 62**6
_THREE_DIGITS: Final = 62**3
_HIGH_LENGTH: Final = ids.TEXT_LENGTH - 9


@functools.cache
def _three_digit_texts() -> pa.Array:
    digits = [ids.digits_of(number, 1) for number in range(62)]
    return pa.array([a + b + c for a in digits for b in digits for c in digits])


def id_column(prefix: int, seqs: pa.Array) -> pa.Array:
    """The ids of many sequences of one partition: `ids.encode_many` on columns, without holding the GIL.

    Within one second an id is a constant plus its sequence. So the leading 18 digits are computed once per second, or
    twice because the sum can carry over. The last nine digits are looked up, three at a time.
    """
    if not len(seqs):
        return pa.array([], pa.string())
    seconds = pc.divide(seqs, US_PER_SECOND)
    distinct = pc.unique(seconds)
    index = pc.cast(pc.index_in(seconds, distinct), pa.int64())
    lows: list[int] = []
    highs: list[str] = []
    for second in distinct.to_pylist():
        high, low = divmod(ids.start_of_second(prefix, second), _NINE_DIGITS)
        lows.append(low)
        highs += [ids.digits_of(high, _HIGH_LENGTH), ids.digits_of(high + 1, _HIGH_LENGTH)]
    low = pc.add(pc.take(pa.array(lows, pa.int64()), index), seqs)
    carry = pc.cast(pc.greater_equal(low, _NINE_DIGITS), pa.int64())
    low = pc.subtract(low, pc.multiply(carry, _NINE_DIGITS))
    high = pc.take(pa.array(highs), pc.add(pc.multiply(index, 2), carry))
    texts = _three_digit_texts()
    first = pc.divide(low, _SIX_DIGITS)
    rest = pc.subtract(low, pc.multiply(first, _SIX_DIGITS))
    second = pc.divide(rest, _THREE_DIGITS)
    third = pc.subtract(rest, pc.multiply(second, _THREE_DIGITS))
    return pc.binary_join_element_wise(high, pc.take(texts, first), pc.take(texts, second), pc.take(texts, third), "")


def chosen(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The named columns of a schema, in its order. Without names: all but `text`, which repeats the payload."""
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise SchemaError(f"column '{unknown[0]}' is unknown; known are {', '.join(schema.names)}")
    return pa.schema([field for field in schema if (field.name in columns if columns else field.name != "text")])
