"""How long a partition is unavailable during a migrate to another storage, and how much other requests slow down.

    python bench/migrate.py [--items 1000000] [--bytes 200] [--other DIRECTORY]

The queue has two partitions. One is filled and migrated to a storage in `--other`, a directory on another file system.
Then its items are migrated into the other partition. Clients produce, lease and complete all the time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from querator import Client
from querator.errors import QueratorError

BATCH_ITEMS = 1_000
START = (
    "import sys; from querator.config import daemon_config; from querator.daemon import server;"
    " server.run(daemon_config(config=sys.argv[1], environ={}))"
)


class Neighbour:
    """A client that produces, leases and completes one item after another, and records the durations."""

    def __init__(self, endpoint: str) -> None:
        self.seconds: list[float] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(endpoint,))
        self._thread.start()

    def _run(self, endpoint: str) -> None:
        with Client(endpoint, timeout=60) as client:
            while not self._stop.is_set():
                start = time.perf_counter()
                try:
                    client.produce("busy", "x")
                    client.complete("busy", [item.id for item in client.lease("busy", 1).items])
                    # The queue itself stays in use during the migrate, through its other partition.
                    client.produce("q", "y")
                except QueratorError as error:
                    self.errors.append(str(error))
                self.seconds.append(time.perf_counter() - start)

    def stop(self) -> str:
        self._stop.set()
        self._thread.join()
        worst, usual = max(self.seconds) * 1e3, statistics.median(self.seconds) * 1e3
        return f"{len(self.seconds)} rounds of its neighbours: median {usual:.1f} ms, worst {worst:.0f} ms" + (
            f", errors {self.errors[:3]}" if self.errors else ", no errors"
        )


def fill(client: Client, count: int, size: int) -> None:
    client.pause_partitions("q", [1])
    for _ in range(0, count, BATCH_ITEMS):
        client.produce("q", [os.urandom(size) for _ in range(BATCH_ITEMS)])
    client.resume_partitions("q", [1])


def watch(client: Client, job_id: str, number: int) -> tuple[float, float]:
    """The seconds without an available partition, and the seconds of the job."""
    start = time.perf_counter()
    stood_still, seen = 0.0, start
    while client.show_job(job_id).state == "running":
        state = client.list_partitions("q")[number].state
        now = time.perf_counter()
        if state != "available":
            stood_still += now - seen
        seen = now
        time.sleep(0.005)
    job = client.show_job(job_id)
    assert job.state == "done", job
    return stood_still, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--other", type=Path, help="where the other storage is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir=options.other) as other:
        run(Path(name), Path(other), options.items, options.bytes)


def run(directory: Path, other: Path, items: int, size: int) -> None:
    config = directory / "config.toml"
    config.write_text(
        f'data = "data"\n[[storages]]\nname = "default"\ndirectory = "default"\n'
        f'[[storages]]\nname = "other"\ndirectory = "{other}"\naffinity = 0\n'
    )
    with open(directory / "log", "wb") as log:
        daemon = subprocess.Popen([sys.executable, "-c", START, str(config)], stdout=log, stderr=log)
    endpoint = f"unix:{directory / 'data' / 'querator.sock'}"
    try:
        with Client(endpoint, timeout=60) as client:
            while daemon.poll() is None:
                try:
                    client.list_queues(timeout=0.2)
                    break
                except QueratorError:
                    continue
            report(client, endpoint, items, size)
    finally:
        daemon.terminate()
        daemon.wait()


def report(client: Client, endpoint: str, items: int, size: int) -> None:
    client.create_queue("q", partitions=2, lease_timeout="1m", expire_timeout="24h")
    client.create_queue("busy", lease_timeout="1m", expire_timeout="24h")
    start = time.perf_counter()
    fill(client, items, size)
    client.reload_partitions("q", [0])
    file_bytes = client.list_partitions("q")[0].bytes_
    print(f"{items} items of {size} bytes: file of {file_bytes / 1e6:.0f} MB in {time.perf_counter() - start:.1f} s")

    neighbour = Neighbour(endpoint)
    stood_still, took = watch(client, client.migrate_partition("q", 0, to_storage="other"), 0)
    print(f"migrate to a storage: stood still for {stood_still:.2f} s, job {took:.2f} s; {neighbour.stop()}")
    assert client.list_partitions("q")[0].total >= items

    neighbour = Neighbour(endpoint)
    _, took = watch(client, client.migrate_partition("q", 0, to_partition=1), 0)
    print(f"migrate into a partition: job {took:.2f} s, {items / took:.0f} items/s; {neighbour.stop()}")
    assert client.list_partitions("q")[1].total >= items


if __name__ == "__main__":
    main()
