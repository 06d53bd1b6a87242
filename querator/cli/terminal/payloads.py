"""Shows a payload to a person: JSON with indentation, text as it is, anything else as a hex dump."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec

HEX_BYTES_PER_LINE: Final = 16


def pretty(payload: bytes, encoding: str) -> Iterator[str]:
    """The lines to print. The encoding is only a hint: a payload that claims to be JSON may be something else."""
    text = _text(payload)
    if text is None:
        yield from hex_dump(payload)
        return
    kind = encoding.lower().partition(";")[0].strip()
    if payload[:1] in (b"{", b"[") or kind == "json" or kind.endswith(("/json", "+json")):
        with contextlib.suppress(msgspec.DecodeError):
            text = msgspec.json.format(payload, indent=2).decode()
    yield from text.removesuffix("\n").split("\n")


def _text(payload: bytes) -> str | None:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return text if all(c.isprintable() or c in "\n\t\r" for c in text) else None


def hex_dump(payload: bytes) -> Iterator[str]:
    for offset in range(0, len(payload), HEX_BYTES_PER_LINE):
        part = payload[offset : offset + HEX_BYTES_PER_LINE]
        codes = " ".join(f"{byte:02x}" for byte in part)
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{offset:08x}  {codes:<{HEX_BYTES_PER_LINE * 3 - 1}}  {text}"
