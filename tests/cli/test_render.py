"""How answers look."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from querator.cli import streams
from querator.cli.render import Format, Moment, Payload, Renderer, relative, short_duration, visible
from querator.cli.streams import Streams, Terminals

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


def test_a_table_on_a_terminal_has_boxes_and_relative_times(show: Show) -> None:
    shown = show(terminals=Terminals(stdout=True, columns=100))
    assert "╭" in shown
    assert "ago" in shown


def test_a_narrow_terminal_gets_a_block_per_record(show: Show) -> None:
    shown = show(terminals=Terminals(stdout=True, columns=20))
    assert all(len(line) <= 60 for line in shown.splitlines())
    assert "╭" not in shown
    assert shown.count("id") == 2


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
