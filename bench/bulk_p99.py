"""How a bulk import slows ordinary requests down: `python -m bench.bulk_p99 [--rows 1000000] [--same-queue]`.

Starts a daemon in a temporary directory. One process produces, leases and completes an item at a time, first alone,
then while another process imports rows of 200 bytes. It prints the 99th percentile of produce and lease, without and
with the import, and their ratio.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from querator.client.bulk_client import BulkClient
from querator.client.clients import Client
from tests.daemons import Daemon

ROWS_PER_REQUEST = 10_000
IDLE_SECONDS = 5.0
PAUSE_SECONDS = 0.002


class Times(NamedTuple):
    produce: list[float]
    lease: list[float]


def import_rows(endpoint: str, queue: str, rows: int, writers: int, number: int) -> None:
    """One of several writers. It sends its share of the rows, one request after another, as a Spark task does."""
    payloads = pa.array([f"{n:0200d}" for n in range(ROWS_PER_REQUEST)])
    batch = pa.record_batch({"payload": payloads, "kind": pa.array(["bulk"] * ROWS_PER_REQUEST)})
    with BulkClient(endpoint) as client:
        for first in range(0, rows // writers, ROWS_PER_REQUEST):
            client.produce(queue, [batch], f"bench {number} {first}")


def work(endpoint: str, queue: str, times: Times, until: Event | None = None) -> None:
    """Produces, leases and completes one item, pauses, and repeats that for some seconds or until an event is set."""
    end = time.monotonic() + IDLE_SECONDS
    with Client(endpoint) as client:
        while time.monotonic() < end if until is None else not until.is_set():
            started = time.perf_counter()
            client.produce(queue, ["x" * 200])
            times.produce.append(time.perf_counter() - started)
            started = time.perf_counter()
            items = client.lease(queue, 1).items
            times.lease.append(time.perf_counter() - started)
            client.complete(queue, [item.id for item in items])
            time.sleep(PAUSE_SECONDS)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--writers", type=int, default=1)
    parser.add_argument("--same-queue", action="store_true", help="import into the queue that is in use")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="querator-bench-") as scratch:
        run(Path(scratch), arguments.rows, arguments.writers, arguments.same_queue)


def run(scratch: Path, rows: int, writers: int, same_queue: bool) -> None:
    daemon = Daemon(scratch, http=True)
    try:
        with daemon.connect() as client:
            client.create_queue("work", partitions=1)
            client.create_queue("bulk", partitions=2)
        work(daemon.endpoint, "work", Times([], []))  # warm up
        idle, busy = Times([], []), Times([], [])
        work(daemon.endpoint, "work", idle)
        done = multiprocessing.Event()
        target = "work" if same_queue else "bulk"
        arguments = (daemon.endpoint, target, rows, writers)
        processes = [multiprocessing.Process(target=import_rows, args=(*arguments, n)) for n in range(writers)]
        started = time.monotonic()
        for process in processes:
            process.start()
        worker = threading.Thread(target=work, args=(daemon.endpoint, "work", busy, done))
        worker.start()
        for process in processes:
            process.join()
        seconds = time.monotonic() - started
        done.set()
        worker.join()
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        memory = int(status.partition("VmHWM:")[2].split()[0]) // 1024
        print(f"imported {rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f} a second; daemon up to {memory} MB")
        for name, before, during in zip(Times._fields, idle, busy, strict=True):
            texts = [
                f"p{share * 100:g} {quantile(before, share):.2f} -> {quantile(during, share):.2f} ms"
                for share in (0.5, 0.99, 0.999)
            ]
            ratio = quantile(during, 0.99) / quantile(before, 0.99)
            print(f"{name:<8} {',  '.join(texts)},  ratio at p99 {ratio:.1f}, {len(during):,} calls")
    finally:
        daemon.stop()


if __name__ == "__main__":
    main()
