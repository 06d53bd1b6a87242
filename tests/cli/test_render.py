"""Tables, JSON and other output formats."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from querator.cli.terminal import streams
from querator.cli.terminal.render import Columns, Format, Moment, Payload, Renderer, relative, short_duration, visible
from querator.cli.terminal.streams import Streams, Terminals

RECORDS: list[dict[str, Any]] = [
    {"id": "a", "n": 1, "when": Moment(0), "ok": True, "payload": Payload(b"hi")},
    {"id": "b", "n": 20, "when": None, "ok": False, "payload": Payload(b"\xff")},
]
COLUMNS = ("id", "n", "when", "ok")

Show = Callable[..., str]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    def run(form: Format = Format.TABLE, *, terminals: Terminals | None = None, **settings: Any) -> str:
        with streams.pretend(terminals or Terminals()):
            Renderer(Streams(), form, **settings).records(RECORDS, COLUMNS, name="id")
            sys.stdout.flush()
        return capsys.readouterr().out

    return run


def test_a_piped_table_is_plain_and_complete(show: Show) -> None:
    assert show() == (
        "ID   N  WHEN                  OK\na    1  1970-01-01T00:00:00Z  yes\nb   20  -                     no\n"
    )


def test_a_long_cell_does_not_fill_up_those_above_and_below(capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"id": "a", "payload": "x" * 1_000, "n": 1}, {"id": "b", "payload": "y", "n": 2}]
    with streams.pretend(Terminals()):
        Renderer(Streams()).records(records, ("id", "payload", "n"), name="id")
    header, long, short = capsys.readouterr().out.splitlines()
    assert long.split() == ["a", "x" * 1_000, "1"]
    assert short.split() == ["b", "y", "2"]
    assert len(header) == len(short) < 120


def test_a_table_on_a_terminal_has_boxes_and_relative_times(show: Show) -> None:
    shown = show(terminals=Terminals(stdout=True, columns=100))
    assert "╭" in shown
    assert "ago" in shown


def test_no_color_means_no_escapes(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = show(terminals=Terminals(stdout=True, columns=100))
    assert "╭" in shown
    assert "\x1b" not in shown


def test_a_narrow_terminal_gets_a_block_per_record(show: Show) -> None:
    shown = show(terminals=Terminals(stdout=True, columns=20))
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert "╭" not in shown
    assert shown.count("id") == 2


def test_what_names_a_record_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"text": "x" * 200, "id": "3MAxgirI7FyXiulbc4qG8mp8wmE"}]
    with streams.pretend(Terminals(stdout=True, columns=80)):
        Renderer(Streams()).records(records, ("text", "id"), name="id")
    shown = capsys.readouterr().out
    assert "3MAxgirI7FyXiulbc4qG8mp8wmE" in shown
    assert "x…" in shown


def wide_record(**values: str) -> dict[str, Any]:
    return {"id": "i" * 27, "kind": "k" * 5, "empty": "", "text": "t" * 50, "more": "m" * 5} | values


def test_room_is_shared_out_from_left_to_right() -> None:
    table = Columns([wide_record()], ("id", "text", "kind"), "id", fancy=True)
    assert table.least_width() == 27 + 12 + 5 + 10
    assert table.shared_out(64) == [27, 22, 5]
    assert table.shared_out(200) == [27, 50, 5]


def test_columns_give_way_the_empty_ones_first() -> None:
    table = Columns([wide_record()], ("id", "empty", "kind", "text", "more"), "id", fancy=True)
    assert table.fit(200) == []
    assert table.fit(66) == []
    assert table.rows()[0] == ("ID", "KIND", "TEXT", "MORE")
    assert table.fit(60) == ["more"]


def test_what_is_not_shown_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with streams.pretend(Terminals(stdout=True, columns=60)):
        Renderer(Streams()).records([wide_record()], ("id", "kind", "text", "more"), name="id")
    assert "columns that do not fit: more" in capsys.readouterr().err


def test_json_has_everything_in_plain_values(show: Show) -> None:
    assert json.loads(show(Format.JSON)) == [
        {"id": "a", "n": 1, "when": "1970-01-01T00:00:00Z", "ok": True, "utf8": "hi"},
        {"id": "b", "n": 20, "when": None, "ok": False, "bytes": "/w=="},
    ]


def test_ndjson_is_a_line_per_record(show: Show) -> None:
    assert [json.loads(line)["id"] for line in show(Format.NDJSON).splitlines()] == ["a", "b"]


def test_names_alone(show: Show) -> None:
    assert show(Format.NAME) == "a\nb\n"
    assert show(quiet=True) == "a\nb\n"
    assert len(show(Format.NDJSON, quiet=True).splitlines()) == 2


def test_columns_are_chosen_in_every_form(show: Show) -> None:
    assert show(columns="n,id").splitlines()[0] == " N  ID"
    assert json.loads(show(Format.JSON, columns="n, id"))[0] == {"n": 1, "id": "a"}


def test_control_characters_cannot_drive_the_terminal() -> None:
    assert visible("a\x1b[2Jb\nc\u202e") == "a\\x1b[2Jb\\nc\\u202e"
    assert visible("grün ✓") == "grün ✓"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "250ms"), (59.9, "59s"), (60, "1m"), (90, "1m30s"), (3_600, "1h"), (90_061, "1d1h")],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


def test_relative_times() -> None:
    assert relative(0, 3_000_000) == "3s ago"
    assert relative(120_000_000, 0) == "in 2m"
    assert relative(5, 5) == "now"
