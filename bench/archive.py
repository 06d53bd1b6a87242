"""What an archive costs: daemons with and without one, by turns, and a take-over.

    python -m bench.archive --seconds 3 --rounds 3

Each cell of batch × clients is produced to by a daemon without an archive, with one in a directory, and with one that
must be waited for, one after the other in each round. The figures are ratios of the medians in one run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from querator import Client
from tests.daemons import Daemon

CELLS = ((1, 1), (1, 32), (100, 4), (1000, 2))
PAYLOAD = b"x" * 200


def produced_per_second(daemon: Daemon, batch: int, clients: int, seconds: float) -> float:
    counts = [0] * clients
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        with Client(daemon.endpoint, timeout=30) as client:
            while time.monotonic() < end:
                client.produce("bench", [PAYLOAD] * batch)
                counts[number] += batch

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - started)


def options_of(kind: str, directory: Path) -> list[str]:
    if kind == "none":
        return []
    config = directory / "querator.toml"
    wait = str(kind == "wait").lower()
    config.write_text(f'[archive]\nurl = "file://{directory / "archive"}"\nwait = {wait}\n')
    return ["--config", str(config)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[tuple[str, int, int], list[float]] = {}
    for _ in range(arguments.rounds):
        for kind in ("none", "directory", "wait"):
            with tempfile.TemporaryDirectory() as temporary:
                directory = Path(temporary)
                with Daemon(directory, *options_of(kind, directory)) as daemon:
                    daemon.client.create_queue("bench")
                    for batch, clients in CELLS:
                        rate = produced_per_second(daemon, batch, clients, arguments.seconds)
                        found.setdefault((kind, batch, clients), []).append(rate)
    print("batch×clients   none items/s   directory/none   wait items/s")
    for batch, clients in CELLS:
        none, shipped, waited = (
            statistics.median(found[kind, batch, clients]) for kind in ("none", "directory", "wait")
        )
        print(f"{batch:>5}×{clients:<9} {none:>12,.0f}   {shipped / none:>14.2f}   {waited:>12,.0f}")


if __name__ == "__main__":
    main()
