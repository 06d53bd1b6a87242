"""querator sql, and the filters that speak the same language"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from querator.cli.filters import query
from tests.cli.running import TERMINAL, CommandLine
from tests.scripted import Answer, Asked, ScriptedDaemon

ROWS = [{"kind": "a", "n": 2}, {"kind": None, "n": 1}]
BODIES = {
    "json": json.dumps(ROWS).encode(),
    "ndjson": b"\n".join(json.dumps(row).encode() for row in ROWS),
    "csv": b"kind,n\na,2\n,1\n",
    "arrow": b"ARROW\xff",
}


def serve(asked: Asked) -> Answer:
    return (200, BODIES[asked.request["format"]])


def asked_sql(daemon: ScriptedDaemon) -> list[dict[str, Any]]:
    return [asked.request for asked in daemon.asked if asked.path == "/v1/sql"]


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("table", b"KIND  N\na     2\n-     1\n"),
        ("ndjson", b'{"kind":"a","n":2}\n{"kind":null,"n":1}\n'),
        ("csv", BODIES["csv"]),
        ("arrow", BODIES["arrow"]),
    ],
)
def test_every_format(tmp_path: Path, form: str, shown: bytes) -> None:
    with ScriptedDaemon(tmp_path, serve) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("sql", "q", "select 1", "-o", form)
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes == shown


def test_json_and_names(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serve) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        assert cli.json("sql", "q", "select 1") == ROWS
        assert cli.ok("sql", "q", "select 1", "-q") == "a\nNone\n"


def test_what_is_asked(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serve) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        cli.ok("sql", "q", "-", "--limit", "5", "--timeout", "7s", input="select 2")
    (asked,) = asked_sql(daemon)
    assert asked == {"queue_name": "q", "query": "select 2", "format": "json", "limit": 5, "timeout": "7s"}


def test_an_empty_query_and_arrow_on_a_terminal_are_refused(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path, tmp_path / "nobody.sock")
    assert cli("sql", "q", " ").exit_code == 2
    assert "binary" in cli("sql", "q", "select 1", "-o", "arrow", terminals=TERMINAL).stderr


def test_a_cut_result_is_told(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serve) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("sql", "q", "select 1", "--limit", "2")
    assert "only the first 2 rows" in result.stderr


# Filters


ITEM = {
    "id": "i1",
    "partition": 0,
    "state": "ready",
    "kind": "k",
    "reference": "",
    "encoding": "",
    "attempts": 1,
    "max_attempts": 0,
    "created_at": 1_000_000,
    "expire_deadline": 2_000_000,
    "lease_deadline": None,
    "enqueue_at": None,
    "source_id": "",
    "payload": base64.b64encode(b"hi").decode(),
}


def serve_items(asked: Asked) -> Answer:
    if asked.path == "/v1/queue.stats":
        return (200, {"queue_name": "q", "logicalQueues": [{"partitions": [{}]}]})
    rows = [ITEM] if "from items" in asked.request["query"] else []
    return (200, b"\n".join(json.dumps(row).encode() for row in rows))


def test_items_by_condition(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serve_items) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        (found,) = cli.json("items", "list", "q", "--where", "attempts > 0", "--kind", "it's")
    assert (found["id"], found["utf8"], found["created_at"]) == ("i1", "hi", "1970-01-01T00:00:01Z")
    asked = asked_sql(daemon)
    assert [" from items " in one["query"] for one in asked] == [True, False]
    assert "kind = 'it''s' and (attempts > 0\n)" in asked[0]["query"]


def test_redrive_and_export_by_condition(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serve_items) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        exported = cli.ok("items", "export", "q", "--where", "true")
    assert json.loads(exported)["id"] == "i1"


def test_a_condition_that_ends_in_a_comment_stays_a_condition() -> None:
    text = query("items", [0, 1], "ready", None, "kind = 'a' -- and so on", "(partition, id) > (0, 'x')")
    assert (
        " where partition in (0, 1) and state = 'ready' and (kind = 'a' -- and so on\n) and (partition, id) >" in text
    )
