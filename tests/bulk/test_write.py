"""`/v1/bulk/items.produce` and `.import`: each item is added once, and invalid streams are refused."""

from __future__ import annotations

import datetime
import http.client
import itertools
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from querator.client.bulk_client import BulkClient
from querator.client.clients import Client
from querator.errors import InvalidRequest, NotFound, RetryRequest
from querator.wire import arrow
from tests.daemons import Daemon
from tests.waiting import until


@pytest.fixture
def bulk(daemon: Daemon) -> Iterator[BulkClient]:
    with BulkClient(daemon.endpoint, patience=0) as one:
        yield one


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch(columns)


def payloads(bulk: BulkClient, queue: str, **settings: Any) -> list[bytes]:
    return [p for n in (0, 1) for part in bulk.scan(queue, n, **settings) for p in part.column("payload").to_pylist()]


def test_items_arrive_with_all_they_have(client: Client, bulk: BulkClient, queue: str) -> None:
    later = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
    answer = bulk.produce(
        queue,
        [batch(payload=["a", "b", "c"], kind=["k", None, ""], reference=["r"] * 3, enqueue_at=[None, None, later])],
        "one",
    )
    assert (answer.items, answer.added, answer.chunks) == (3, 3, 1)
    items = client.lease(queue, 10).items
    assert [(i.bytes_ if hasattr(i, "bytes_") else i.payload, i.kind, i.reference) for i in items] == [
        (b"a", "k", "r"),
        (b"b", "", "r"),
    ]
    assert payloads(bulk, queue, state="scheduled") == [b"c"]
    assert client.stats(queue).logical_queues[0].partitions[0].total in (0, 2)


def test_a_repeated_request_adds_nothing(client: Client, bulk: BulkClient, queue: str) -> None:
    rows = batch(payload=[str(n) for n in range(5_000)])
    assert bulk.produce(queue, [rows], "once").added == 5_000
    again = bulk.produce(queue, [rows], "once")
    assert (again.items, again.added) == (5_000, 0)
    assert bulk.produce(queue, [rows], "twice").added == 5_000
    assert len(payloads(bulk, queue)) == 10_000


def test_what_was_begun_is_finished_and_not_doubled(bulk: BulkClient, queue: str) -> None:
    """The first request breaks off after some chunks. Then the whole request is repeated."""
    rows = batch(payload=[str(n) for n in range(10_000)])
    part = rows.slice(0, 4_000)
    assert bulk.produce(queue, [part], "resumed").added == 4_000
    whole = bulk.produce(queue, [rows], "resumed")
    assert whole.added == 6_000
    assert sorted(map(int, payloads(bulk, queue))) == list(range(10_000))


def test_a_request_id_for_other_items_is_refused(bulk: BulkClient, queue: str) -> None:
    bulk.produce(queue, [batch(payload=["a"])], "mine")
    with pytest.raises(InvalidRequest, match="used before for other items"):
        bulk.produce(queue, [batch(payload=["b"])], "mine")


def test_request_ids_outlive_the_partition_that_remembers_them(client: Client, bulk: BulkClient, queue: str) -> None:
    rows = {request_id: batch(payload=[request_id] * 10) for request_id in "abcd"}
    for request_id, one in rows.items():
        bulk.produce(queue, [one], request_id)
    info = client.queue_info(queue)
    info.requested_partitions = 1
    client.update_queue(info)
    until(lambda: len(client.stats(queue).logical_queues[0].partitions) == 1)
    assert [bulk.produce(queue, [one], request_id).added for request_id, one in rows.items()] == [0, 0, 0, 0]


def test_a_repetition_may_come_in_other_batches_and_other_bytes(bulk: BulkClient, queue: str) -> None:
    """A slice still holds the bytes of its neighbours, and the bytes below a null are arbitrary."""
    times = pa.Array.from_buffers(
        pa.timestamp("us", "UTC"), 6_000, [pa.py_buffer(bytes(750)), pa.py_buffer(b"x" * 48_000)], 6_000
    )
    zeros = pa.array([None] * 6_000, pa.timestamp("us", "UTC"))
    payloads_ = [f"number {n}" for n in range(6_000)]
    first = pa.record_batch({"payload": payloads_, "kind": [None] * 6_000, "enqueue_at": times})
    again = pa.record_batch({"payload": payloads_, "kind": [""] * 6_000, "enqueue_at": zeros})
    cuts = (0, 1_000, 3_000, 6_000)
    parts = [again.slice(start, end - start) for start, end in itertools.pairwise(cuts)]
    assert bulk.produce(queue, [first], "again").added == 6_000
    assert bulk.produce(queue, parts, "again").added == 0
    assert len(payloads(bulk, queue)) == 6_000


def test_request_ids_outlive_a_crash(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Daemon(tmp_path_factory.mktemp("crash"), http=True) as daemon, BulkClient(daemon.endpoint) as bulk:
        client = daemon.client
        client.create_queue("q", partitions=2)
        rows = batch(payload=[str(n) for n in range(6_000)])
        assert bulk.produce("q", [rows], "kept").added == 6_000
        daemon.kill()
        daemon.start()
        assert bulk.produce("q", [rows], "kept").added == 0
        assert len(payloads(bulk, "q")) == 6_000


def test_a_daemon_that_goes_away_in_the_middle_is_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Daemon(tmp_path_factory.mktemp("away"), http=True) as daemon, BulkClient(daemon.endpoint, patience=60) as bulk:
        client = daemon.client
        client.create_queue("q", partitions=2)
        rows = batch(payload=[str(n) * 20 for n in range(60_000)])
        answers = []
        writing = threading.Thread(target=lambda: answers.append(bulk.produce("q", [rows], "w")))
        writing.start()
        until(lambda: client.stats("q").logical_queues[0].partitions[0].total > 0)
        daemon.kill()
        daemon.start()
        writing.join(60)
        assert answers[0].items == 60_000
        assert len(set(payloads(bulk, "q"))) == len(payloads(bulk, "q")) == 60_000


def test_leases_that_wait_are_woken(client: Client, bulk: BulkClient, queue: str) -> None:
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(client.lease(queue, 10, timeout=20).items))
    waiting.start()
    until(lambda: client.stats(queue).logical_queues[0].lease_waiting)
    bulk.produce(queue, [batch(payload=["x"] * 10)], "wake")
    waiting.join(20)
    assert len(got) == 10


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (batch(kind=["k"]), "column 'payload' is missing"),
        (batch(payload=["a"], odd=[1]), "column 'odd' is unknown"),
        (batch(payload=[1]), "column 'payload' is int64, not binary"),
        (batch(payload=["a", None]), "column 'payload' has rows without a value"),
        (batch(payload=["a"], enqueue_at=["tomorrow"]), "column 'enqueue_at' is string"),
        (batch(payload=["a"], attempts=[1]), "column 'attempts' is unknown"),
    ],
)
def test_streams_that_do_not_fit_are_refused(
    client: Client, bulk: BulkClient, queue: str, rows: pa.RecordBatch, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        bulk.produce(queue, [rows], "bad")
    assert payloads(bulk, queue) == []


def test_a_payload_over_the_limit_is_refused_and_the_error_says_what_is_in(bulk: BulkClient, queue: str) -> None:
    good, bad = batch(payload=[b"x"] * 10), batch(payload=[b"x", bytes(5_000_001)])
    with pytest.raises(InvalidRequest, match=r"that of row 11 has 5,000,001 bytes.*; 11 items are in the queue"):
        bulk.produce(queue, [good, bad], "large")
    assert len(payloads(bulk, queue)) == 11


def test_nonsense_and_half_streams_are_refused(daemon: Daemon, client: Client, bulk: BulkClient, queue: str) -> None:
    whole = arrow.encode_batches([batch(payload=["a" * 100] * 1_000)], batch(payload=["a"]).schema)
    for body in (b"", b"nonsense", whole[:200], whole[: len(whole) // 2]):
        connection = http.client.HTTPConnection(daemon.http)
        connection.request("POST", f"/v1/bulk/items.produce?queue_name={queue}", body)
        response = connection.getresponse()
        assert (response.status, b"stream is invalid" in response.read()) == (400, True)
        connection.close()
    assert payloads(bulk, queue) == []


def compressed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


def post(daemon: Daemon, queue: str, body: bytes) -> tuple[int, str]:
    connection = http.client.HTTPConnection(daemon.http)
    connection.request("POST", f"/v1/bulk/items.produce?queue_name={queue}", body)
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def test_streams_that_lie_are_refused_and_harm_nobody(daemon: Daemon, bulk: BulkClient, queue: str) -> None:
    rows = batch(payload=[b"a" * 1_000], kind=["some kind"])
    whole = arrow.encode_batches([rows], rows.schema)
    schema = arrow.stream_start(rows.schema)
    ends = struct.pack("<ii", 0, 1_000)
    lies = {
        "offsets that point outside": whole.replace(ends, struct.pack("<ii", 0, 0x7FFFFF00)),
        "a text that is none": whole.replace(b"some kind", b"some \xffind"),
        "a name that is no text": whole.replace(b"kind", b"k\xffnd"),
        "no schema": arrow.stream_part(rows) * 2,
        "a second schema": schema + schema,
        "more than anybody has memory for": compressed(batch(payload=[bytes(4_000_000)] * 100)),
    }
    for what, body in lies.items():
        status, answer = post(daemon, queue, body)
        assert (status, "stream is invalid" in answer) == (400, True), (what, answer)
    assert payloads(bulk, queue) == []


def test_a_stream_may_be_compressed(daemon: Daemon, bulk: BulkClient, queue: str) -> None:
    assert post(daemon, queue, compressed(batch(payload=["a" * 100] * 50)))[0] == 200
    assert payloads(bulk, queue) == [b"a" * 100] * 50


def test_a_history_that_is_none_is_refused(bulk: BulkClient, queue: str) -> None:
    for history in ("garbage", "{}", '[{"queue_name": 1}]'):
        with pytest.raises(InvalidRequest, match="history is invalid"):
            bulk.import_(queue, [batch(payload=["x"], history=[history])], "bad")
    assert payloads(bulk, queue) == []


def test_a_stream_without_length_may_be_long(daemon: Daemon, bulk: BulkClient, queue: str) -> None:
    schema = batch(payload=["a"]).schema

    def body() -> Iterator[bytes]:
        yield arrow.stream_start(schema)
        for n in range(30):
            yield arrow.stream_part(batch(payload=[f"{n}-{k}" * 30 for k in range(2_000)]))
        yield arrow.STREAM_END

    connection = http.client.HTTPConnection(daemon.http)
    connection.request("POST", f"/v1/bulk/items.produce?queue_name={queue}", body(), encode_chunked=True)
    assert connection.getresponse().read() == b'{"items":60000,"added":60000,"chunks":60}'
    connection.close()
    assert len(set(payloads(bulk, queue))) == 60_000


def test_states_are_respected(client: Client, bulk: BulkClient, daemon: Daemon, queue: str) -> None:
    client.pause_partitions(queue, [0])
    bulk.produce(queue, [batch(payload=["x"] * 10)], "one side")
    assert [one.items for one in bulk.plan(queue)] == [0, 10]
    client.pause_partitions(queue, [1])
    connection = http.client.HTTPConnection(daemon.http)
    body = arrow.encode_batches([batch(payload=["a"])], batch(payload=["a"]).schema)
    connection.request("POST", f"/v1/bulk/items.produce?queue_name={queue}&request_timeout=100ms", body)
    response = connection.getresponse()
    assert (response.status, b"no partition is available" in response.read()) == (454, True)
    connection.close()
    with pytest.raises(NotFound):
        bulk.produce("no-such-queue", [batch(payload=["a"])], "x")
    client.resume_partitions(queue, [0, 1])


def test_an_import_keeps_the_past_and_takes_each_source_once(client: Client, bulk: BulkClient, queue: str) -> None:
    born = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)
    rows = batch(payload=["a", "b", "b again"], source_id=["s1", "s2", "s2"], attempts=[3, 0, 0], created_at=[born] * 3)
    answer = bulk.import_(queue, [rows], "first")
    assert (answer.items, answer.added) == (3, 2)
    assert bulk.import_(queue, [rows], "second").added == 0
    found = [row for n in (0, 1) for part in bulk.scan(queue, n) for row in part.to_pylist()]
    assert [(row["payload"], row["source_id"], row["attempts"], row["created_at"]) for row in found] == [
        (b"a", "s1", 3, born),
        (b"b", "s2", 0, born),
    ]


@pytest.mark.parametrize("remember_sources", [False, True])
def test_a_source_is_known_after_its_item_is_gone_if_the_import_says_so(
    client: Client, bulk: BulkClient, queue: str, remember_sources: bool
) -> None:
    bulk.import_(queue, [batch(payload=["a", "b"], source_id=["s1", "s2"])], "1", remember_sources=remember_sources)
    client.complete(queue, [item.id for item in client.lease(queue, 2).items])
    again = batch(payload=["b", "c"], source_id=["s2", "s3"])
    assert bulk.import_(queue, [again], "2", remember_sources=remember_sources).added == (1 if remember_sources else 2)


def test_a_closed_partition_makes_an_import_by_source_wait(client: Client, bulk: BulkClient, queue: str) -> None:
    """The closed partition may hold the sources that the import names."""
    client.offline_partitions(queue, [1])
    with pytest.raises(RetryRequest):
        bulk.import_(queue, [batch(payload=["a"], source_id=["s"])], "x")
    client.reload_partitions(queue, [1])
    assert bulk.import_(queue, [batch(payload=["a"], source_id=["s"])], "x").added == 1


def test_a_file_that_takes_nothing_in_does_not_hold_up_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Daemon(tmp_path_factory.mktemp("stuck"), http=True) as daemon, BulkClient(daemon.endpoint, patience=0) as bulk:
        client = daemon.client
        client.create_queue("stuck")
        (file,) = (daemon.data / "partitions").glob("*.duckdb")
        file.with_name(file.name + ".wal").mkdir()  # DuckDB cannot create its log here
        for _ in range(6):
            client.produce("stuck", ["x" * 3_000_000])
        client.create_queue("other")
        assert bulk.produce("other", [batch(payload=["a"])], "one").added == 1
