"""A payload for people: JSON that can be folded, text as it is, and anything else as a hex dump."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from markupsafe import Markup

from querator.limits import CONSOLE_JSON_DEPTH_MAX, CONSOLE_JSON_NODES_MAX, CONSOLE_PAYLOAD_BYTES_MAX

HEX_BYTES_PER_LINE: Final = 16


class Shown(NamedTuple):
    kind: str
    """`json`, `text` or `hex`."""
    body: Markup
    size: int
    is_cut: bool


def shown_payload(payload: bytes, encoding: str) -> Shown:
    """The encoding is only a hint: a payload that claims to be JSON may be something else."""
    cut = payload[:CONSOLE_PAYLOAD_BYTES_MAX]
    is_cut = len(payload) > CONSOLE_PAYLOAD_BYTES_MAX
    if not is_cut and (payload[:1] in (b"{", b"[") or "json" in encoding.lower()):
        try:
            return Shown("json", _Folded().fold(msgspec.json.decode(payload)), len(payload), False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _TooMuch):
            pass
    text = _text(cut, is_cut)
    if text is not None:
        return Shown("text", Markup("<pre>{}</pre>").format(text), len(payload), is_cut)
    return Shown("hex", Markup("<pre>{}</pre>").format(_hex(cut)), len(payload), is_cut)


class _TooMuch(Exception):
    """More JSON than is worth folding."""


class _Folded:
    """JSON as nested lists that open and close without a script."""

    def __init__(self) -> None:
        self._left = CONSOLE_JSON_NODES_MAX

    def fold(self, value: Any, key: str = "", depth: int = 0) -> Markup:
        self._left -= 1
        if self._left < 0 or depth > CONSOLE_JSON_DEPTH_MAX:
            raise _TooMuch
        if isinstance(value, dict) and value:
            parts = [
                self.fold(one, Markup('<span class="jk">{}</span>: ').format(_json(name)), depth + 1)
                for name, one in value.items()
            ]
            return self._group(key, "{", parts, "}", len(value), depth)
        if isinstance(value, list) and value:
            return self._group(key, "[", [self.fold(one, depth=depth + 1) for one in value], "]", len(value), depth)
        kind = (
            "js" if isinstance(value, str) else "jn" if isinstance(value, int | float) and value is not True else "jl"
        )
        return Markup('<span class="leaf mono">{}<span class="{}">{}</span></span>').format(key, kind, _json(value))

    @staticmethod
    def _group(key: str, begin: str, parts: list[Markup], end: str, count: int, depth: int) -> Markup:
        opened = Markup(" open") if depth < 2 or count <= 3 else Markup("")
        return Markup('<details class="fold mono"{}><summary>{}{} <small>{}</small> {}</summary>{}</details>').format(
            opened, key, begin, count, end, Markup("").join(parts)
        )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text(payload: bytes, is_cut: bool) -> str | None:
    for missing in range(4 if is_cut else 1):  # the cut may be inside a character
        try:
            text = payload[: len(payload) - missing].decode()
        except UnicodeDecodeError:
            continue
        return text if all(c.isprintable() or c in "\n\t\r" for c in text) else None
    return None


def _hex(payload: bytes) -> str:
    lines = []
    for offset in range(0, len(payload), HEX_BYTES_PER_LINE):
        part = payload[offset : offset + HEX_BYTES_PER_LINE]
        codes = " ".join(f"{byte:02x}" for byte in part)
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{offset:08x}  {codes:<{HEX_BYTES_PER_LINE * 3 - 1}}  {text}")
    return "\n".join(lines)
