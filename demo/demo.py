"""`make demo`: shows the main features of a queue, on a real daemon in a temporary directory.

The demo runs every line that it prints after a `$`, and shows the real output. It deletes its directory at the end. The
exit code is 0 if everything worked. `--without-spark` skips the last part.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from querator import Client
from querator.errors import QueratorError

CONFIG = """\
# Two storages: directories that hold partitions, on different disks in real life.
[[storages]]
name = "default"
directory = "data/partitions"

[[storages]]
name = "archive"
directory = "archive"
affinity = 0
"""
PARTLY_DONE = 3
INTERRUPTED = 130
PAUSE_SECONDS = 0.002


class Failed(Exception):
    """A command did not have the expected result."""


class Demo:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "data" / "querator.sock"
        (directory / "querator.toml").write_text('data = "data"\n\n' + CONFIG)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUERATOR_", "XDG_"))}
        self.environment = kept | {
            "HOME": str(directory),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}",
            "QUERATOR_CONFIG": str(directory / "querator.toml"),
        }
        self.colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def title(self, text: str) -> None:
        line = f"── {text} {'─' * max(0, 96 - len(text))}"
        print(f"\n\033[1;36m{line}\033[0m" if self.colour else f"\n{line}", flush=True)

    def say(self, text: str) -> None:
        print(f"\033[2m{text}\033[0m" if self.colour else text, flush=True)

    def show(self, command: str, *, allowed: tuple[int, ...] = (0,)) -> None:
        print(f"\033[1m$ {command}\033[0m" if self.colour else f"$ {command}", flush=True)
        done = self.run(command)
        if done.returncode not in allowed:
            raise Failed(f"exit code {done.returncode}: {command}")

    def run(self, command: str, *, quiet: bool = False) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            # In a file or a pipe, both streams are written to the same place, so that their lines stay in order.
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=subprocess.DEVNULL if quiet else None if sys.stdout.isatty() else subprocess.STDOUT,
        )

    def start_daemon(self) -> subprocess.Popen[bytes]:
        with open(self.directory / "daemon.log", "wb") as log:
            return subprocess.Popen(
                ["querator", "daemon", "run"], cwd=self.directory, env=self.environment, stdout=log, stderr=log
            )

    def wait_for(self, daemon: subprocess.Popen[bytes]) -> None:
        while self.run("querator daemon status", quiet=True).returncode != 0:
            if daemon.poll() is not None:
                raise Failed("the daemon did not start")


class Producer(threading.Thread):
    """Produces one item after another until it is stopped, and records the slowest answer.

    An interrupted demo does not wait for the thread, which may be retrying a request to a daemon that has ended.
    """

    def __init__(self, socket: Path, queue: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.refused = 0
        self.slowest_seconds = 0.0
        self._socket, self._queue = socket, queue
        self._enough = threading.Event()

    def run(self) -> None:
        with Client(f"unix:{self._socket}", timeout=60) as client:
            while not self._enough.wait(PAUSE_SECONDS):
                started = time.perf_counter()
                try:
                    client.produce(self._queue, f"made while partitions move: {self.acknowledged}")
                    self.acknowledged += 1
                except QueratorError:
                    self.refused += 1
                self.slowest_seconds = max(self.slowest_seconds, time.perf_counter() - started)

    def stop(self) -> None:
        self._enough.set()
        self.join()


def daily_work(demo: Demo) -> None:
    demo.title("A queue, and a dead queue for what keeps failing")
    demo.show("querator queues create orders-dead")
    demo.show("querator queues create orders --partitions 2 --max-attempts 2 --dead-queue orders-dead")

    demo.title("Produce, lease, complete")
    demo.show("""querator queue produce orders '{"order": 1}' --kind order --reference customer-7""")
    demo.show("querator queue lease orders -n 1")
    demo.show("querator items list orders --state leased -q | querator queue complete orders -")

    demo.title("A worker in the shell, and an item that keeps failing")
    demo.show(r"printf 'ann\nbob\nBROKEN\ncid\n' | querator queue produce orders --lines --kind mail")
    demo.say("exit code 0 completes an item, anything else retries it; after two attempts it is dead")
    demo.show(
        "querator queue consume orders --until-empty --backoff 0s..0s --concurrency 1 --exec 'grep -v BROKEN'",
        allowed=(PARTLY_DONE,),
    )
    demo.show("""querator items inspect orders-dead "$(querator items list orders-dead -q)\"""")
    demo.say("the worker is repaired; the item goes back to where it died")
    demo.show("querator items redrive orders-dead")
    demo.show("""querator queue consume orders --until-empty --concurrency 1 --exec 'echo "$(sed s/BROKEN/mended/)"'""")


def maintenance(demo: Demo) -> None:
    demo.title("Partitions are paused, drained, reloaded and moved to another disk while a producer is at work")
    producer = Producer(demo.socket, "orders")
    producer.start()
    demo.show("querator partitions pause orders 0")
    demo.show("querator partitions list orders")
    demo.show("querator partitions resume orders 0")
    demo.show("querator partitions drain orders 1")
    demo.show("querator partitions resume orders 1")
    demo.show("querator partitions reload orders --all")
    demo.show("querator partitions migrate orders 0 --to-storage archive --wait --timeout 60s")
    demo.show("querator partitions list orders")
    producer.stop()
    print(
        f"the producer: {producer.acknowledged:,} items acknowledged, {producer.refused} refused, "
        f"slowest answer {producer.slowest_seconds * 1_000:,.0f} ms",
        flush=True,
    )
    if producer.refused or not producer.acknowledged:
        raise Failed("the producer was refused")

    demo.title("SQL over the live partitions")
    demo.show(
        "querator sql orders 'select partition, count(*) as items, min(created_at) as oldest from items group by all'"
    )
    with Client(f"unix:{demo.socket}") as client:
        (row,) = client.sql("orders", "select count(*) as items from items").to_pylist()
    if row["items"] != producer.acknowledged:
        raise Failed(f"{producer.acknowledged} items were acknowledged, and {row['items']} are there")
    demo.say(f"all {producer.acknowledged:,} that were acknowledged are there")
    demo.show("querator queue clear orders --queue --yes")


def pipelines(demo: Demo) -> None:
    demo.title("Bulk data on Spark")
    missing = why_no_spark(demo)
    if missing:
        demo.say(f"left out: {missing}")
        return
    orders = demo.directory / "orders.json"
    with open(orders, "w") as file:
        for number in range(20_000):
            kind = "refund" if number % 10 == 0 else "order"
            file.write(json.dumps({"number": number, "kind": kind, "customer": f"customer-{number % 7}"}) + "\n")
    demo.say("20,000 orders in a file; Spark takes some seconds to start")
    demo.show("querator pipeline import orders orders.json --format json --kind kind --reference customer")
    demo.say("a consumer gives up on some of them; the report says what died, of what, and since when")
    demo.show("querator queue lease orders -n 500 -q | querator queue retry orders - --dead")
    demo.show("querator pipeline report orders-dead --html report.html")
    if "<svg" not in (demo.directory / "report.html").read_text():
        raise Failed("the report has no charts")


def why_no_spark(demo: Demo) -> str:
    if "--without-spark" in sys.argv[1:]:
        return "--without-spark"
    if demo.run("java -XX:-UsePerfData -version", quiet=True).returncode != 0:
        return "Java is not installed; apt-get install openjdk-17-jre-headless"
    if demo.run(f"{sys.executable} -c 'import pyspark'", quiet=True).returncode != 0:
        return "pyspark is not installed; pip install '.[spark]'"
    return ""


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, interrupt)
    directory = Path(tempfile.mkdtemp(prefix="querator-"))
    demo = Demo(directory)
    daemon = None
    try:
        demo.title("A daemon in a temporary directory")
        print(CONFIG, end="")
        daemon = demo.start_daemon()
        demo.wait_for(daemon)
        demo.show("querator daemon status --columns version,health,uptime,queues")
        daily_work(demo)
        maintenance(demo)
        pipelines(demo)
        demo.title("The end")
        demo.show("querator daemon stop")
        if daemon.wait(20) != 0:
            raise Failed("the daemon did not end as it should")
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is left behind", file=sys.stderr)
        return INTERRUPTED
    except Failed as failure:
        print(f"error: {failure}", file=sys.stderr)
        if (directory / "daemon.log").exists():
            print((directory / "daemon.log").read_text()[-4_000:], file=sys.stderr)
        return 1
    finally:
        if daemon is not None and daemon.poll() is None:
            daemon.terminate()
            daemon.wait(20)
        shutil.rmtree(directory, ignore_errors=True)
    command = os.path.relpath(Path(sys.executable).parent / "querator")
    print(
        "\nEverything above is gone. To run it for real, with its data in ~/.local/state/querator:\n\n"
        f"    {command} daemon run --http localhost:2319\n\n"
        "and in another terminal:\n\n"
        f"    {command} queues create mail\n"
        f"    {command} queue produce mail hello\n\n"
        "Next: docs/getting-started.md"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
