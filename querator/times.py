"""Times as RFC 3339 text, to and from microseconds since 1970 (UTC).

Only the years 1 to 9999 have a text. A protobuf request can carry a time outside of them; `is_expressible` detects it.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import Final

from querator.limits import US_PER_SECOND

MIN_US: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z"""
MAX_US: Final = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z"""

_SECONDS_PER_DAY: Final = 86_400
_DAYS_TO_1970: Final = date(1970, 1, 1).toordinal()
_DAYS_PER_400_YEARS: Final = 146_097
_TWO_DIGITS: Final = [f"{number:02d}" for number in range(60)]
_THREE_DIGITS: Final = [f"{number:03d}" for number in range(1_000)]
_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]{1,9}))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)


class OutOfRange(ValueError):
    """A well-formed time outside the years 1 to 9999."""


def is_expressible(us: int) -> bool:
    return MIN_US <= us <= MAX_US


@lru_cache(maxsize=4096)  # items of one request often have the same time
def parse(text: str) -> int:
    """Microseconds since 1970. Finer digits are cut off. Raises ValueError."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"not an RFC 3339 time: {text}")
    day, hour_text, minute_text, second_text, fraction, sign, offset_hours, offset_minutes = found.groups()
    hour, minute, second = int(hour_text), int(minute_text), int(second_text)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"no such time of day: {text}")
    whole = _day_start(day) + hour * 3_600 + minute * 60 + second
    if sign:
        # Offsets of 24 hours or 60 minutes occur in practice, so they are accepted.
        if int(offset_hours) > 24 or int(offset_minutes) > 60:
            raise ValueError(f"no such offset: {text}")
        offset = int(offset_hours) * 3_600 + int(offset_minutes) * 60
        whole += offset if sign == "-" else -offset
    us = whole * US_PER_SECOND
    if fraction:
        us += int(fraction[:6].ljust(6, "0"))
    if not MIN_US <= us <= MAX_US:
        raise OutOfRange(f"the year must be between 1 and 9999: {text}")
    return us


@lru_cache(maxsize=1024)
def _day_start(day: str) -> int:
    """The seconds from 1970 to the start of this day."""
    if day.startswith("0000"):
        # The calendar repeats every 400 years. Year 0 is valid only if the offset moves the time into year 1.
        return (
            date.fromisoformat("0400" + day[4:]).toordinal() - _DAYS_PER_400_YEARS - _DAYS_TO_1970
        ) * _SECONDS_PER_DAY
    return (date.fromisoformat(day).toordinal() - _DAYS_TO_1970) * _SECONDS_PER_DAY


def text(us: int) -> str:
    """The time in UTC, with 0, 3 or 6 decimals: as few as show all microseconds. Raises OutOfRange."""
    second, fraction = us // US_PER_SECOND, us % US_PER_SECOND
    if not fraction:
        return _second_text(second) + "Z"
    ms, rest = fraction // 1_000, fraction % 1_000
    if rest:
        return f"{_second_text(second)}.{_THREE_DIGITS[ms]}{_THREE_DIGITS[rest]}Z"
    return f"{_second_text(second)}.{_THREE_DIGITS[ms]}Z"


@lru_cache(maxsize=4096)  # the times in a list often share their seconds
def _second_text(second: int) -> str:
    days, rest = second // _SECONDS_PER_DAY, second % _SECONDS_PER_DAY
    minutes, seconds = rest // 60, rest % 60
    two = _TWO_DIGITS
    return f"{_day_text(days)}T{two[minutes // 60]}:{two[minutes % 60]}:{two[seconds]}"


@lru_cache(maxsize=64)
def _day_text(days: int) -> str:
    """The day that begins so many days after 1970-01-01."""
    try:
        return date.fromordinal(days + _DAYS_TO_1970).isoformat()
    except (ValueError, OverflowError):
        raise OutOfRange(f"no text for a time outside the years 1 to 9999: {days} days since 1970") from None
