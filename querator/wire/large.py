"""Large produce requests in JSON, whose texts are cut out of the body before it is decoded.

The payload of an item is bytes. A text without escapes is these bytes already. To look at each of its characters, to
decode it and to encode it again would take most of the loop's time for a large request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from querator.wire.messages import QueueProduceItem

_KEY = b'"utf8":'
_PLACEHOLDER = b"-"
_GAP_BYTES_MAX = 4_096
"""A text that begins further behind the one before it is not looked for, and neither are those behind it."""
_TEXT_BYTES_MIN = 400
"""To decode a shorter text costs less than to look for it."""


def cut(body: bytes) -> tuple[bytes, list[bytes]] | None:
    """The body with a placeholder in place of each text, and the texts. None if a character of the body needs a closer
    look, if the texts are short on average, or if they are not most of the body.

    Without backslashes each quote begins or ends a string. So what stands between two quotes is a string or, in an
    invalid body, something between strings. A placeholder there does not make an invalid body valid. It can make a
    valid body invalid, if the string was a key: then the caller decodes the whole body.
    """
    if b"\\" in body or not _is_plain(body):
        return None
    rest = bytearray()
    texts: list[bytes] = []
    at = found = 0
    while (key := body.find(_KEY, at, at + _GAP_BYTES_MAX)) >= 0:
        start = body.find(b'"', key + len(_KEY)) + 1
        end = body.find(b'"', start)
        found += 1
        if not start or end < found * _TEXT_BYTES_MIN:
            return None
        rest += body[at:start]
        if start < end:
            rest += _PLACEHOLDER
            texts.append(body[start:end])
        at = end
    rest += body[at:]
    return (bytes(rest), texts) if 2 * len(rest) < len(body) else None


def put_back(items: Sequence[QueueProduceItem], texts: Sequence[bytes]) -> bool:
    """Gives the items of the decoded rest their texts. False if a text was not that of an item."""
    with_placeholder = [item for item in items if item.utf8]
    if len(with_placeholder) != len(texts):
        return False
    for item, text in zip(with_placeholder, texts, strict=True):
        item.utf8 = ""
        item.bytes_ = item.bytes_ or text
    return True


def _is_plain(body: bytes) -> bool:
    """Whether the body consists of printable ASCII. False if nobody has needed pyarrow yet, which takes long to import.
    The apply of the first large items needs it.
    """
    # Another thread may be in the middle of the import: then the module has no such function yet.
    min_max: Any = getattr(sys.modules.get("pyarrow.compute"), "min_max", None)
    if min_max is None:
        return False
    import pyarrow as pa

    # As signed numbers, the bytes beyond ASCII are negative.
    numbers = pa.Array.from_buffers(pa.int8(), len(body), [None, pa.py_buffer(body)])
    return int(min_max(numbers)["min"].as_py()) >= ord(" ")
