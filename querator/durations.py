"""Durations as text, such as `1m30s`, to and from nanoseconds.

The grammar, the 64-bit range and the error texts are those of Go's time package, because existing clients send and show
these (wire contract 2.0).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DAY_NS: Final = 24 * _UNIT_NS["h"]
_LIMIT: Final = 1 << 63
_FRACTION_MAX: Final = _LIMIT - 1
_TERM: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)", re.DOTALL)
_CACHED_TEXT_LENGTH_MAX: Final = 32


def parse(text: str) -> int:
    """Nanoseconds. Raises ValueError with the text that the wire contract inserts into its messages."""
    if len(text) <= _CACHED_TEXT_LENGTH_MAX:
        return _parse_cached(text)
    return _parse(text)


def _parse(text: str) -> int:
    position = 1 if text.startswith(("-", "+")) else 0
    if text[position:] == "0":
        return 0
    if position == len(text):
        raise _invalid(text)
    total = 0
    while position < len(text):
        term = _TERM.match(text, position)
        assert term is not None  # the pattern also matches the empty text
        digits, fraction, unit = term.groups()
        if not digits and not fraction:
            raise _invalid(text)
        value = _whole(digits, text)
        if not unit:
            raise ValueError(f"time: missing unit in duration {_quoted(text)}")
        if unit not in _UNIT_NS:
            raise ValueError(f"time: unknown unit {_quoted(unit)} in duration {_quoted(text)}")
        total += value * _UNIT_NS[unit] + _part(fraction or "", _UNIT_NS[unit])
        if total > _LIMIT:
            raise _invalid(text)
        position = term.end()
    if text[0] == "-":
        return -total
    if total == _LIMIT:  # the most negative duration has no positive counterpart
        raise _invalid(text)
    return total


_parse_cached = lru_cache(maxsize=1024)(_parse)  # nearly all requests have the same few timeouts


def _whole(digits: str, text: str) -> int:
    significant = digits.lstrip("0") or "0"
    # Check the length first: int() refuses very long texts with an error of its own.
    if len(significant) > len(str(_LIMIT)) or int(significant) > _LIMIT:
        raise _invalid(text)
    return int(significant)


def _part(fraction: str, unit_ns: int) -> int:
    """The fraction of a unit in nanoseconds. Digits beyond 63 bits are cut off, and the product is a float."""
    value, scale = 0, 1.0
    for digit in fraction:
        longer = value * 10 + int(digit)
        if value > _FRACTION_MAX // 10 or longer > _LIMIT:
            break
        value, scale = longer, scale * 10
    return int(value * (unit_ns / scale))


def _invalid(text: str) -> ValueError:
    return ValueError(f"time: invalid duration {_quoted(text)}")


def _quoted(text: str) -> str:
    parts = ['"']
    for byte in text.encode("utf-8", "surrogatepass"):
        if byte in b'"\\':
            parts.append("\\" + chr(byte))
        elif byte < 0x20 or byte >= 0x80:
            parts.append(f"\\x{byte:02x}")
        else:
            parts.append(chr(byte))
    return "".join(parts) + '"'


def text(ns: int) -> str:
    """Text such as `0s`, `1.5ms` or `1h2m3.5s`. Below a second it has the largest unit that fits."""
    if ns == 0:
        return "0s"
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    if ns < 1_000:
        return f"{sign}{ns}ns"
    if ns < 1_000_000:
        return f"{sign}{_decimal(ns, 3)}\u00b5s"
    if ns < 1_000_000_000:
        return f"{sign}{_decimal(ns, 6)}ms"
    minutes, below_minute_ns = divmod(ns, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(below_minute_ns, 9)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else sign + seconds


def parse_days(text: str) -> int:
    """Like `parse`, with days in front: `30d`, `1d12h`. For fields that clients of the original service lack."""
    days, mark, rest = text.partition("d")
    if not mark or not (days.isascii() and days.isdigit()):
        return parse(text)
    total = _whole(days, text) * _DAY_NS + (parse(rest) if rest else 0)
    if total >= _LIMIT:
        raise _invalid(text)
    return total


def text_days(ns: int) -> str:
    """`30d` for whole days, otherwise the same as `text`."""
    return text(ns) if ns % _DAY_NS or not ns else f"{ns // _DAY_NS}d"


def _decimal(value: int, digits: int) -> str:
    whole, rest = divmod(value, 10**digits)
    return f"{whole}.{rest:0{digits}d}".rstrip("0") if rest else str(whole)
