"""The cost of the store: compared with plain DuckDB transactions, for queues of several lengths, and at a start.

    python bench/store.py [--items 5000000]

Everything happens in one run in a temporary directory, so that ratios are meaningful. Seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import duckdb
import pyarrow as pa

from querator.daemon.store.batches import Batch, others_of
from querator.daemon.store.duck import arrow_rows, tables
from querator.daemon.store.duck.duckstore import DuckStore
from querator.daemon.store.duck.storage import DuckStorage
from querator.items import NOBODY, Item

BATCH_ITEMS = 1_000
PAYLOAD = b"x" * 200
START_SEQ = 1_700_000_000_000_000
DAY_US = 86_400_000_000


def make_items(first: int, count: int) -> list[Item]:
    return [Item(seq, seq, seq + DAY_US, PAYLOAD, "kind", "reference") for seq in range(first, first + count)]


def median_ms(action: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def batch_of(**fields: Any) -> Batch:
    """A batch with these fields."""
    batch = Batch()
    for name, value in fields.items():
        setattr(batch if hasattr(batch, name) else others_of(batch), name, value)
    return batch


def write(storage: DuckStorage, store: DuckStore, batch: Batch) -> None:
    store.unapplied.commit(batch)
    taken = storage.take()
    storage.write(taken)
    storage.absorb(taken)


class Applier:
    """A thread that applies batches when enough have gathered, as in the daemon."""

    def __init__(self, store: DuckStore) -> None:
        self._store = store
        self._wanted = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def look(self) -> None:
        if self._store.unapplied_bytes > 16_000_000:
            self._wanted.set()

    def _run(self) -> None:
        while not self._is_over:
            self._wanted.wait()
            self._wanted.clear()
            self._store.flush()

    def stop(self) -> None:
        self._is_over = True
        self._wanted.set()
        self._thread.join()


def lifecycle_through_the_store(directory: Path, rounds: int) -> float:
    """Items per second through produce, lease and complete. Each step is durable on its own."""
    storage = DuckStorage("bench", directory)
    storage.recover()
    store = storage.create(str(uuid4()), "bench")
    applier = Applier(store)
    batches = [make_items(START_SEQ + at * BATCH_ITEMS, BATCH_ITEMS) for at in range(rounds)]
    start = time.perf_counter()
    for items in batches:
        seqs = [item.seq for item in items]
        write(storage, store, batch_of(add=items, last_seq=seqs[-1]))
        leases = batch_of(lease_seqs=seqs, lease_attempts=[1] * BATCH_ITEMS, lease_deadlines=[seqs[0]] * BATCH_ITEMS)
        write(storage, store, leases)
        write(storage, store, batch_of(remove=seqs))
        applier.look()
    taken = time.perf_counter() - start
    applier.stop()
    storage.close()
    return rounds * BATCH_ITEMS / taken


def lifecycle_in_bare_duckdb(directory: Path, rounds: int) -> float:
    """Items per second of the same inserts and deletes as DuckDB transactions, with Arrow for speed."""
    connection = duckdb.connect(":memory:")
    connection.execute("SET checkpoint_threshold = '1TB'")
    connection.execute(f"ATTACH '{directory / 'bare.duckdb'}' AS bare (BLOCK_SIZE 16384)")
    for statement in tables.SCHEMA:
        connection.execute(statement.format(file="bare"))
    batches = [make_items(START_SEQ + at * BATCH_ITEMS, BATCH_ITEMS) for at in range(rounds)]
    start = time.perf_counter()
    for items in batches:
        rows = pa.table(arrow_rows.item_rows(items))
        leases = pa.table(arrow_rows.lease_rows([(item.seq, (1, item.seq, NOBODY)) for item in items]))
        connection.register("fresh", rows)
        connection.register("leases", leases)
        connection.execute("INSERT INTO bare.items SELECT * FROM fresh")
        connection.execute("INSERT INTO bare.leases SELECT * FROM leases")
        connection.execute("BEGIN")
        connection.execute("DELETE FROM bare.items WHERE seq IN (SELECT seq FROM fresh)")
        connection.execute("DELETE FROM bare.leases WHERE seq IN (SELECT seq FROM fresh)")
        connection.execute("COMMIT")
    taken = time.perf_counter() - start
    connection.close()
    return rounds * BATCH_ITEMS / taken


def commit_costs(directory: Path) -> dict[str, float]:
    """Microseconds of our own work from produce to complete, without the disk."""
    storage = DuckStorage("bench", directory)
    storage.recover()
    store = storage.create(str(uuid4()), "bench")
    storage._journal.append = lambda pieces, numbers: None  # type: ignore[method-assign]

    def cycle(count: int, rounds: int) -> float:
        batches = [make_items(START_SEQ + at * count, count) for at in range(rounds)]
        start = time.perf_counter()
        for items in batches:
            seqs = [item.seq for item in items]
            write(storage, store, batch_of(add=items, last_seq=seqs[-1]))
            write(storage, store, batch_of(lease_seqs=seqs, lease_attempts=[1] * count, lease_deadlines=seqs))
            write(storage, store, batch_of(remove=seqs))
        return (time.perf_counter() - start) / rounds * 1e6

    return {"one item": cycle(1, 20_000), "1,000 items": cycle(1_000, 200)}


def fill(storage: DuckStorage, store: DuckStore, count: int) -> None:
    """Fills a partition faster than the daemon could. DuckDB creates the rows; leases and schedules are committed."""
    cursor = storage._files.instance.cursor()
    name = "p" + UUID(store.uuid).hex
    cursor.execute(
        f"""
        INSERT INTO {name}.items BY NAME
        SELECT {START_SEQ} + range AS seq, make_timestamp({START_SEQ} + range) AS created_at,
            make_timestamp({START_SEQ + DAY_US} + range) AS expire_deadline,
            (md5(range::VARCHAR) || repeat('x', 168))::BLOB AS payload, 'kind' AS kind, 'reference' AS reference
        FROM range({count})
        """
    )
    end = START_SEQ + count
    write(storage, store, batch_of(last_seq=end))
    store.flush()
    store.checkpoint(force=True)


def lease_and_schedule(storage: DuckStorage, store: DuckStore, count: int) -> None:
    held = [START_SEQ + at * 100 for at in range(count)]
    write(storage, store, batch_of(lease_seqs=held, lease_attempts=[1] * count, lease_deadlines=held))
    end = store.applied_through
    waiting = [Item(end + 1 + at, end, end + DAY_US, PAYLOAD, enqueue_at=end + at) for at in range(count)]
    write(storage, store, batch_of(schedule=waiting, last_seq=end + count))
    store.flush()


def against_length(directory: Path, lengths: list[int]) -> None:
    storage = DuckStorage("bench", directory)
    storage.recover()
    uuids = [str(uuid4()) for _ in lengths]
    stores = [storage.create(uuid, "bench") for uuid in uuids]
    for store, length in zip(stores, lengths, strict=True):
        fill(storage, store, length)
    for name, read in (
        ("the first 1,000", lambda store: store.ready(0, None, 1_000, 1 << 40)),
        ("the first 4,000", lambda store: store.ready(0, None, 4_000, 1 << 40)),
    ):
        costs = [[], []]
        for _ in range(15):
            for at, store in enumerate(stores):
                costs[at].append(median_ms(lambda store=store, read=read: read(store), 1))
        short, long = (statistics.median(cost) for cost in costs)
        print(f"ready, {name}: {short:.1f} ms of {lengths[0]:,}, {long:.1f} ms of {lengths[1]:,}: {long / short:.2f}")
    store, uuid = stores[1], uuids[1]
    lease_and_schedule(storage, store, 10_000)
    storage.close()

    start = time.perf_counter()
    storage = DuckStorage("bench", directory)
    storage.recover()
    store = storage.open(uuid, "bench")
    opened = time.perf_counter() - start
    print(f"open with {lengths[1]:,} items, 10,000 leases, 10,000 scheduled: {opened * 1e3:.0f} ms")
    for name, action in {
        "summary": store.summary,
        "leased": store.leased,
        "scheduled(10,000)": lambda: store.scheduled(10_000),
        "next_expiry": store.next_expiry,
        "expired, none": lambda: store.expired(0, 1_000),
        "first window": lambda: store.ready(0, None, 12_000, 1 << 40),
        "find 1,000": lambda: store.find(range(START_SEQ, START_SEQ + 1_000)),
        "page of 1,000": lambda: store.page(False, START_SEQ + lengths[1] // 2, 1_000),
        "sources of 1,000": lambda: store.sources([f"source {at}" for at in range(1_000)]),
        "forget": lambda: store.forget(START_SEQ),
    }.items():
        print(f"    {name}: {median_ms(action, 5):.1f} ms")
    storage.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=5_000_000, help="length of the long queue")
    parser.add_argument("--rounds", type=int, default=300, help="batches of 1,000 through the lifecycle")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        print("our own work for produce, lease and complete, without the disk:")
        for name, cost in commit_costs(directory / "costs").items():
            print(f"    {name}: {cost:.1f} µs")
        ours = lifecycle_through_the_store(directory / "ours", options.rounds)
        bare = lifecycle_in_bare_duckdb(directory, options.rounds)
        print(f"lifecycle of 1,000-item batches: {ours:,.0f} items/s, bare DuckDB {bare:,.0f}: {ours / bare:.1f} times")
        against_length(directory / "length", [5_000, options.items])


if __name__ == "__main__":
    main()
