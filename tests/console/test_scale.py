"""With many queues and items, no page loads everything: its size, its time and the daemon's memory stay bounded.

The ordinary test is small. The slow one has 10,000 queues and 10,000,000 items.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, expect

from querator.client import BulkClient
from querator.daemon.console.overview_page import live_seconds
from querator.limits import CONSOLE_DEAD_ITEMS_MAX
from tests.console.browsing import ConsoleDaemon, Reader

QUEUES_AT_ONCE = 8
BATCH_ITEMS = 250_000
PAGE_BYTES_MAX = 800_000
"""A result of SQL may be 100,000 characters long, and five times as long when it is escaped."""
GROWTH_BYTES_MAX = 400_000_000
"""How much memory the daemon may need for looking, whatever it holds. DuckDB gets a part of it for grouping."""


class Size(NamedTuple):
    queues: int
    items: int
    page_seconds_max: float
    """Also on a busy machine. A page that reads everything takes far longer with the large size."""


SMALL = Size(110, 300_000, 30.0)
LARGE = Size(10_000, 10_000_000, 120.0)


@pytest.fixture(params=[SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["small", "large"])
def crowd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[ConsoleDaemon, Size]]:
    """A daemon with many queues. `big` holds most of the items, `dead` as many dead items, of very many groups."""
    size: Size = request.param
    with ConsoleDaemon(tmp_path) as daemon:
        daemon.client.create_queue("dead")
        daemon.client.create_queue("big", partitions=2, dead_queue="dead")
        with ThreadPoolExecutor(QUEUES_AT_ONCE) as pool:
            names = [f"team-{number % 100:02}.service-{number:05}" for number in range(size.queues - 2)]
            list(pool.map(lambda name: daemon.connect().create_queue(name, dead_queue="dead"), names))
        bulk = BulkClient(daemon.endpoint)
        for number in range(0, size.items, BATCH_ITEMS):
            count = min(BATCH_ITEMS, size.items - number)
            bulk.produce("big", [some_items(number, count)], f"big-{number}")
            bulk.import_("dead", [some_dead_items(number, count)], f"dead-{number}")
        yield daemon, size


def some_items(first: int, count: int) -> pa.RecordBatch:
    payloads = [b'{"n": %d}' % number for number in range(first, first + count)]
    return pa.record_batch({"payload": pa.array(payloads, pa.binary()), "kind": ["mail", "bill"] * (count // 2)})


def some_dead_items(first: int, count: int) -> pa.RecordBatch:
    death = '[{"at":1767225600000000,"reason":"%s","attempts":1,"queue_name":"big","source_id":"x"}]'
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "payload": pa.array([b"x"] * count, pa.binary()),
            "kind": [f"kind-{number % 20}" for number in numbers],
            "reference": [f"order-{number}" for number in numbers],
            "history": [death % ("client" if number % 3 else "expired") for number in numbers],
        }
    )


class Look(NamedTuple):
    status: int
    bytes_: int
    seconds: float


def look(daemon: ConsoleDaemon, path: str, **fields: object) -> Look:
    wire = http.client.HTTPConnection(urlsplit(daemon.address).netloc, timeout=300)
    begin = time.monotonic()
    wire.request("GET", f"/console{path}?{urlencode(fields)}")
    answer = wire.getresponse()
    size = len(answer.read())
    wire.close()
    return Look(answer.status, size, time.monotonic() - begin)


def memory_bytes(daemon: ConsoleDaemon) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1_024


def test_an_overview_of_many_queues_is_loaded_again_less_often() -> None:
    assert [live_seconds(queues) for queues in (0, 1_000, 10_000)] == [5, 5, 25]


def test_no_page_loads_everything(browser: Browser, crowd: tuple[ConsoleDaemon, Size]) -> None:
    daemon, size = crowd
    item = daemon.client.list_items("big", limit=1)[0].id
    pages: list[tuple[str, dict[str, object]]] = [
        ("/", {}),
        ("/", {"sort": "name", "offset": size.queues - 60}),
        ("/", {"contains": "service-0005"}),
        ("/queue", {"name": "big"}),
        ("/leases", {"name": "big"}),
        ("/items", {"name": "big"}),
        ("/items", {"name": "big", "state": "leased"}),
        ("/items", {"name": "big", "where": "kind = 'bill'"}),
        ("/items", {"name": "big", "where": "kind = 'none'"}),
        ("/item", {"name": "big", "id": item}),
        ("/dead", {"name": "dead"}),
        ("/dead", {"name": "dead", "by": "reference"}),
        ("/sql", {"name": "big", "query": "select * from items"}),
        ("/sql", {"name": "big", "query": "select repeat('&', 1000), * from items"}),
        ("/sql", {"name": "big", "query": "select repeat('x', 1000000) from items"}),
        ("/sql", {"name": "big", "query": "select id, payload from items order by payload desc"}),
        ("/jobs", {}),
        ("/daemon", {}),
    ]
    look(daemon, "/")  # imports the pages
    before = memory_bytes(daemon)
    for path, fields in pages:
        seen = look(daemon, path, **fields)
        print(f"{path} {fields}: {seen.status}, {seen.bytes_:,} bytes, {seen.seconds:.2f} s")
        assert seen.status == 200, path
        assert seen.bytes_ < PAGE_BYTES_MAX, (path, fields)
        assert seen.seconds < size.page_seconds_max, (path, fields)
    print(f"memory: {before:,} bytes before, {memory_bytes(daemon):,} bytes after")
    assert memory_bytes(daemon) - before < GROWTH_BYTES_MAX

    reader = Reader(browser, daemon.address)
    page = reader.open()
    expect(page.locator("#queues tbody tr")).to_have_count(50)
    reader.sees(f"1 to 50 of {size.queues:,}")
    reader.press("Next")
    expect(page.locator("#queues tbody tr")).to_have_count(50)
    page = reader.open("/items", name="big")
    first = page.locator("td.id").all_inner_texts()
    reader.press("Next page")
    assert len(first) == 50 and not set(first) & set(page.locator("td.id").all_inner_texts())
    reader.open("/dead", name="dead")
    if size.items <= CONSOLE_DEAD_ITEMS_MAX:
        reader.sees(f"{size.items:,} items in 40 groups")
    else:
        reader.sees(f"of {size.items:,} items are counted here: the latest ones")
        reader.sees("items in 40 groups")
    reader.page.get_by_label("Choose all groups").check()
    reader.press("Redrive the chosen groups …")
    heading = "Redrive 3" if size.items <= CONSOLE_DEAD_ITEMS_MAX else "Redrive at least "
    expect(reader.page.get_by_role("heading", level=1)).to_contain_text(heading)
    reader.open("/dead", name="dead", by="reference")
    reader.sees("Group by fewer columns")
    reader.close()
