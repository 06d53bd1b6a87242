"""Times are read and written as RFC 3339 (wire contract 1.7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator import times
from querator.items import ZERO_TIME_US

SECOND = 1_000_000
HOUR = 3600 * SECOND


def us(year: int, *rest: int) -> int:
    return (datetime(year, *rest, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    "text,wanted",
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2030-01-02T03:04:05Z", us(2030, 1, 2, 3, 4, 5)),
        ("2030-01-02T03:04:05.5Z", us(2030, 1, 2, 3, 4, 5, 500_000)),
        ("2030-01-02T03:04:05.120Z", us(2030, 1, 2, 3, 4, 5, 120_000)),
        ("2030-01-02T03:04:05.123456Z", us(2030, 1, 2, 3, 4, 5, 123_456)),
        pytest.param("2030-01-02T03:04:05.123456999Z", us(2030, 1, 2, 3, 4, 5, 123_456), id="nine digits are cut"),
        pytest.param("2030-01-02T03:04:05,5Z", us(2030, 1, 2, 3, 4, 5, 500_000), id="a comma"),
        pytest.param("2030-01-02T3:04:05Z", us(2030, 1, 2, 3, 4, 5), id="one digit of the hour"),
        ("2030-01-02T03:04:05+05:30", us(2030, 1, 1, 21, 34, 5)),
        ("2030-01-02T03:04:05-08:00", us(2030, 1, 2, 11, 4, 5)),
        ("2030-01-02T03:04:05+24:00", us(2030, 1, 1, 3, 4, 5)),
        ("1960-01-02T03:04:05.25Z", us(1960, 1, 2, 3, 4, 5, 250_000)),
        ("2028-02-29T00:00:00Z", us(2028, 2, 29)),
        ("0001-01-01T00:00:00Z", ZERO_TIME_US),
        ("9999-12-31T23:59:59.999999999Z", times.MAX_US),
        pytest.param("0000-12-31T23:30:00-01:00", ZERO_TIME_US + HOUR // 2, id="year 0 only where it is local"),
    ],
)
def test_a_time_is_read(text: str, wanted: int) -> None:
    assert times.parse(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "tomorrow", "2030-01-02", "2030-01-02T03:04:05", "2030-01-02 03:04:05Z", "2030-01-02t03:04:05Z"),
        *("2030-01-02T03:04:05z", "2030-01-02T03:04:05.Z", "2030-01-02T03:04:05.1234567890Z", "2030-01-02T03:04Z"),
        *("10000-01-01T00:00:00Z", "2030-13-01T00:00:00Z", "2030-00-01T00:00:00Z", "2030-02-29T00:00:00Z"),
        *("2030-01-02T24:00:00Z", "2030-01-02T00:60:00Z", "2030-01-02T23:59:60Z", "2030-1-02T03:04:05Z"),
        *(
            "2030-01-02T03:04:05+24:61",
            "2030-01-02T03:04:05+25:00",
            "2030-01-02T03:04:05+0530",
            " 2030-01-02T03:04:05Z",
        ),
        *("2030-01-02T03:04:05Z\n", "٢030-01-02T03:04:05Z", "-030-01-02T03:04:05Z", "2030-01-02T03:04:05.5"),
    ],
)
def test_another_text_is_no_time(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        times.parse(text)
    assert not isinstance(caught.value, times.OutOfRange)


@pytest.mark.parametrize(
    "text",
    ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "0000-12-31T23:59:59-00:00"],
)
def test_a_time_outside_the_years_1_to_9999_is_out_of_range(text: str) -> None:
    with pytest.raises(times.OutOfRange):
        times.parse(text)


@pytest.mark.parametrize(
    "at,text",
    [
        (0, "1970-01-01T00:00:00Z"),
        (500_000, "1970-01-01T00:00:00.500Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (ZERO_TIME_US, "0001-01-01T00:00:00Z"),
        (times.MAX_US, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_time_is_written_with_0_3_or_6_digits(at: int, text: str) -> None:
    assert times.text(at) == text


@pytest.mark.parametrize("at", [times.MIN_US - 1, times.MAX_US + 1, 1 << 90, -(1 << 90)])
def test_a_time_without_a_text_can_be_told(at: int) -> None:
    assert not times.is_expressible(at)
    with pytest.raises(times.OutOfRange):
        times.text(at)


@given(st.integers(times.MIN_US, times.MAX_US))
def test_what_is_written_is_read_back(at: int) -> None:
    assert times.is_expressible(at)
    assert times.parse(times.text(at)) == at


@given(st.datetimes(timezones=st.timezones() | st.just(UTC)))
def test_any_offset_means_what_the_standard_library_says(at: datetime) -> None:
    offset = at.utcoffset()
    assert offset is not None
    wanted = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if offset.total_seconds() % 60 == 0 and times.is_expressible(wanted):
        assert times.parse(at.isoformat()) == wanted
