"""querator sql, and the --where filters, which use the same SQL"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from querator import Client
from querator.cli.lookups.filters import query
from querator.client import catalogue
from tests.cli.command_line import TERMINAL, CommandLine
from tests.cli.test_items import dead_pair, kill
from tests.scripted import Answer, Asked, ScriptedDaemon, refusal

ROWS = [{"kind": "a", "n": 2}, {"kind": None, "n": 1}]
BODIES = {
    "json": json.dumps(ROWS).encode(),
    "ndjson": b"\n".join(json.dumps(row).encode() for row in ROWS),
    "csv": b"kind,n\na,2\n,1\n",
    "arrow": b"ARROW\xff",
}


# On the daemon


def test_a_question_to_a_live_queue(cli: CommandLine, client: Client, wide_queue: str) -> None:
    client.produce(wide_queue, [catalogue.produce_item("1", kind="a"), catalogue.produce_item("2", kind="b")])
    client.produce(wide_queue, [catalogue.produce_item("3", kind="a")])
    question = "select kind, count(*) as n from items group by all order by all"
    assert cli.json("sql", wide_queue, question) == [{"kind": "a", "n": 2}, {"kind": "b", "n": 1}]
    assert cli.ok("sql", wide_queue, question) == "KIND  N\na     2\nb     1\n"
    assert cli.ok("sql", wide_queue, question, "-o", "csv").splitlines() == ["kind,n", "a,2", "b,1"]
    arrow = cli("sql", wide_queue, question, "-o", "arrow")
    assert arrow.exit_code == 0
    assert len(arrow.stdout_bytes) > 100
    assert cli.json("sql", wide_queue, "select distinct partition from items order by all") == [
        {"partition": 0},
        {"partition": 1},
    ]


@pytest.mark.parametrize("question", ["drop table items", "select * from nowhere", "select 1; select 2", "nonsense"])
def test_what_cannot_be_asked(cli: CommandLine, queue: str, question: str) -> None:
    result = cli("sql", queue, question)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "querator sql QUEUE 'describe items'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_closed_partition_is_named(cli: CommandLine, client: Client, wide_queue: str) -> None:
    client.produce(wide_queue, "a")
    client.produce(wide_queue, "b")
    client.offline_partitions(wide_queue, [1])
    for words in (["sql", wide_queue, "select partition from items"], ["items", "list", wide_queue]):
        result = cli(*words, "-o", "json")
        assert [one["partition"] for one in json.loads(result.stdout)] == [0]
        assert result.stderr == f"skipped, because it is not open: partition 1 (unavailable) of '{wide_queue}'\n"
    client.offline_partitions(wide_queue, [0])
    for words in (["sql", wide_queue, "select 1"], ["items", "list", wide_queue], ["items", "redrive", wide_queue]):
        result = cli(*words)
        assert result.exit_code == 7
        assert f"hint: querator partitions list {wide_queue}" in result.stderr


def test_an_unknown_queue_cannot_be_asked(cli: CommandLine) -> None:
    assert cli("sql", "nope", "select 1").exit_code == 4


def test_filters_on_a_live_queue(cli: CommandLine, client: Client, wide_queue: str) -> None:
    client.produce(wide_queue, [catalogue.produce_item("1", kind="a"), catalogue.produce_item(b"\xff", kind="it's")])
    client.produce(wide_queue, [catalogue.produce_item("3", kind="a", enqueue_at="2099-01-01T00:00:00Z")])
    (one,) = cli.json("items", "list", wide_queue, "--kind", "it's")
    assert one["bytes"] == "/w=="
    assert one == cli.json("items", "list", wide_queue, "--where", "kind = 'it''s' -- the second")[0]
    found = cli.json("items", "list", wide_queue, "--kind", "a")
    assert [item["state"] for item in found] == ["ready", "scheduled"]
    unfiltered = {item["id"]: item for item in cli.json("items", "list", wide_queue)}
    assert found == [unfiltered[item["id"]] for item in found]
    assert cli.json("items", "list", wide_queue, "--kind", "a", "--state", "scheduled") == found[1:]
    assert cli("items", "list", wide_queue, "--where", "nonsense here").exit_code == 1


def test_json_in_payloads_can_be_asked_for(cli: CommandLine, client: Client, wide_queue: str) -> None:
    payloads = ('{"country": "US"}', '{"country": "DE"}', "not JSON", b"\xff")
    client.produce(wide_queue, [catalogue.produce_item(payload) for payload in payloads])
    (found,) = cli.json("items", "list", wide_queue, "--where", "text->>'country' = 'US'")
    assert found["utf8"] == '{"country": "US"}'
    for words in (
        ["items", "list", wide_queue, "--where", "payload->>'country' = 'US'"],
        ["sql", wide_queue, "select payload->>'country' from items"],
    ):
        result = cli(*words)
        assert result.exit_code == 1
        assert "use the column text instead, as in text->>'field' = 'value'" in result.stderr
    result = cli("sql", wide_queue, "select upper(text)->>'COUNTRY' from items")
    assert "hint: json(…) gives null for a text that is not JSON" in result.stderr


@pytest.mark.parametrize(
    "where",
    [
        "false) or (true",
        "true) or true --",
        "kind = 'a') or (kind = 'b'",
        "true union all select 1 from items",
        "true limit 1",
        "true order by id",
        "true group by all",
        "true; select 1",
        "true) from items where (true",
        "select true",
        "true /*",
        "kind = 'a",
        "",
    ],
)
def test_a_condition_cannot_undo_the_others(cli: CommandLine, client: Client, queue: str, where: str) -> None:
    client.produce(queue, [catalogue.produce_item("1", kind="a"), catalogue.produce_item("2", kind="b")])
    result = cli("items", "list", queue, "--kind", "a", "--state", "ready", "--where", where)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: query is invalid; ")


def test_filters_page_through_long_queues(cli: CommandLine, client: Client, wide_queue: str) -> None:
    for _ in range(3):
        client.produce(wide_queue, [catalogue.produce_item(str(n), kind="k") for n in range(900)])
    found = cli.ok("items", "list", wide_queue, "--where", "kind = 'k'", "--limit", "0", "-q").split()
    assert len(set(found)) == len(found) == 2_700


def test_redrive_by_condition(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    kill(client, name, "a", kind="good")
    kill(client, name, "b", kind="bad")
    assert cli.json("items", "redrive", dead, "--where", "kind = 'good'")["redriven"] == 1
    assert [item.payload for item in client.list_items(name)] == [b"a"]
    assert [item.payload for item in client.list_items(dead)] == [b"b"]


# On a scripted daemon


def serve(asked: Asked) -> Answer:
    if asked.path == "/v1/partitions.list":
        return (200, {"items": []})
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


def test_all_rows_are_asked_for_unless_a_person_looks_at_them(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serve) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        for form in ("table", "json", "ndjson", "csv", "arrow"):
            cli.ok("sql", "q", "select 1", "-o", form)
        cli.ok("sql", "q", "select 1", terminals=TERMINAL)
    # A missing value counts as 0.
    assert [asked.get("limit", 0) for asked in asked_sql(daemon)] == [0, 0, 0, 0, 0, 10_000]


def test_a_query_that_takes_too_long_is_exit_7(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serve, refusal(453, "query timed out; it was stopped after 1s")) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("sql", "q", "select 1", "--timeout", "1s")
    assert result.exit_code == 7
    assert result.stderr == "error: query timed out; it was stopped after 1s\n\nhint: --timeout gives it more time\n"


def test_no_rows_are_no_lines(cli: CommandLine, queue: str) -> None:
    assert cli.ok("sql", queue, "select 1 where false") == ""
    assert cli.json("sql", queue, "select 1 where false") == []


def test_columns_are_chosen_in_the_query_where_the_daemon_writes_the_answer(lonely: CommandLine) -> None:
    assert "name the columns in the query" in lonely("sql", "q", "select 1", "-o", "csv", "--columns", "a").stderr


def test_a_query_that_is_not_utf8_is_reported(lonely: CommandLine) -> None:
    result = lonely("sql", "q", "-", input=b"select '\xff'")
    assert (result.exit_code, "not valid UTF-8" in result.stderr) == (2, True)


def test_a_cut_result_is_reported(tmp_path: Path) -> None:
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
    if asked.path == "/v1/partitions.list":
        return (200, {"items": [{"queue_name": "q", "partition": 0, "state": "available"}]})
    rows = [ITEM] if "from items" in asked.request["query"] else []
    return (200, b"\n".join(json.dumps(row).encode() for row in rows))


def test_items_by_condition(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serve_items) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        (found,) = cli.json("items", "list", "q", "--where", "attempts > 0", "--kind", "it's")
    assert (found["id"], found["utf8"], found["created_at"]) == ("i1", "hi", "1970-01-01T00:00:01Z")
    alone, *asked = asked_sql(daemon)
    assert alone["query"] == "select 1 from items where attempts > 0\nlimit 0"
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
