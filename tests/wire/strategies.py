"""Hypothesis strategies made from the schema: any message, and bodies that are almost valid JSON for it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from querator import times
from querator.wire import access_messages, messages, schema
from querator.wire.messages import Message

KINDS: list[type[Message]] = [
    kind
    for module in (messages, access_messages)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, Message)
    and kind.__module__ == module.__name__
    and kind is not Message
]
HOT: list[type[Message]] = [
    messages.QueueProduceRequest,
    messages.QueueLeaseRequest,
    messages.QueueCompleteRequest,
    messages.QueueLeaseResponse,
    messages.StorageItemsImportRequest,
    messages.QueueStatsResponse,
    messages.ItemsInspectResponse,
    messages.Reply,
]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", ":", '":', '\\":', '" :', "\\"]
)
TIME = st.integers(times.MIN_US, times.MAX_US)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXT,
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "bool": st.booleans(),
    "bytes": st.binary(max_size=8),
    "timestamp": TIME,
    "map": st.dictionaries(TEXT, TEXT, max_size=3),
}


def message(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Any value of this message. Each field may be set or not."""
    fields = {}
    for field in schema.fields(kind):
        value = message(field.child) if field.child else _VALUES[field.kind]
        fields[field.attribute] = st.lists(value, max_size=3) if field.repeated else value
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: kind(**values))


# -- bodies that a careless or hostile client may send

_SPACE = st.sampled_from(["", "", "", "", " ", "\n", "\t \r"])
_ODD_NUMBERS = [
    "0",
    "-0",
    "1",
    "1.0",
    "1e0",
    "10e-1",
    "01",
    "1.5",
    "1e400",
    "9" * 30,
    "2147483648",
    '"1"',
    '"01"',
    '" 1"',
]
_ODD_BASE64 = ['"YQ=="', '"YQ"', '"YR=="', '"-_-_"', '"+_+_"', '"YW\\nJj"', '"Y"']
_ODD_STRINGS = ['"\\u003a"', '"\\ud800"', '"\\x"', '"a\x01"']
_ODD_TIMES = [f'"{time}"' for time in ("2030-01-02T3:04:05,5+24:00", "2030-01-02t03:04:05z", "0000-01-01T00:00:00Z")]
_SCALARS = st.one_of(
    TEXT.map(json.dumps),
    TEXT.map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(["null", "true", "false", "NaN", "[]", "{}"]),
    st.sampled_from(_ODD_NUMBERS + _ODD_BASE64 + _ODD_STRINGS + _ODD_TIMES),
)


@st.composite
def body(draw: st.DrawFn, kind: type[Message]) -> str:
    """Mostly valid JSON for the message, in any spelling and with any mistake."""
    members = []
    for field in draw(st.lists(st.sampled_from(schema.fields(kind) or (None,)), max_size=4)):
        if field is None:
            continue
        name = draw(st.sampled_from([field.json_name, field.json_name, schema.proto_names(kind)[field.json_name]]))
        if draw(st.integers(0, 30)) == 0:
            name = draw(TEXT)
        members.append(f"{_quoted(draw, name)}{draw(_SPACE)}:{draw(_SPACE)}{_value(draw, field)}")
    inside = f"{draw(_SPACE)},{draw(_SPACE)}".join(members)
    return f"{draw(_SPACE)}{{{draw(_SPACE)}{inside}{draw(_SPACE)}}}{draw(_SPACE)}"


def _quoted(draw: st.DrawFn, name: str) -> str:
    return f'"\\u{ord(name[0]):04x}{name[1:]}"' if name and draw(st.integers(0, 30)) == 0 else json.dumps(name)


def _value(draw: st.DrawFn, field: schema.Field) -> str:
    if draw(st.integers(0, 5)) == 0:
        return draw(_SCALARS)
    if field.repeated:
        items = [_one(draw, field) for _ in range(draw(st.integers(0, 3)))]
        return "[" + f"{draw(_SPACE)},{draw(_SPACE)}".join(items) + "]"
    return _one(draw, field)


def _one(draw: st.DrawFn, field: schema.Field) -> str:
    if field.child:
        return draw(body(field.child))
    if draw(st.integers(0, 5)) == 0:
        return draw(_SCALARS)
    value = draw(_VALUES[field.kind])
    if field.kind == "bytes":
        return json.dumps(value.hex() + "0" * (-2 * len(value) % 4))
    if field.kind == "timestamp":
        return json.dumps(times.text(value))
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


_INSERTED = [b"", *(bytes([byte]) for byte in b' "\\:,{}[]0\n\x00\xff\xc3n')]


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    """The same with a few bytes removed, added or changed."""
    data = bytearray(text.encode())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([*b' "\\:,{}[]0\n\x00\xff\xc3n']).map(lambda b: bytes([b])) | st.just(b"")
        )
    return bytes(data)
