"""What the codecs know about a message, derived from its struct and from the generated protobuf class.

Nothing is listed here. The fields come from `messages.py`, their other names and their numbers from `querator.proto`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, cast

import msgspec.inspect

from querator.wire.messages import Message, Reply


class Field(NamedTuple):
    attribute: str
    json_name: str
    kind: str
    """`string`, `int32`, `int64`, `bool`, `bytes`, `timestamp`, `message` or `map`."""
    repeated: bool
    child: type[Message] | None
    """The message type of a `message` field."""


@cache
def fields(kind: type[Message]) -> tuple[Field, ...]:
    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.StructType)
    return tuple(_field(field) for field in described.fields)


def _field(field: msgspec.inspect.Field) -> Field:
    described: Any = field.type
    repeated = isinstance(described, msgspec.inspect.ListType)
    if repeated:
        described = described.item_type
    if isinstance(described, msgspec.inspect.UnionType):
        (described,) = (one for one in described.types if not isinstance(one, msgspec.inspect.NoneType))
    child: type[Message] | None = None
    match described:
        case msgspec.inspect.StrType():
            kind = "string"
        case msgspec.inspect.IntType():
            kind = "int32" if described.le == (1 << 31) - 1 else "int64"
        case msgspec.inspect.BoolType():
            kind = "bool"
        case msgspec.inspect.BytesType():
            kind = "bytes"
        case msgspec.inspect.CustomType():
            kind = "timestamp"
        case msgspec.inspect.DictType():
            kind = "map"
        case msgspec.inspect.StructType():
            kind, child = "message", cast(type[Message], described.cls)
        case _:
            raise TypeError(f"no wire type for {field.name}: {described}")
    return Field(field.name, field.encode_name, kind, repeated, child)


@cache
def generated(kind: type[Message]) -> Any:
    """The protobuf class. The import is here, so that a client that speaks only JSON does not load protobuf."""
    from querator.wire import duh_pb2, querator_pb2

    return getattr(duh_pb2 if kind is Reply else querator_pb2, kind.__name__)


@cache
def proto_names(kind: type[Message]) -> dict[str, str]:
    """The proto name of each field, by its JSON name."""
    return {field.json_name: field.name for field in generated(kind).DESCRIPTOR.fields}
