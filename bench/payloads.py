"""`python -m bench.payloads`: producing large payloads, next to what the disk itself takes in the same run.

Four clients produce for some seconds into a new queue. `written` is what the daemon has written to its disk, as a
multiple of the payloads: to the journal, to DuckDB's log and to the partition file. The disk's figure is that of a file
that gets the bytes of one request and an fdatasync, again and again, before and after the daemon's turn. Processor time
is that of the daemon's loop, of its two busiest other threads (the one that applies and the one that writes) and of the
clients; it depends less than everything else on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.compare import measure
from bench.compare.backlog import wait_until_quiet
from bench.compare.fsyncs import FsyncCounter
from bench.compare.phases import CellSpec
from bench.compare.querator_server import Querator
from bench.compare.running import run_load

SIZES = (10_000, 100_000, 1_000_000)
REQUEST_BYTES = 1_000_000
"""The payload bytes of one request, if the payload is not larger."""
CLIENTS = 4
DISK_BYTES = 100_000_000


class Row(NamedTuple):
    payload_bytes: int
    megabytes_per_second: float
    disk_megabytes_per_second: float
    p50_ms: float
    p99_ms: float
    highest_ms: float
    peak_mb: float
    written: float
    loop_ms: float
    """Processor time per megabyte of payloads."""
    threads_ms: list[float]
    clients_ms: float

    def __str__(self) -> str:
        share = self.megabytes_per_second / self.disk_megabytes_per_second
        return (
            f"{self.payload_bytes:>9,} bytes: {self.megabytes_per_second:6.1f} MB/s,"
            f" disk {self.disk_megabytes_per_second:6.1f} MB/s ({share:.2f}), produce p50 {self.p50_ms:6.1f}"
            f" p99 {self.p99_ms:7.1f} ({self.p99_ms / self.p50_ms:.1f}) max {self.highest_ms:7.1f} ms,"
            f" {self.peak_mb:.0f} MB, written {self.written:.2f}; processor ms/MB: loop {self.loop_ms:.2f},"
            f" threads {' '.join(f'{ms:.2f}' for ms in self.threads_ms)}, clients {self.clients_ms:.2f}"
        )


def disk_speed(directory: Path, request_bytes: int) -> float:
    """Bytes per second of appending and syncing."""
    content, path = os.urandom(request_bytes), directory / "disk"
    with open(path, "wb", buffering=0) as file:
        began = time.perf_counter()
        for _ in range(DISK_BYTES // request_bytes):
            file.write(content)
            os.fdatasync(file.fileno())
        seconds = time.perf_counter() - began
    path.unlink()
    return DISK_BYTES // request_bytes * request_bytes / seconds


def measure_size(directory: Path, payload_bytes: int, seconds: float) -> Row:
    batch = max(1, REQUEST_BYTES // payload_bytes)
    before = disk_speed(directory, batch * payload_bytes)
    with Querator(directory / f"payload-{payload_bytes}", FsyncCounter(directory).environment) as server:
        assert isinstance(server, Querator)
        server.create_queue("bench", 1)
        written, processor, clients = _written_bytes(server.pid), _processor_ms(server.pid), _children_ms()
        spec = CellSpec(
            peer="querator",
            batch=batch,
            clients=CLIENTS,
            path=server.addresses["unix"].path,
            server_pid=server.pid,
            payload_bytes=payload_bytes,
            produce_only=True,
            seconds=seconds,
        )
        result = run_load(spec, seconds_max=20 * seconds + 60)
        clients = _children_ms() - clients
        wait_until_quiet(server.pid)
        spent = {thread: ms - processor.get(thread, 0.0) for thread, ms in _processor_ms(server.pid).items()}
        written = _written_bytes(server.pid) - written
    after = disk_speed(directory, batch * payload_bytes)
    inward = result.inward
    megabytes = inward.items * payload_bytes / 1e6
    loop_ms = spent.pop(server.pid)
    p50, p99, highest = (value / 1000 for value in inward.latencies_us["produce"])
    return Row(
        payload_bytes=payload_bytes,
        megabytes_per_second=inward.rate * payload_bytes / 1e6,
        disk_megabytes_per_second=2 / (1 / before + 1 / after) / 1e6,
        p50_ms=p50,
        p99_ms=p99,
        highest_ms=highest,
        peak_mb=result.peak_memory_bytes / 1e6,
        written=written / 1e6 / megabytes,
        loop_ms=loop_ms / megabytes,
        threads_ms=[ms / megabytes for ms in sorted(spent.values(), reverse=True)[:2]],
        clients_ms=clients / megabytes,
    )


def _written_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.partition(": ")[2]) for line in lines if line.startswith("write_bytes"))


def _processor_ms(pid: int) -> dict[int, float]:
    """The processor time of each thread. The loop's thread has the number of the process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e6 for task in tasks}


def _children_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.payloads", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="per size")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes per payload, separated by commas")
    parser.add_argument("--dir", default=None, help="where the daemon keeps its data; not on tmpfs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as name:
        if measure.filesystem_type(Path(name)) in ("tmpfs", "ramfs"):
            sys.exit(f"{name} is in memory, where an fsync does nothing; name another place with --dir")
        for size in map(int, options.sizes.split(",")):
            print(measure_size(Path(name), size, options.seconds), flush=True)


if __name__ == "__main__":
    main()
