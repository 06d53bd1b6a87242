"""Messages to and from protobuf's binary form (wire contract 1.3, 1.9).

Times are not checked here: any seconds and nanoseconds become microseconds, and the service refuses times that RFC 3339
cannot express. Unknown fields are ignored, as usual with protobuf.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from keyword import iskeyword
from typing import Any, Final, TypeVar

from querator.errors import ContentError
from querator.limits import BATCH_ITEMS_MAX, NS_PER_US, US_PER_SECOND
from querator.wire import schema, wireformat
from querator.wire.messages import Message, QueueProduceItem, QueueRetryItem
from querator.wire.wireformat import sized

M = TypeVar("M", bound=Message)

INVALID_DATA: Final = "proto: cannot parse invalid wire-format data"
INVALID_TEXT: Final = "string field contains invalid UTF-8"
_IS_COMPILED: Final = not (wireformat.__file__ or "").endswith(".py")
"""In plain Python, reading byte by byte would cost more than the generated classes."""
_BATCHED: Final = (QueueProduceItem, QueueRetryItem)
"""A request with more than BATCH_ITEMS_MAX of these is refused, and the answer says how many there were. So a list of
them has all messages up to the bound, and repeats the last one of these in place of each further one: a body can have
millions of empty messages.
"""


def decode(kind: type[M], body: bytes) -> M:
    """Raises ContentError."""
    if _IS_COMPILED:
        message: M | None = wireformat.read(_RULES.get(kind) or _prepare(kind), body)
        if message is not None:
            return message
    return _decoder(kind)(body)  # type: ignore[no-any-return]


def encode(message: Message) -> bytes:
    return _writer(type(message))(message)


def _time_to_us(time: Any) -> int:
    us: int = time.seconds * US_PER_SECOND + time.nanos // NS_PER_US
    return us


def _entries(tag: bytes, texts: dict[str, str]) -> bytes:
    """A map of texts, which is a list of messages with a key and a value. Empty ones of them are left out."""
    entries = []
    for key, value in texts.items():
        entry = _KEY + sized(key.encode()) if key else b""
        entries.append(tag + sized(entry + _VALUE + sized(value.encode()) if value else entry))
    return b"".join(entries)


_KEY: Final = wireformat.tag(1, wireformat.LENGTH)
_VALUE: Final = wireformat.tag(2, wireformat.LENGTH)


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


_RULES: Final[dict[type[Message], wireformat.MessageRule]] = {}
_FORMS: Final = {
    ("string", False): wireformat.TEXT,
    ("bytes", False): wireformat.DATA,
    ("int32", False): wireformat.NUMBER,
    ("bool", False): wireformat.FLAG,
    ("string", True): wireformat.TEXTS,
    ("message", True): wireformat.MESSAGES,
}
"""The fields that `wireformat.read` understands, by their kind and whether they are repeated."""


def _prepare(kind: type[Message]) -> wireformat.MessageRule:
    fields = {}
    for position, field in enumerate(schema.fields(kind)):
        described, number = _described(kind, field)
        form = _FORMS.get((field.kind, field.repeated))
        if form is None or (described.has_presence and not field.repeated):
            continue
        wire_type = wireformat.VARINT if form in (wireformat.NUMBER, wireformat.FLAG) else wireformat.LENGTH
        child = None if field.child is None else _prepare(field.child)
        most = BATCH_ITEMS_MAX if field.child in _BATCHED else sys.maxsize
        fields[number << 3 | wire_type] = wireformat.FieldRule(position, form, child, most)
    empty = kind()
    defaults = [getattr(empty, field.attribute) for field in schema.fields(kind)]
    rule = _RULES[kind] = wireformat.MessageRule(kind, defaults, fields)
    return rule


# A reader or writer is one expression over all fields of a message, compiled once from the schema. A loop over the
# fields would cost more than all other work on an item.


@cache
def _reader(kind: type[Message]) -> Callable[[Any], Any]:
    """A function that turns an object of the generated class into a struct."""
    names: dict[str, Any] = {"kind": kind, "time": _time_to_us, "batch": _batch}
    arguments = []
    for position, field in enumerate(schema.fields(kind)):
        name = schema.proto_names(kind)[field.json_name]
        value = f"getattr(m, {name!r})" if iskeyword(name) else f"m.{name}"
        if field.child is not None:
            names[f"child{position}"] = _reader(field.child)
            inner = f"child{position}"
            many = f"batch({inner}, {value})" if field.child in _BATCHED else f"list(map({inner}, {value}))"
            value = many if field.repeated else f"{inner}({value})"
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


def _batch(read: Callable[[Any], Any], generated: Any) -> list[Any]:
    if len(generated) <= BATCH_ITEMS_MAX:
        return list(map(read, generated))
    messages = list(map(read, generated[:BATCH_ITEMS_MAX]))
    return messages + messages[-1:] * (len(generated) - BATCH_ITEMS_MAX)


@cache
def _writer(kind: type[Message]) -> Callable[[Any], bytes]:
    """A function that encodes a struct. A default is not written. Neither is None, which means unset."""
    names: dict[str, Any] = {}
    pieces = [_piece(kind, field, names) for field in schema.fields(kind)]
    return eval(f"lambda m: b''.join(({', '.join([*pieces, ''])}))", names)  # type: ignore[no-any-return]


def _piece(kind: type[Message], field: schema.Field, names: dict[str, Any]) -> str:
    """An expression for the bytes of one field of the struct `m`. Adds the names that it uses."""
    described, number = _described(kind, field)
    names |= {"sized": sized, "time": wireformat.time, "varint": wireformat.varint, "entries": _entries}
    is_number = field.kind in ("int32", "int64", "bool")
    names[f"tag{number}"] = wireformat.tag(
        number, wireformat.VARINT if is_number and not field.repeated else wireformat.LENGTH
    )
    value = f"m.{field.attribute}"
    if field.child is not None:
        names[f"child{number}"] = _writer(field.child)
        piece = f"tag{number} + sized(child{number}({value}))"
        if field.repeated:
            piece = f"b''.join([tag{number} + sized(child{number}(v)) for v in {value}])"
    elif field.kind == "map":
        piece = f"entries(tag{number}, {value})"
    elif not field.repeated:
        piece = f"tag{number} + " + _WRITTEN[field.kind].format(value)
    elif is_number:
        piece = f"tag{number} + sized(b''.join([varint(v) for v in {value}]))"
    else:
        piece = f"b''.join([tag{number} + {_WRITTEN[field.kind].format('v')} for v in {value}])"
    is_set = " is not None" if not field.repeated and described.has_presence else ""
    assert field.kind not in ("string", "bytes") or not is_set, "no message has an optional text"
    return f"({piece} if {value}{is_set} else b'')"


def _described(kind: type[Message], field: schema.Field) -> tuple[Any, int]:
    described = schema.generated(kind).DESCRIPTOR.fields_by_name[schema.proto_names(kind)[field.json_name]]
    return described, described.number


_WRITTEN: Final = {
    "string": "sized({0}.encode())",
    "bytes": "sized({0})",
    "timestamp": "time({0})",
    "int32": "varint({0})",
    "int64": "varint({0})",
    "bool": "varint({0})",
}
"""How a value is written behind its tag, by its kind."""
