"""Import and export through Spark, beside Parquet: `python -m bench.spark [--items 5000000] [--partitions 2]`.

Starts a daemon in a temporary directory and Spark in this process, both on this machine. Times begin when Spark is up.
Items have 200 bytes. It prints the items per second of each step, and the peak memory of the daemon.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from querator.spark.moving import copied, read_queue, write_items
from querator.spark.session import session
from tests.daemons import Daemon


class Memory:
    """The largest resident size of a process, measured ten times a second."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self.megabytes_max = 0
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._stopped.wait(0.1):
            for line in self._status.read_text().splitlines():
                if line.startswith("VmRSS:"):
                    self.megabytes_max = max(self.megabytes_max, int(line.split()[1]) // 1024)

    def stop(self) -> None:
        self._stopped.set()


def measure(name: str, items: int, work: Callable[[], Any]) -> None:
    started = time.monotonic()
    work()
    seconds = time.monotonic() - started
    print(f"{name:<28} {seconds:8.1f} s   {items / seconds:12,.0f} items/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=5_000_000)
    parser.add_argument("--partitions", type=int, default=2, help="of the queue")
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="querator-bench-") as scratch:
        run(Path(scratch), arguments.items, arguments.partitions, arguments.master)


def run(scratch: Path, items: int, partitions: int, master: str) -> None:
    daemon = Daemon(scratch, http=True)
    memory = Memory(daemon.process.pid)
    try:
        with daemon.connect() as client:
            client.create_queue("bench", partitions=partitions)
        options = {"endpoint": daemon.endpoint, "queue": "bench"}
        with session("bench", master=master, log_file=scratch / "spark.log") as spark:
            made = spark.range(items).selectExpr(
                "rpad(concat(id, '-', hex(xxhash64(id))), 200, hex(xxhash64(id + 1))) as payload",
                "concat('kind-', id % 10) as kind",
                "cast(id as string) as reference",
            )
            source, exported = str(scratch / "source"), str(scratch / "exported")
            measure("parquet write", items, lambda: made.write.parquet(source))
            rows = spark.read.parquet(source)
            measure("parquet read", items, lambda: rows.write.format("noop").mode("overwrite").save())
            measure("import", items, lambda: write_items(rows, options, "bench"))
            queue = read_queue(spark, options, state="stored", splits="4")
            measure("export (no sink)", items, lambda: queue.write.format("noop").mode("overwrite").save())
            measure("export to parquet", items, lambda: copied(queue).write.parquet(exported))
            digest = "bit_xor(xxhash64(cast(payload as string), kind, reference))"
            before = rows.selectExpr("count(*)", digest).collect()[0]
            after = spark.read.parquet(exported).selectExpr("count(*)", digest).collect()[0]
            print(f"same rows and same hash: {before == after}")
    finally:
        memory.stop()
        print(f"largest memory of the daemon: {memory.megabytes_max} MB")
        daemon.stop()


if __name__ == "__main__":
    main()
