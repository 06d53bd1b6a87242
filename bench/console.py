"""What an open console costs the daemon: `python -m bench.console [--seconds 30]`.

A page that somebody looks at is loaded again every five seconds. This loads the overview and a queue's page at that
pace, and reads from /proc how much processor time the daemon used: with no page, with one and with ten open pages.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from querator import Client
from querator.errors import QueratorError

LIVE_SECONDS = 5.0
QUEUES = 60
PORT = 23_191


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body[:200]
    connection.close()


def measure(pid: int, path: str, pages: int, seconds: float) -> float:
    """The share of a core that the daemon used while `pages` pages were open."""
    before, begin = cpu_seconds(pid), time.monotonic()
    due = begin
    while time.monotonic() - begin < seconds:
        for _ in range(pages):
            load(path)
        due += LIVE_SECONDS
        time.sleep(max(0.0, min(due, begin + seconds) - time.monotonic()))
    return (cpu_seconds(pid) - before) / (time.monotonic() - begin)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "querator.cli.main", "daemon", "run", "--data", f"{directory}/data"),
                *("--http", f"127.0.0.1:{PORT}"),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            client = Client(f"unix:{directory}/data/querator.sock", timeout=30)
            while True:
                try:
                    client.list_queues(timeout=0.5)
                    break
                except QueratorError:
                    assert process.poll() is None
            for number in range(QUEUES):
                client.create_queue(f"q{number:03}")
                client.produce(f"q{number:03}", ["x"] * 100)
            load("/console/")  # imports the pages
            time.sleep(5)
            for path, pages in (("", 0), ("/console/", 1), ("/console/queue?name=q001", 1), ("/console/", 10)):
                share = measure(process.pid, path, pages, seconds)
                print(f"{pages:>2} open  {path or 'no page':<28} {share:.2%} of a core", flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


if __name__ == "__main__":
    main()
