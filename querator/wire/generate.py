"""Generates the `*_pb2.py` modules from the `.proto` files: `python -m querator.wire.generate [--check]`.

With `--check` it writes nothing, and exits with 1 if a module differs from its `.proto` file. It needs grpcio-tools,
which only developers install.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Final

FILES: Final = ("querator/wire/duh.proto", "querator/wire/querator.proto")
_ROOT: Final = Path(__file__).resolve().parents[2]


def _protoc(*arguments: str) -> None:
    from grpc_tools import protoc  # type: ignore[import-untyped]

    well_known = Path(protoc.__file__).with_name("_proto")
    if protoc.main(["protoc", f"-I{_ROOT}", f"-I{well_known}", *arguments, *FILES]) != 0:
        raise SystemExit(1)


def generate() -> None:
    _protoc(f"--python_out={_ROOT}")


def stale() -> list[str]:
    """The `.proto` files whose module differs. Compares descriptors, because the text differs by compiler version."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with tempfile.TemporaryDirectory() as directory:
        compiled = Path(directory, "compiled")
        _protoc(f"--descriptor_set_out={compiled}")
        wanted = {file.name: file for file in FileDescriptorSet.FromString(compiled.read_bytes()).file}
    found = []
    for name in FILES:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        wanted[name].ClearField("source_code_info")
        present = type(wanted[name]).FromString(module.DESCRIPTOR.serialized_pb)
        # The compiler writes every json_name into a descriptor set, but only the given ones into a module.
        for file in (wanted[name], present):
            for message in file.message_type:
                for field in message.field:
                    field.json_name = field.json_name or _camel_case(field.name)
                del message.nested_type[:]  # map entries follow from their field
        if wanted[name] != present:
            found.append(name)
    return found


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        for file_name in stale():
            sys.exit(f"{file_name} has changed: run python -m querator.wire.generate")
    else:
        generate()
