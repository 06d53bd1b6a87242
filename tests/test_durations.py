"""Durations are parsed and formatted as in Go (wire contract 2.0)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querator import durations

MS, SECOND, MINUTE, HOUR = 10**6, 10**9, 60 * 10**9, 3600 * 10**9
LONGEST = (1 << 63) - 1


@pytest.mark.parametrize(
    "text,ns",
    [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("5s", 5 * SECOND),
        ("+5s", 5 * SECOND),
        ("-5s", -5 * SECOND),
        ("900ms", 900 * MS),
        ("1ns", 1),
        ("1us", 1_000),
        ("1\u00b5s", 1_000),
        ("1\u03bcs", 1_000),
        (".5s", 500 * MS),
        ("1.s", SECOND),
        ("1.5h", 90 * MINUTE),
        ("1h15m30.918273645s", HOUR + 15 * MINUTE + 30_918_273_645),
        ("1h1h", 2 * HOUR),
        ("1s1h", HOUR + SECOND),
        ("007s", 7 * SECOND),
        ("0.3333333333333333333h", 20 * MINUTE),
        ("0.100000000000000000000h", 6 * MINUTE),
        ("0.9999999999ns", 0),
        (f"{LONGEST}ns", LONGEST),
        ("2562047h47m16.854775807s", LONGEST),
        (f"-{LONGEST + 1}ns", -LONGEST - 1),
        ("1." + "0" * 100 + "s", SECOND),
    ],
)
def test_a_duration_is_read(text: str, ns: int) -> None:
    assert durations.parse(text) == ns


@pytest.mark.parametrize(
    "text,message",
    [
        ("", 'time: invalid duration ""'),
        ("foo", 'time: invalid duration "foo"'),
        ("-", 'time: invalid duration "-"'),
        (".s", 'time: invalid duration ".s"'),
        ("-.s", 'time: invalid duration "-.s"'),
        (" 1s", 'time: invalid duration " 1s"'),
        ("--1s", 'time: invalid duration "--1s"'),
        ("10", 'time: missing unit in duration "10"'),
        ("00", 'time: missing unit in duration "00"'),
        ("0.0", 'time: missing unit in duration "0.0"'),
        ("1..5s", 'time: missing unit in duration "1..5s"'),
        ("7d", 'time: unknown unit "d" in duration "7d"'),
        ("1w", 'time: unknown unit "w" in duration "1w"'),
        ("1S", 'time: unknown unit "S" in duration "1S"'),
        ("5min", 'time: unknown unit "min" in duration "5min"'),
        ("1e3s", 'time: unknown unit "e" in duration "1e3s"'),
        ("1s 2s", 'time: unknown unit "s " in duration "1s 2s"'),
        ("1s ", 'time: unknown unit "s " in duration "1s "'),
        ("1é", 'time: unknown unit "\\xc3\\xa9" in duration "1\\xc3\\xa9"'),
        ('"\\\n\x7f', 'time: invalid duration "\\"\\\\\\x0a\x7f"'),
        ("٣s", 'time: invalid duration "\\xd9\\xa3s"'),
        (f"{LONGEST + 1}ns", f'time: invalid duration "{LONGEST + 1}ns"'),
        (f"-{LONGEST + 2}ns", f'time: invalid duration "-{LONGEST + 2}ns"'),
        ("2562048h", 'time: invalid duration "2562048h"'),
        ("9999999999999999999", 'time: invalid duration "9999999999999999999"'),
        ("9" * 5000 + "s", f'time: invalid duration "{"9" * 5000}s"'),
    ],
)
def test_what_is_no_duration_is_told_in_gos_words(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        durations.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "ns,text",
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1\u00b5s"),
        (1_500_000, "1.5ms"),
        (300 * MS, "300ms"),
        (999_999_999, "999.999999ms"),
        (SECOND, "1s"),
        (MINUTE, "1m0s"),
        (10 * MINUTE, "10m0s"),
        (HOUR, "1h0m0s"),
        (24 * HOUR, "24h0m0s"),
        (HOUR + 2 * MINUTE + 3_500 * MS, "1h2m3.5s"),
        (MINUTE + 1, "1m0.000000001s"),
        (-500_000, "-500\u00b5s"),
        (-HOUR, "-1h0m0s"),
        (LONGEST, "2562047h47m16.854775807s"),
        (-LONGEST - 1, "-2562047h47m16.854775808s"),
    ],
)
def test_a_duration_is_written(ns: int, text: str) -> None:
    assert durations.text(ns) == text


@given(st.integers(-LONGEST - 1, LONGEST))
def test_what_is_written_is_read_back(ns: int) -> None:
    assert durations.parse(durations.text(ns)) == ns


@given(st.text("0123456789.-+ nuµmsh", max_size=40))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        ns = durations.parse(text)
    except ValueError as error:
        assert str(error).startswith("time: ")
    else:
        assert -LONGEST - 1 <= ns <= LONGEST
