"""The structs agree with the `.proto` files."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from querator.wire import schema
from querator.wire.messages import Message, Reply
from tests.wire.strategies import KINDS

TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
}


def described(field: Any) -> tuple[str, bool, str]:
    """Type, repeated and message type of a field of the generated class."""
    if field.message_type is None:
        return TYPES[field.type], field.is_repeated, ""
    if field.message_type.GetOptions().map_entry:
        return "map", False, ""
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return "timestamp", field.is_repeated, ""
    return "message", field.is_repeated, field.message_type.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_struct_has_the_fields_of_its_proto_message(kind: type[Message]) -> None:
    ours = [(f.json_name, (f.kind, f.repeated, f.child.__name__ if f.child else "")) for f in schema.fields(kind)]
    assert ours == [(f.json_name, described(f)) for f in schema.generated(kind).DESCRIPTOR.fields]


def test_every_proto_message_has_a_struct() -> None:
    from querator.wire import duh_pb2, querator_pb2

    generated = {*querator_pb2.DESCRIPTOR.message_types_by_name, *duh_pb2.DESCRIPTOR.message_types_by_name}
    assert generated == {kind.__name__ for kind in KINDS}


def test_the_messages_are_in_the_packages_that_clients_know() -> None:
    assert {schema.generated(kind).DESCRIPTOR.file.package for kind in KINDS if kind is not Reply} == {"querator"}
    assert schema.generated(Reply).DESCRIPTOR.full_name == "duh.v1.Reply"


def test_the_generated_modules_are_up_to_date() -> None:
    pytest.importorskip("grpc_tools")
    from querator.wire import generate

    assert generate.stale() == [], "run python -m querator.wire.generate"
