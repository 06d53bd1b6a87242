"""The progress line shows how much is done, the rate and the time left."""

from __future__ import annotations

import pytest

from querator.cli.terminal.progress import progress_line, time_text


def test_a_count_has_a_rate() -> None:
    assert progress_line("copying", 3_000, None, 2.0) == "copying  3,000  1,500/s"


def test_a_total_gives_the_time_left() -> None:
    line = progress_line("copying", 250, 1_000, 10.0, unit="rows")
    assert line == "copying  ██████░░░░░░░░░░░░░░░░░░  25%  250 of 1,000 rows  25/s  30s left"


def test_a_share_of_the_work_does_without_a_total() -> None:
    line = progress_line("importing", 5_000, None, 10.0, share=0.5, unit="rows", note="lag 7")
    assert line == "importing  ████████████░░░░░░░░░░░░  50%  5,000 rows  500/s  lag 7  10s left"


def test_the_first_moments_tell_no_time_left() -> None:
    assert "left" not in progress_line("importing", 1, 100, 0.5)
    assert "left" not in progress_line("importing", 0, 100, 5.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1s"), (59.5, "1m 00s"), (61, "1m 01s"), (3_599, "59m 59s"), (7_260, "2h 01m")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
