"""Compares fsync on the event loop, in a thread, and where the daemon chooses, on this disk and on a slow one.

    python -m bench.fsync [--seconds 3]

The slow disk is this one with every fdatasync delayed by strace (skipped if strace is not installed). A second client
calls `queue.stats`, which needs no disk, to show how a slow fsync delays requests that do not wait for it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.compare.measure import percentile
from bench.compare.phases import CellSpec
from bench.compare.querator_server import Querator, call
from bench.compare.running import run_load
from bench.compare.servers import free_port
from bench.compare.wire import Address

MODES = {"on the loop": 1e9, "in a thread": -1.0, "as the disk is": 0.004}
SHAPES = ((1, 1), (1, 32), (100, 4))
DELAYS_US = (0, 20_000)
_DAEMON = (
    "import sys; from querator import limits; limits.INLINE_WRITE_SECONDS_MAX = float(sys.argv.pop(1)); "
    "from querator.cli.main import main; main()"
)


class Tuned(Querator):
    """A daemon with a chosen place and duration for its fsyncs."""

    def __init__(self, directory: Path, threshold: float, delay_us: int) -> None:
        super().__init__(directory)
        self._threshold, self._delay_us = threshold, delay_us

    def start(self) -> None:
        path, port = self.directory / "d.sock", free_port()
        command = [sys.executable, "-c", _DAEMON, str(self._threshold), "daemon", "run"]
        command += ["--data", str(self.directory / "data"), "--socket", str(path), "--http", f"127.0.0.1:{port}"]
        if self._delay_us:
            inject = f"inject=fdatasync:delay_exit={self._delay_us}"
            command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", inject, *command]
        self._spawn(command)
        self.addresses = {"tcp": Address(port=port), "unix": Address(path=str(path))}
        self._wait_for(lambda: call(self.addresses["unix"], "/v1/queues.list", {}))


class Bystander:
    """A client that repeats a call that needs no disk."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._over = threading.Event()
        self.samples_us: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            started = time.perf_counter()
            call(self._address, "/v1/queue.stats", {"queue_name": "other"})
            self.samples_us.append(int((time.perf_counter() - started) * 1e6))

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return percentile(sorted(self.samples_us), 0.99)


def measure(directory: Path, mode: str, delay_us: int, seconds: float) -> None:
    server = Tuned(directory, MODES[mode], delay_us)
    with server:
        for name in ("bench", "other"):
            server.create_queue(name, 1)
        for batch, clients in SHAPES:
            bystander = Bystander(server.addresses["unix"])
            spec = CellSpec(
                peer="querator", batch=batch, clients=clients, path=server.addresses["unix"].path, seconds=seconds
            )
            result = run_load(spec)
            aside_us = bystander.stop()
            came, went = result.inward.rate, result.outward.rate
            print(
                f"fdatasync +{delay_us // 1000:>2} ms, {mode:<15} {batch:>4}×{clients:<3} "
                f"in {came:>9,.0f}/s  out {went:>9,.0f}/s  "
                f"p99 of a bystander {aside_us / 1000:6.1f} ms"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    for delay_us in DELAYS_US if shutil.which("strace") else DELAYS_US[:1]:
        for mode in MODES:
            with tempfile.TemporaryDirectory(prefix="querator-bench-") as temporary:
                measure(Path(temporary) / "d", mode, delay_us, arguments.seconds)


if __name__ == "__main__":
    main()
