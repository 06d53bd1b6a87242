"""`/v1/sql`: which rows a query sees, what it is not allowed to do, and how it ends."""

from __future__ import annotations

import io
import socket
import sys
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from querator.client.catalogue import produce_item
from querator.client.clients import Client
from querator.errors import InvalidRequest, NotFound, QueratorError, RequestFailed
from querator.wire.messages import QueueProduceItem
from tests.daemons import Daemon


def rows(client: Client, queue: str, query: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode(client.sql_bytes(queue, query, format="json", **more))
    return found


def items(payloads: list[str], **settings: Any) -> list[QueueProduceItem]:
    return [produce_item(payload, **settings) for payload in payloads]


def test_items_have_the_ids_and_partitions_that_clients_know(client: Client, queue: str) -> None:
    client.produce(queue, [f"{n}" for n in range(10)])
    client.produce(queue, ["more"])
    stored = {item.id: p for p in (0, 1) for item in client.list_items(queue, partition=p)}
    found = rows(client, queue, "select id, partition from items")
    assert {row["id"]: row["partition"] for row in found} == stored
    assert len(stored) == 11


def test_states_leases_and_schedules_are_visible(client: Client, queue: str) -> None:
    client.produce(queue, ["a"])
    leased = client.lease(queue, 1).items[0]
    client.produce(queue, items(["b"], kind="k"))
    client.produce(queue, items(["c"], enqueue_at="2999-01-01T00:00:00Z"))
    states = rows(client, queue, "select state, attempts, lease_deadline is null as free from items order by state")
    assert states == [
        {"state": "leased", "attempts": 1, "free": False},
        {"state": "ready", "attempts": 0, "free": True},
    ]
    assert [row["id"] for row in rows(client, queue, "select id from leases")] == [leased.id]
    scheduled = rows(client, queue, "select state, enqueue_at, payload from scheduled")
    assert scheduled == [{"state": "scheduled", "enqueue_at": "2999-01-01T00:00:00Z", "payload": "Yw=="}]


def test_a_query_can_be_limited_to_the_latest_items(daemon: Daemon, queue: str) -> None:
    client = daemon.client
    for begin in range(0, 400, 2):
        client.produce(queue, [f"{begin}", f"{begin + 1}"])
    held = client.lease(queue, 1).items[0].id

    def ask(query: str, latest: int) -> list[dict[str, object]]:
        status, found = daemon.call("/v1/sql", {"queue_name": queue, "query": query, "latest": latest})
        assert status == 200
        return found

    query = "select count(*) as n, min(text::int) as first, count(distinct partition) as partitions from items"
    (all_,) = ask(query, 400)
    assert all_ == {"n": 400, "first": 0, "partitions": 2}
    (some,) = ask(query, 100)
    assert 60 <= some["n"] <= 140 and some["first"] >= 200 and some["partitions"] == 2
    assert ask("select id from leases", 100) == [{"id": held}]
    assert daemon.call("/v1/sql", {"queue_name": queue, "query": query, "latest": -1})[0] == 400


def test_conditions_joins_and_expressions_work(client: Client, queue: str) -> None:
    client.produce(queue, items(["a", "b"], kind="x"))
    client.produce(queue, items(["c"], kind="y"))
    held = client.lease(queue, 1).items[0]
    query = "with l as (select id from leases) select i.id from items i join l using (id) where attempts > 0"
    assert rows(client, queue, query) == [{"id": held.id}]
    assert rows(client, queue, "select kind, count(*) as n from items group by all order by kind") == [
        {"kind": "x", "n": 2},
        {"kind": "y", "n": 1},
    ]
    assert rows(client, queue, "select count(*) as n from items where created_at > now() - interval 1 hour") == [
        {"n": 3}
    ]


PAYLOADS = ['{"country": "US", "n": {"m": 5}}', '{"country": "DÉ"}', '{"country": ', "plain", "", b"\xff\xfe", "[1]"]


def test_text_is_the_payload_as_text_in_every_table(client: Client, queue: str) -> None:
    client.produce(queue, [produce_item(payload) for payload in ("held", b"\xfe held")])
    client.lease(queue, 2)
    client.produce(queue, items(["waits"]))
    client.produce(queue, items(["later"], enqueue_at="2999-01-01T00:00:00Z"))
    assert rows(client, queue, "select text from items order by text nulls last") == [
        {"text": "held"},
        {"text": "waits"},
        {"text": None},
    ]
    assert rows(client, queue, "select text, to_base64(payload) as b from leases order by text nulls last") == [
        {"text": "held", "b": "aGVsZA=="},
        {"text": None, "b": "/iBoZWxk"},
    ]
    assert rows(client, queue, "select text from scheduled where text in ('later', 'sooner')") == [{"text": "later"}]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("text->>'country' = 'US'", 1),
        ("i.text->>'country' = 'DÉ' and 'größer' <> ''", 1),
        ("\"text\"->>'$.country' in ('US', 'DÉ')", 2),
        ("(text->'n'->>'m') = '5'", 1),
        ("(text->'n') is not null", 1),
        ("(text->>'$.n.m')::int > 4", 1),
        ("json_extract_string(text, 'country') is null", 5),
        ("json_array_length(text) = 1", 1),
        ("(text /* not every payload */ ->> 'country') is null", 5),
        ("json(lower(text))->>'country' = 'us'", 1),
        ("exists (from json_each(text) where value = '\"US\"')", 1),
    ],
)
def test_fields_of_json_are_null_where_a_payload_is_not_json(
    client: Client, queue: str, condition: str, found: int
) -> None:
    client.produce(queue, [produce_item(payload) for payload in PAYLOADS])
    assert rows(client, queue, f"select count(*) as n from items i where {condition}") == [{"n": found}]


def test_a_field_has_the_name_it_was_asked_for_by_and_can_be_used_by_its_alias(client: Client, queue: str) -> None:
    client.produce(queue, [produce_item(payload) for payload in PAYLOADS])
    (row,) = rows(client, queue, "select text->>'country', text->'n'->>'m' as m from items where m is not null")
    assert row == {"(\"text\" ->> 'country')": "US", "m": "5"}


@pytest.mark.parametrize(
    "condition",
    [
        "payload->>'country' = 'US'",
        "payload->'country' = 'US'",
        "items.payload->>'country' = 'US'",
        "json_extract_string(payload, 'country') = 'US'",
        "(select p->>'country' from (select payload as p)) = 'US'",
        "payload like '%US%'",
    ],
)
def test_bytes_are_not_searched_for_fields_in_vain(client: Client, queue: str, condition: str) -> None:
    with pytest.raises(InvalidRequest, match="payload is bytes, not text; use the column text instead"):
        client.sql(queue, f"select id from items where {condition}")


def test_an_arrow_that_takes_the_whole_comparison_is_reported(client: Client, queue: str) -> None:
    with pytest.raises(InvalidRequest, match="add parentheses"):
        client.sql(queue, "select id from items where text->'n'->>'m' = '5'")


def test_every_format_says_the_same(client: Client, queue: str) -> None:
    client.produce(queue, items(["a", "b"], kind="k"))
    query = "select kind, decode(payload) as text from items order by text"
    assert client.sql_bytes(queue, query, format="ndjson") == b'{"kind":"k","text":"a"}\n{"kind":"k","text":"b"}\n'
    assert client.sql_bytes(queue, query, format="csv") == b"kind,text\nk,a\nk,b\n"
    table = pa.ipc.open_stream(io.BytesIO(client.sql_bytes(queue, query, format="arrow"))).read_all()
    assert table.to_pydict() == {"kind": ["k", "k"], "text": ["a", "b"]}
    assert client.sql_bytes(queue, query + " limit 0", format="json") == b"[]"
    assert rows(client, queue, query, limit=1) == [{"kind": "k", "text": "a"}]


REFUSED = [
    "select * from duckdb_settings()",
    "select * from duckdb_databases()",
    "select * from duckdb_databases",
    "select * from pragma_database_list",
    "select * from information_schema.tables",
    "select * from pg_catalog.pg_class",
    "select * from memory.main.items",
    "select * from read_text('/etc/passwd')",
    "select * from read_csv('/etc/passwd')",
    "select * from '/etc/passwd'",
    "select * from glob('/*')",
    "select * from sniff_csv('/etc/passwd')",
    "select * from arrow_scan(1, 2, 3)",
    "select * from pandas_scan(1)",
    "select * from python_map_function(1)",
    "select * from query('select 1')",
    "select * from query_table('items')",
    "select (select count(*) from parquet_schema('x'))",
    "select * from items, lateral (select * from read_blob('/etc/passwd'))",
    "with items as (select * from read_text('/etc/passwd')) select * from items",
    "select service from items",
    "select * from service",
    "select 1; select 2",
    "insert into items select * from items",
    "delete from items",
    "with x as (delete from items returning *) select * from x",
    "create table t as select 1",
    "copy (select 1) to '/tmp/querator-sql-attack.csv'",
    "export database '/tmp/querator-sql-attack'",
    "attach '/tmp/querator-sql-attack.duckdb'",
    "set memory_limit = '100GB'",
    "reset lock_configuration",
    "pragma enable_profiling",
    "call duckdb_settings()",
    "install httpfs",
    "load httpfs",
    "prepare p as select 1",
    "checkpoint",
    "show databases",
    "",
    "selec 1",
]


@pytest.mark.parametrize("query", REFUSED)
def test_nothing_but_a_select_over_this_queue_gets_in(client: Client, queue: str, query: str) -> None:
    with pytest.raises(InvalidRequest, match="query is invalid"):
        client.sql(queue, query)


def test_settings_that_a_scalar_can_read_tell_nothing_of_the_machine(client: Client, queue: str) -> None:
    for name in ("temp_directory", "home_directory", "allowed_directories"):
        (row,) = rows(client, queue, f"select current_setting('{name}') as value")
        assert not row["value"]


def test_a_query_that_wants_too_much_memory_fails_and_the_next_one_works(client: Client, queue: str) -> None:
    for greedy in ("select len(list(range)) from range(1000000000)", "select length(repeat('x', 3000000000))"):
        with pytest.raises(InvalidRequest, match="256 MB of memory"):
            client.sql(queue, greedy, timeout=60)
    assert rows(client, queue, "select 1 as one") == [{"one": 1}]


def test_a_query_ends_when_its_time_is_up(client: Client, queue: str) -> None:
    with pytest.raises(RequestFailed, match=r"it was stopped after 0\.3s"):
        client.sql(queue, "select count(*) from range(1000000000000)", timeout=0.3)
    assert rows(client, queue, "select 1 as one") == [{"one": 1}]


def test_a_query_ends_when_its_client_goes_away(daemon: Daemon, client: Client, queue: str) -> None:
    """Endless queries occupy both workers. Unless they are ended, no other query gets a worker."""
    body = msgspec.json.encode(
        {"queue_name": queue, "query": "select count(*) from range(1000000000000)", "timeout": "15m"}
    )
    head = f"POST /v1/sql HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(4):
        with socket.create_connection(daemon.http.split(":")) as connection:  # type: ignore[arg-type]
            connection.sendall(head + body)
    assert rows(client, queue, "select 1 as one", timeout=30) == [{"one": 1}]


def test_a_result_larger_than_what_is_held_back_arrives_whole(client: Client, queue: str) -> None:
    body = client.sql_bytes(queue, "select range as n, repeat('x', 100) as text from range(100000)", format="ndjson")
    lines = body.splitlines()
    assert len(lines) == 100_000
    assert msgspec.json.decode(lines[-1])["n"] == 99_999


def test_bad_requests_are_told_apart(client: Client, queue: str) -> None:
    with pytest.raises(NotFound):
        client.sql("no-such-queue", "select 1")
    with pytest.raises(InvalidRequest, match="format is invalid; 'xml'"):
        client.sql_bytes(queue, "select 1", format="xml")
    with pytest.raises(InvalidRequest, match="limit is invalid"):
        client.sql(queue, "select 1", limit=-1)
    with pytest.raises(InvalidRequest, match="same name"):
        client.sql(queue, "select 1 as a, 2 as a")
    with pytest.raises(InvalidRequest, match='column "nope" not found'):
        client.sql(queue, "select nope from items")


def test_partitions_that_are_closed_are_left_out(client: Client, queue: str) -> None:
    client.produce(queue, ["a"])
    client.produce(queue, ["b"])
    client.offline_partitions(queue, [1])
    assert rows(client, queue, "select partition, count(*) as n from items group by all") == [{"partition": 0, "n": 1}]


def test_the_client_gives_rows_for_data_frames(client: Client, queue: str) -> None:
    client.produce(queue, [produce_item(f"{n}", kind="ab"[n % 2]) for n in range(10)])
    rows = client.sql(
        queue, "select kind, count(*) as items, max(created_at) as last from items group by all order by 1"
    )
    assert (len(rows), rows.columns) == (2, ["kind", "items", "last"])
    assert [(row["kind"], row["items"]) for row in rows.to_pylist()] == [("a", 5), ("b", 5)]
    assert pa.table(rows).equals(rows.arrow)
    frame = rows.to_pandas()
    assert (list(frame["kind"]), frame["items"].sum(), str(frame["last"].dt.tz)) == (["a", "b"], 10, "UTC")
    assert len(client.sql(queue, "select * from items", limit=3)) == 3
    assert len(client.sql(queue, "select * from items where false")) == 0


def test_rows_for_polars(client: Client, queue: str) -> None:
    pytest.importorskip("polars")
    client.produce(queue, [produce_item(f"{n}", kind="ab"[n % 2]) for n in range(10)])
    frame = client.sql(queue, "select kind, text::int as n from items").to_polars()
    assert dict(frame.group_by("kind").sum().iter_rows()) == {"a": 20, "b": 25}


def test_without_polars_it_says_what_to_install(client: Client, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(QueratorError, match="polars is not installed") as caught:
        client.sql(queue, "select 1 as one").to_polars()
    assert caught.value.hint == "pip install polars"
