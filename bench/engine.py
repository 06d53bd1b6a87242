"""The engine's figures: the CPU and memory of a long queue, the speed of the storage, and the time of a restart.

    python -m bench.engine [--items 5000000]

Length and restart are measured on a real daemon over its Unix socket. The rest compares the Logical on the DuckDB
store, without HTTP, with a plain loop of the same inserts and deletes. All comparisons are within one run.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.compare import measure
from bench.compare.querator_server import Querator, call
from bench.compare.wire import Address
from bench.store import Applier, lifecycle_in_bare_duckdb
from querator.daemon.queue.logical import Logical
from querator.daemon.queue.requests import Complete, LeaseItems, Produce
from querator.daemon.store.base import Store
from querator.daemon.store.duck.storage import DuckStorage
from querator.items import Placement, Queue
from querator.wire.leased import LeaseReply
from querator.wire.messages import QueueProduceItem

BATCH = 1_000
LEASES = 300
REST_SECONDS = 3.0
"""The wait before the daemon's memory is measured, because it frees memory when it is idle for a second."""
PAYLOAD = "x" * 200


# -- length and restart, on a daemon


def fill(address: Address, queue: str, count: int, **more: object) -> None:
    batch = {"queue_name": queue, "request_timeout": "5m", "items": [{"utf8": PAYLOAD, **more}] * BATCH}
    for _ in range(count // BATCH):
        call(address, "/v1/queue.produce", batch)


def lease_cpu_us(server: Querator, queue: str) -> float:
    """The server's CPU time per lease of one item, which varies less than elapsed time on a busy machine."""
    address = server.addresses["unix"]
    pids = measure.process_tree(server.pid)
    request = {"queue_name": queue, "client_id": "bench", "batch_size": 1, "request_timeout": "1m"}
    call(address, "/v1/storage/items.list", {"queue_name": queue, "limit": 1})  # apply all items to the file first
    samples = []
    for _ in range(5):
        before = measure.cpu_seconds(pids)
        for _ in range(LEASES):
            call(address, "/v1/queue.lease", request)
        samples.append((measure.cpu_seconds(pids) - before) / LEASES * 1e6)
    return statistics.median(samples)


def settled_memory(server: Querator) -> int:
    """The daemon's memory after everything was applied to its files."""
    address, pids = server.addresses["unix"], measure.process_tree(server.pid)
    for name in ("short", "long"):
        call(address, "/v1/storage/items.list", {"queue_name": name, "limit": 1})
    time.sleep(REST_SECONDS)
    return measure.resident_memory_bytes(pids)


def length_and_restart(directory: Path, items: int) -> None:
    server = Querator(directory)
    server.start()
    address = server.addresses["unix"]
    for name in ("short", "long"):
        server.create_queue(name, 1)
    fill(address, "short", 5_000)
    short_us, short_memory = lease_cpu_us(server, "short"), settled_memory(server)
    started = time.perf_counter()
    fill(address, "long", items)
    print(f"filled with {items:,} items in {time.perf_counter() - started:.0f} s")
    long_us, long_memory = lease_cpu_us(server, "long"), settled_memory(server)
    print(f"lease, server CPU: {short_us:.0f} µs with 5,000 waiting, {long_us:.0f} µs with {items:,}:", end=" ")
    print(f"{long_us / short_us:.2f} times (at most 1.3)")
    print(f"memory grew by {(long_memory - short_memory) / 1e6:.0f} MB (less than 100)")
    request = {"queue_name": "long", "client_id": "bench", "batch_size": BATCH, "request_timeout": "1m"}
    for _ in range(10):
        call(address, "/v1/queue.lease", request)
    fill(address, "long", 10_000, enqueue_at="2099-01-01T00:00:00Z")
    for how in (signal.SIGTERM, signal.SIGKILL):
        server.stop_process(how)
        started = time.perf_counter()
        server.start()
        call(server.addresses["unix"], "/v1/queue.lease", {**request, "batch_size": 1})
        print(f"serving {time.perf_counter() - started:.2f} s after a start that follows {how.name} (within 3)")
    server.stop()


# -- the Logical and the store, without HTTP


class Loop:
    """Plans, writes and settles, one pass after another."""

    def __init__(self, directory: Path) -> None:
        self.storage = DuckStorage("bench", directory)
        self.storage.recover()
        placement = Placement(queue="q", number=0, uuid=str(uuid4()), storage="bench")
        self.storage.create(placement.uuid, "q")
        queue = Queue(name="q", lease_timeout_ns=60 * 10**9, expire_timeout_ns=86_400 * 10**9)
        self.logical = Logical(queue, [placement], self._open, lambda logical: None)
        self.answers: list[Any] = []
        self.turn()

    def _open(self, placement: Placement) -> Store:
        return self.storage.open(placement.uuid, placement.queue)

    def turn(self) -> None:
        this = self.logical.plan(time.time_ns() // 1_000, time.monotonic_ns())
        taken = self.storage.take()
        if taken is not None:
            self.storage.write(taken)
            self.storage.absorb(taken)
        self.logical.settle(this, {})
        for read in this.files.take_reads():
            read.done(read.work())

    def ask(self, request: Any) -> Any:
        self.logical.submit(request)
        self.turn()
        return self.answers.pop()


def lifecycle_through_the_logical(directory: Path, rounds: int) -> float:
    """Items per second through produce, lease and complete, with a thread that applies, as in the daemon."""
    loop = Loop(directory)
    drafts = [QueueProduceItem(utf8=PAYLOAD)] * BATCH
    answer, far = loop.answers.append, 1 << 62
    store = loop.logical.partitions[0].store
    assert store is not None
    applier = Applier(store)  # type: ignore[arg-type]
    started = time.perf_counter()
    for _ in range(rounds):
        loop.ask(Produce(answer, far, drafts, False))
        delivery = loop.ask(LeaseItems(answer, far, "bench", BATCH))
        assert isinstance(delivery, LeaseReply) and len(delivery.leases) == BATCH
        loop.ask(Complete(answer, 0, [lease.id for lease in delivery.leases]))
        applier.look()
    seconds = time.perf_counter() - started
    applier.stop()
    loop.storage.close()
    return rounds * BATCH / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="querator-bench-") as temporary:
        directory = Path(temporary)
        for name in ("bare", "logical", "daemon"):
            (directory / name).mkdir()
        bare = lifecycle_in_bare_duckdb(directory / "bare", arguments.rounds)
        ours = lifecycle_through_the_logical(directory / "logical", arguments.rounds)
        print(f"batches of {BATCH:,}: bare DuckDB {bare:,.0f} items/s, Logical and store {ours:,.0f}: ", end="")
        print(f"{ours / bare:.2f} times (at least 0.6)")
        length_and_restart(directory / "daemon", arguments.items)


if __name__ == "__main__":
    main()
