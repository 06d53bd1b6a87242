"""Texts on their way to a terminal or a log. Names and messages may come from anybody, so no output shows them raw."""

from __future__ import annotations

import re
from typing import Final

_CONTROLS_IN_JSON: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""JSON escapes the first 32 characters itself. These are DEL, the second set of controls, and changes of direction."""


def visible(text: str) -> str:
    """The text on one line, with control characters spelled out: it cannot drive a terminal or look like two lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible_json(text: str) -> str:
    """JSON with the same value, in which no control character stands as itself."""
    return _CONTROLS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
