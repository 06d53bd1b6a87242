"""`/v1/bulk/items.scan` and `.plan`: which items a scan returns, how it is split, and how it fails."""

from __future__ import annotations

import collections
import contextlib
import http.client
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from querator.client.bulk_client import BulkClient
from querator.client.catalogue import produce_item
from querator.client.clients import Client
from querator.errors import InvalidRequest, NotFound, QueratorError, RetryRequest
from querator.wire import arrow
from tests.daemons import Daemon


@pytest.fixture
def bulk(daemon: Daemon) -> Iterator[BulkClient]:
    with BulkClient(daemon.endpoint, patience=0) as one:
        yield one


def everything(bulk: BulkClient, queue: str, **settings: Any) -> pa.Table:
    parts = [batch for number in (0, 1) for batch in bulk.scan(queue, number, **settings)]
    return pa.Table.from_batches(parts, arrow.chosen(arrow.ITEM, settings.get("columns", ())))


def fill(client: Client, queue: str) -> None:
    client.produce(queue, [produce_item("a", kind="x", reference="r1"), produce_item("b", kind="y", reference="r2")])
    client.produce(queue, [produce_item("c", kind="x", reference="s")])
    client.produce(queue, [produce_item("later", enqueue_at="2999-01-01T00:00:00Z")])


def test_a_scan_is_what_a_list_is(client: Client, bulk: BulkClient, queue: str) -> None:
    fill(client, queue)
    rows = everything(bulk, queue).to_pylist()
    listed = [(p, item) for p in (0, 1) for item in client.list_items(queue, partition=p)]
    assert [(row["partition"], row["id"], row["kind"], row["payload"]) for row in rows] == [
        (p, item.id, item.kind, item.payload) for p, item in listed
    ]
    assert {row["state"] for row in rows} == {"ready"}


def test_states_are_told_apart(client: Client, bulk: BulkClient, queue: str) -> None:
    fill(client, queue)
    held = client.lease(queue, 1).items
    leased = everything(bulk, queue, state="leased").to_pylist()
    assert [(row["id"], row["state"], row["attempts"]) for row in leased] == [(held[0].id, "leased", 1)]
    assert leased[0]["lease_deadline"] is not None
    assert everything(bulk, queue, state="ready").num_rows == 2
    assert everything(bulk, queue, state="stored").num_rows == 3
    assert everything(bulk, queue, state="scheduled").column("payload").to_pylist() == [b"later"]


@pytest.mark.parametrize(
    ("where", "payloads"),
    [
        ("kind = 'x'", {b"a", b"c"}),
        ("kind <> 'x'", {b"b"}),
        ("starts_with(reference, 'r') and kind in ('x', 'z')", {b"a"}),
        ("attempts > 0", set()),
        ("kind = 'x' or kind = 'y' -- both", {b"a", b"b", b"c"}),
        ("created_at > timestamptz '2000-01-01 00:00:00Z' and lease_deadline is null", {b"a", b"b", b"c"}),
        ("partition = 7", set()),
        ("payload = 'b'::blob", {b"b"}),
        ("kind = ' or 1=1 --'", set()),
        ("text in ('a', 'z')", {b"a"}),
        ("text->>'country' = 'US'", set()),
    ],
)
def test_a_condition_is_evaluated_in_the_daemon(
    client: Client, bulk: BulkClient, queue: str, where: str, payloads: set[bytes]
) -> None:
    fill(client, queue)
    found = everything(bulk, queue, where=where, columns=["payload"])
    assert found.schema == arrow.chosen(arrow.ITEM, ["payload"])
    assert set(found.column("payload").to_pylist()) == payloads
    assert everything(bulk, queue, where=where, state="leased").num_rows == 0
    assert everything(bulk, queue, where=where).schema == arrow.chosen(arrow.ITEM, ())


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("nope = 1", "nope"),
        ("kind =", "syntax error"),
        ("true) or (true", "syntax error"),
        ("true) union all select id from items where (true", "syntax error"),
        ("true order by id", "syntax error"),
        ("true; select 1", "syntax error"),
        ("attempts >= (select max(attempts) from items)", "cannot contain a subquery"),
        ("exists (from items)", "cannot contain a subquery"),
        ("count(*) > 1", "WHERE"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_refused_before_anything_is_read(
    bulk: BulkClient, queue: str, where: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"where is invalid; .*{reason}"):
        bulk.plan(queue, where=where)
    with pytest.raises(InvalidRequest, match=f"where is invalid; .*{reason}"):
        list(bulk.scan(queue, 0, where=where))


def test_text_is_the_payload_where_it_is_utf_8_and_comes_only_when_it_is_asked_for(
    client: Client, bulk: BulkClient, queue: str
) -> None:
    client.produce(queue, ["Größe", b"\xff\xfe", ""])
    found = everything(bulk, queue, columns=["payload", "text"])
    assert dict(zip(*(found.column(name).to_pylist() for name in ("payload", "text")), strict=True)) == {
        "Größe".encode(): "Größe",
        b"\xff\xfe": None,
        b"": "",
    }
    assert "text" not in everything(bulk, queue).column_names


def test_a_plan_cuts_a_partition_into_ranges_that_cover_it_once(client: Client, bulk: BulkClient, queue: str) -> None:
    for n in range(0, 10_000, 1_000):
        client.produce(queue, [str(n + k) for k in range(1_000)])
    planned = bulk.plan(queue, splits=4)
    client.produce(queue, ["too late for the plan"])
    seen: list[bytes] = []
    for one in planned:
        assert len(one.upto_ids) == 4
        after = ""
        for upto in one.upto_ids:
            piece = [
                row
                for batch in bulk.scan(queue, one.partition, after_id=after, upto_id=upto)
                for row in batch.column("payload").to_pylist()
            ]
            assert 0.5 < len(piece) / (one.items / 4) < 2
            seen += piece
            after = upto
    assert sorted(map(int, seen)) == list(range(10_000))
    assert sum(one.items for one in planned) == 10_000


def test_a_large_partition_comes_in_slices(client: Client, bulk: BulkClient, queue: str) -> None:
    client.produce(queue, [bytes(500_000) for _ in range(4)])
    for _ in range(7):
        client.produce(queue, [bytes(900_000) for _ in range(3)])
    for columns in ([], ["text"], ["payload", "text"]):
        batches = [batch for number in (0, 1) for batch in bulk.scan(queue, number, columns=columns)]
        assert sum(batch.num_rows for batch in batches) == 25
        assert all(batch.nbytes < 9_000_000 for batch in batches)
        assert len(batches) >= 3


def test_an_empty_queue_is_an_empty_stream(bulk: BulkClient, queue: str) -> None:
    assert everything(bulk, queue).num_rows == 0
    assert [one.items for one in bulk.plan(queue, splits=3)] == [0, 0]


def test_what_cannot_be_scanned_is_refused(client: Client, bulk: BulkClient, queue: str) -> None:
    with pytest.raises(NotFound):
        list(bulk.scan("no-such-queue", 0))
    with pytest.raises(NotFound, match="'7' is not a valid partition"):
        list(bulk.scan(queue, 7))
    with pytest.raises(InvalidRequest, match="state is invalid"):
        list(bulk.scan(queue, 0, state="odd"))
    with pytest.raises(InvalidRequest, match="after_id is invalid"):
        list(bulk.scan(queue, 0, after_id="nonsense"))
    with pytest.raises(InvalidRequest, match="splits is invalid"):
        bulk.plan(queue, splits=0)
    client.offline_partitions(queue, [1])
    with pytest.raises(RetryRequest):
        list(bulk.scan(queue, 1))
    assert list(bulk.scan(queue, 0)) == []


def test_the_http_side_is_the_contract_s(daemon: Daemon) -> None:
    connection = http.client.HTTPConnection(daemon.http)
    for method, body, status in (
        ("GET", b"", 400),
        ("POST", b"{", 455),
        ("POST", b'{"queue_name": 1}', 455),
        ("POST", b'{"queue_name": "\xff"}', 400),
    ):
        connection.request(method, "/v1/bulk/items.scan", body)
        response = connection.getresponse()
        assert (response.status, response.read()[:1]) == (status, b"{")
        connection.close()


def test_a_scan_of_a_queue_that_is_deleted_ends(daemon: Daemon, client: Client, queue: str) -> None:
    with BulkClient(daemon.endpoint, patience=0) as bulk:
        bulk.produce(queue, [pa.record_batch({"payload": [bytes(1_000_000)] * 60})], "large")
        parts = [batches for batches in (bulk.scan(queue, 0), bulk.scan(queue, 1)) if next(batches, None) is not None]
        client.delete_queue(queue)
        for batches in parts:
            # The scan may return only the batches that were already sent. It must not wait for ever.
            with contextlib.suppress(QueratorError):
                collections.deque(batches, maxlen=0)
