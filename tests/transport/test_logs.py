"""Log lines as JSON and as text."""

from __future__ import annotations

import datetime
import io
import json
import logging
from collections.abc import Iterator

import pytest

from querator.daemon import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def logged(stream: io.StringIO, style: str = "auto", level: str = "info") -> logging.Logger:
    logs.configure(level, style, stream)
    return logging.getLogger("querator.test")


def test_a_pipe_gets_objects_with_the_fields() -> None:
    stream = io.StringIO()
    logged(stream).warning("item died", extra={"queue": "q", "partition": 3, "item_id": "abc", "other": {1}})
    line = json.loads(stream.getvalue())
    assert line["time"].endswith("Z")
    expected = {"level": "warning", "logger": "querator.test", "message": "item died", "queue": "q", "partition": 3}
    assert expected.items() <= line.items()
    assert line["other"] == [1]


def test_a_terminal_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    logged(stream).info("queue %s created", "q", extra={"queue": "a b", "partitions": 2})
    text = stream.getvalue()
    assert "queue q created" in text and 'queue="a b" partitions=2' in text and "\x1b[" in text


def test_a_line_of_text_begins_with_the_date() -> None:
    stream = io.StringIO()
    logged(stream, "text").info("x")
    time, level, message = stream.getvalue().split()
    assert datetime.datetime.fromisoformat(time).utcoffset() is not None
    assert (level, message) == ("info", "x")


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    logged(stream).error("x")
    assert "\x1b" not in stream.getvalue()


def test_text_in_a_pipe_has_no_colour() -> None:
    stream = io.StringIO()
    logged(stream, "text").error("x")
    assert "\x1b" not in stream.getvalue() and "error" in stream.getvalue()


@pytest.mark.parametrize("style", ["text", "json"])
def test_what_clients_say_cannot_move_the_cursor(style: str) -> None:
    stream = io.StringIO()
    logged(stream, style).info("name \x1b[2J\n\x9b", extra={"queue": "a\x1b[2J\nb=c\x9b2J\u202e"})
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().rstrip("\n").isprintable()


@pytest.mark.parametrize("style", ["text", "json"])
def test_tracebacks_are_in_the_log(style: str) -> None:
    stream = io.StringIO()
    log = logged(stream, style)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.exception("failed")
    assert "RuntimeError: boom" in stream.getvalue()


def test_levels() -> None:
    stream = io.StringIO()
    log = logged(stream, level="warning")
    log.info("quiet")
    log.warning("loud")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["loud"]
