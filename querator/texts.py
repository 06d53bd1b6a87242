"""Makes texts safe for a terminal or a log, and for readers who may not see paths of the daemon's machine. Names and
messages can come from anybody, so no output shows them raw.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROLS_IN_JSON: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""JSON itself escapes the first 32 characters. These are DEL, the C1 controls, and changes of text direction."""

_QUOTED_PATH: Final = re.compile(r"""(["'])/(?:[^"']*/)?([^"'/]*)\1""")
_PATH: Final = re.compile(r"""(?<![^\s(=:"'])(?:file://)?/(?:[^\s/"']+/)*(?=[^\s/])""")
"""The directories of an absolute path. The slashes of other URLs do not begin one."""

_ESCAPE: Final = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def visible(text: str) -> str:
    """The text on one line, with control characters escaped. It cannot control a terminal or look like two lines."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escaped(text: str) -> str:
    """The text with control characters and backslashes escaped, so that no two texts look the same."""
    return visible(text.replace("\\", "\\\\"))


def unescaped(text: str) -> str:
    """The text that `escaped` was given."""
    return _ESCAPE.sub(lambda found: found[0].encode().decode("unicode_escape"), text)


def visible_json(text: str) -> str:
    """JSON with the same value, in which all control characters are escaped."""
    return _CONTROLS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def without_paths(text: str) -> str:
    """The text with only the last part of each absolute path: `cannot read "/srv/q/x.duckdb"` loses `/srv/q/`."""
    return _PATH.sub("", _QUOTED_PATH.sub(r"\1\2\1", text))
