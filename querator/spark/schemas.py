"""The schemas of `wire.arrow` as Spark types, and the check whether a DataFrame can be written to a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from querator.errors import UsageError
from querator.wire import arrow

_FITTING: Final[dict[str, tuple[type[DataType], ...]]] = {
    "binary": (BinaryType, StringType),
    "text": (StringType,),
    "time": (TimestampType, TimestampNTZType),
    "number": (IntegerType, LongType, ShortType),
}


def read_schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(f.name, _spark_type(f.type), f.nullable) for f in arrow.chosen(arrow.ITEM, columns)])


def _kind(type_: pa.DataType) -> str:
    if pa.types.is_binary(type_):
        return "binary"
    if pa.types.is_string(type_):
        return "text"
    return "time" if pa.types.is_timestamp(type_) else "number"


def _spark_type(type_: pa.DataType) -> Any:
    return {"binary": BinaryType(), "text": StringType(), "time": TimestampType(), "number": IntegerType()}[
        _kind(type_)
    ]


def check_writable(schema: StructType) -> pa.Schema:
    """The Arrow schema to write a DataFrame with: new items or stored items. Raises before a job starts."""
    names = schema.fieldNames()
    wanted = arrow.PRODUCED if set(names) <= set(arrow.PRODUCED.names) else arrow.IMPORTED
    unknown = [name for name in names if name not in wanted.names]
    if unknown:
        raise UsageError(f"column '{unknown[0]}' cannot be written; a queue takes {', '.join(wanted.names)}")
    if "payload" not in names:
        raise UsageError("column 'payload' is missing: a queue needs one, of type string or binary")
    for field in schema.fields:
        fitting = _FITTING[_kind(wanted.field(field.name).type)]
        if not isinstance(field.dataType, fitting):
            described = " or ".join(sorted(type_().simpleString() for type_ in fitting))
            raise UsageError(f"column '{field.name}' is {field.dataType.simpleString()}, not {described}")
    return wanted
