"""A long answer waits for a slow reader without filling the daemon's memory."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from querator.client.clients import Client
from querator.errors import RequestFailed
from querator.wire import messages, protobuf
from tests.daemons import Daemon

PAYLOAD = b"0123456789" * 4_000
ITEMS = 800
READERS = 12


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, http=True) as running:
        yield running


@pytest.fixture
def filled(daemon: Daemon) -> Daemon:
    """A partition with 32 MB of items."""
    with daemon.connect() as client:
        client.create_queue("q", partitions=1)
        for _ in range(ITEMS // 50):
            client.produce("q", [PAYLOAD] * 50)
    return daemon


def ids_in_pages(client: Client) -> list[str]:
    ids: list[str] = []
    while True:
        page = client.list_items("q", pivot=ids[-1] if ids else "", limit=20)
        fresh = [item.id for item in page if item.id not in ids[-1:]]
        if not fresh:
            return ids
        ids += fresh


def test_a_long_list_is_whole_in_json_and_in_protobuf(filled: Daemon) -> None:
    with filled.connect() as client, httpx.Client(base_url=filled.endpoint, timeout=60) as plain:
        wanted = ids_in_pages(client)
        assert len(wanted) == ITEMS
        answer = plain.post("/v1/storage/items.list", json={"queue_name": "q", "limit": ITEMS + 1})
        assert answer.headers["transfer-encoding"] == "chunked"
        assert [item["id"] for item in answer.json()["items"]] == wanted
        answer = plain.post(
            "/v1/storage/items.list",
            json={"queue_name": "q", "limit": ITEMS - 1},
            headers={"accept": "application/protobuf"},
        )
        items = protobuf.decode(messages.StorageItemsListResponse, answer.content).items
        assert [item.id for item in items] == wanted[:-1]
        assert {item.payload for item in items} == {PAYLOAD}


LISTED = {"queue_name": "q", "limit": ITEMS}
SCANNED = {"queue_name": "q", "partition": 0}


@pytest.mark.parametrize(("path", "asked"), [("storage/items.list", LISTED), ("bulk/items.scan", SCANNED)])
def test_memory_does_not_follow_what_clients_do_not_read(filled: Daemon, path: str, asked: dict[str, object]) -> None:
    body = json.dumps(asked).encode()
    request = b"POST /v1/%s HTTP/1.1\r\nHost: q\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
    with ExitStack() as stack, filled.connect() as client:
        # After this, DuckDB and the allocators have taken the memory that they keep.
        assert len(client.list_items("q", limit=ITEMS)) == ITEMS
        before = memory_bytes(filled)
        sockets = [stack.enter_context(socket.socket()) for _ in range(READERS)]
        host, port = filled.http.split(":")
        for one in sockets:
            one.settimeout(60)
            one.connect((host, int(port)))
            one.sendall(request)
        for one in sockets:
            assert one.recv(12) == b"HTTP/1.1 200"
        # By now every client has the first part of its answer, and the daemon still serves requests.
        assert len(client.list_items("q", limit=10)) == 10
        grown = memory_bytes(filled) - before
    assert grown < READERS * ITEMS * len(PAYLOAD) // 2, f"{grown // 1_000_000} MB"


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_a_result_that_is_cut_off_in_the_middle_ends_with_its_error(daemon: Daemon, form: str) -> None:
    endless = "select range as n, repeat('x', 1000) as text from range(1000000000000)"
    with daemon.connect() as client:
        client.create_queue("q", partitions=1)
        with pytest.raises(RequestFailed, match="query timed out; it was stopped after 4s"):
            client.sql_bytes("q", endless, format=form, timeout=4)
        assert client.sql_bytes("q", "select 1 as one", format="json") == b'[{"one":1}]'
    daemon.stop()
    log = daemon.output
    assert "an answer was cut off" in log and "Traceback" not in log


def memory_bytes(daemon: Daemon) -> int:
    """The peak memory of the daemon so far."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
