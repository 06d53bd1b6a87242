"""A read that fails harms no other request, unless the storage itself has failed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from querator import ids
from querator.daemon.bulk import scans
from querator.daemon.engine import read
from querator.daemon.store import ITEMS, Scan, Slice
from querator.daemon.store.base import LackOfMemory, StorageError
from querator.daemon.store.duck.duckstore import DuckStore
from querator.errors import InternalError, InvalidRequest, QueratorError, RequestFailed, RetryRequest
from querator.wire import messages as m
from tests.maintenance.house import House

BEYOND_64_BITS = (1 << 63) + 5
LIST = m.StorageItemsListRequest(queue_name="q")


@pytest.mark.parametrize(
    ("error", "answer", "state"),
    [
        (LackOfMemory("it takes too much"), RequestFailed, "available"),
        (ValueError("a mistake of the daemon"), InternalError, "available"),
        (StorageError("the disk is gone"), RetryRequest, "error"),
    ],
)
def test_only_a_failing_store_fails_its_partition(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception, answer: type[QueratorError], state: str
) -> None:
    house.create()
    house.produce("a")

    def failing(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("querator.daemon.store.duck.duckstore.DuckStore.page", failing)
        assert isinstance(house.refusal("storage/items.list", LIST), answer)
        assert house.states() == [state]
    house.until(lambda: house.states() == ["available"])
    assert house.contents() == ["a"]


def test_ids_with_sequences_beyond_64_bits_are_unknown_ids(house: House) -> None:
    house.create()
    house.produce("a")
    (held,) = house.lease()
    item_id = ids.encode(house.partition(0).prefix, BEYOND_64_BITS)
    inspect = m.ItemsInspectRequest(queue_name="q", id=item_id)
    assert "does not exist" in str(house.refusal("items.inspect", inspect))
    assert house.call("storage/items.list", m.StorageItemsListRequest(queue_name="q", pivot=item_id)).items == []
    house.call("storage/items.delete", m.StorageItemsDeleteRequest(queue_name="q", ids=[item_id]))
    assert house.complete(item_id).result(5) is None
    extend = m.QueueExtendRequest(queue_name="q", ids=[item_id])
    assert isinstance(house.refusal("queue.extend", extend), InvalidRequest)
    assert house.states() == ["available"]
    assert house.complete(held.id).result(5) is None


def test_a_list_that_no_memory_is_left_for_is_refused_and_the_queue_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB may use less memory than one vector of these payloads needs."""
    house.create()
    for _ in range(10):
        house.produce(*["x" * 40_000] * 100)
    house.ask("reload")  # applies everything to the file
    instance = house.registry.storages.opened("default")._files.instance  # type: ignore[attr-defined]
    monkeypatch.setattr(instance, "make_room", lambda had_bytes, forgotten: False)
    monkeypatch.setattr(instance, "memory_bytes", 10_000_000)
    instance.forget_blocks()
    refused = house.refusal("storage/items.list", LIST)
    assert isinstance(refused, RequestFailed) and "memory" in refused.message
    assert house.states() == ["available"]
    (held,) = house.lease()
    assert house.complete(held.id).result(5) is None
    monkeypatch.undo()


def test_a_long_list_comes_in_parts_that_are_one_list(house: House) -> None:
    house.create()
    for _ in range(5):
        house.produce(*["x" * 40_000] * 100)
    parts = house.call("storage/items.list", LIST)

    async def gather() -> list[int]:
        return [len(part.items) async for part in parts]

    sizes = house.run(gather())
    assert sum(sizes) == 500 and max(sizes) * 40_000 <= 2_000_000


def test_a_read_waits_for_one_part_of_long_answers_and_not_for_one_of_each(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.create()
    house.produce("a", "b")
    logical, partition = house.logical(), house.partition()
    read_slice, slices_read = DuckStore.slice, 0
    has_begun, may_read = threading.Event(), threading.Event()

    def slow(store: DuckStore, scan: Scan, number: int) -> Slice:
        nonlocal slices_read
        slices_read += 1
        has_begun.set()
        assert may_read.wait(20)
        return read_slice(store, scan, number)

    async def scan() -> list[int]:
        upto = await scans.flush(logical, partition)
        wanted = Scan(ITEMS, ("id",), 0, upto)
        parts = scans.slices(house.registry, logical, partition, wanted, lambda batch: batch.num_rows)
        return [rows async for rows in parts]

    async def scans_and_a_read() -> tuple[int, list[list[int]]]:
        tasks = [asyncio.ensure_future(scan()) for _ in range(8)]
        await asyncio.to_thread(has_begun.wait, 20)
        for _ in range(100):  # until all scans that may read wait for the partition
            await asyncio.sleep(0)
        other = asyncio.ensure_future(read(logical, partition, lambda store: slices_read))
        await asyncio.sleep(0)
        may_read.set()
        return await other, await asyncio.gather(*tasks)

    monkeypatch.setattr(DuckStore, "slice", slow)
    before, scanned = house.run(scans_and_a_read())
    assert scanned == [[2]] * 8
    assert before <= 2
