"""Messages to and from protobuf's binary form (wire contract 1.3, 1.9).

Times are not checked here: any seconds and nanoseconds become microseconds, and the service refuses times that RFC 3339
cannot express. Unknown fields are ignored, as usual with protobuf.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from keyword import iskeyword
from typing import Any, Final, TypeVar

from querator.errors import ContentError
from querator.limits import NS_PER_US, US_PER_SECOND
from querator.wire import schema
from querator.wire.messages import Message

M = TypeVar("M", bound=Message)

INVALID_DATA: Final = "proto: cannot parse invalid wire-format data"
INVALID_TEXT: Final = "string field contains invalid UTF-8"


def decode(kind: type[M], body: bytes) -> M:
    """Raises ContentError."""
    message: M = _decoder(kind)(body)
    return message


def encode(message: Message) -> bytes:
    data: bytes = _writer(type(message))(message).SerializeToString()
    return data


def _time_to_us(time: Any) -> int:
    us: int = time.seconds * US_PER_SECOND + time.nanos // NS_PER_US
    return us


@lru_cache(maxsize=256)  # items of one lease have the same deadline
def _time_from_us(us: int | None) -> Any:
    from google.protobuf.timestamp_pb2 import Timestamp

    if us is None:
        return None
    seconds, fraction = divmod(us, US_PER_SECOND)
    return Timestamp(seconds=seconds, nanos=fraction * NS_PER_US)


# google.protobuf is imported with the first message in protobuf. Most clients speak JSON.


@cache
def _decoder(kind: type[Message]) -> Callable[[bytes], Any]:
    from google.protobuf.message import DecodeError

    parse, read = schema.generated(kind).FromString, _reader(kind)

    def decoder(body: bytes) -> Any:
        try:
            generated = parse(body)
        except DecodeError as error:
            raise ContentError(INVALID_TEXT if "UTF-8" in str(error) else INVALID_DATA) from None
        return read(generated)

    return decoder


# A reader or writer is one expression over all fields of a message, compiled once from the schema. A loop over the
# fields would cost more than all other work on an item.


@cache
def _reader(kind: type[Message]) -> Callable[[Any], Any]:
    """A function that turns an object of the generated class into a struct."""
    names: dict[str, Any] = {"kind": kind, "time": _time_to_us}
    arguments = []
    for position, field in enumerate(schema.fields(kind)):
        name = schema.proto_names(kind)[field.json_name]
        value = f"getattr(m, {name!r})" if iskeyword(name) else f"m.{name}"
        if field.child is not None:
            names[f"child{position}"] = _reader(field.child)
            inner = f"child{position}"
            value = f"list(map({inner}, {value}))" if field.repeated else f"{inner}({value})"
        elif field.repeated:
            value = f"list({value})"
        elif field.kind == "map":
            value = f"dict({value})"
        elif field.kind == "timestamp":
            value = f"time({value})"
        if not field.repeated and schema.generated(kind).DESCRIPTOR.fields_by_name[name].has_presence:
            value = f"{value} if m.HasField({name!r}) else None"
        arguments.append(value)
    return eval(f"lambda m: kind({', '.join(arguments)})", names)  # type: ignore[no-any-return]


@cache
def _writer(kind: type[Message]) -> Callable[[Any], Any]:
    """A function that turns a struct into an object of the generated class. None means unset."""
    names: dict[str, Any] = {"generated": schema.generated(kind), "time": _time_from_us}
    arguments = []
    for position, field in enumerate(schema.fields(kind)):
        value = f"m.{field.attribute}"
        if field.child is not None:
            names[f"child{position}"] = _writer(field.child)
            inner = f"child{position}"
            value = f"map({inner}, {value})" if field.repeated else f"({value} and {inner}({value}))"
        elif field.kind == "timestamp":
            value = f"time({value})"
        arguments.append(f"{schema.proto_names(kind)[field.json_name]!r}: {value}")
    return eval(f"lambda m: generated(**{{{', '.join(arguments)}}})", names)  # type: ignore[no-any-return]
