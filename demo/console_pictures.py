"""Makes the pictures of the console in docs/: `python demo/console_pictures.py [FOLDER]`.

It starts a daemon of its own with a clock that stands still, fills it with a working day of a small shop, and takes the
pictures with Chromium through Playwright.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from querator import Client
from querator.client import produce_item
from querator.errors import QueratorError

DOCS = Path(__file__).resolve().parent.parent / "docs"
PORT = 23190
START_US = 1_790_000_000 * 1_000_000
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
FAILURES = ("550 no such mailbox", "timeout after 30s", "payment declined: card expired", "502 from the carrier")


class Shop:
    """A daemon and what its queues go through."""

    def __init__(self, directory: Path) -> None:
        self.log = (directory / "log").open("wb")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "querator.cli.main", "daemon", "run", "--data", str(directory / "data")),
                *("--http", f"localhost:{PORT}", "--test-clock"),
            ],
            stdout=self.log,
            stderr=self.log,
        )
        self.client = Client(f"unix:{directory / 'data' / 'querator.sock'}", timeout=30)
        self.random = random.Random(7)
        self.now_us = START_US
        end = time.monotonic() + 30
        while True:
            try:
                self.client.list_queues(timeout=0.5)
                break
            except QueratorError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise

    def fill(self) -> None:
        client = self.client
        client.set_clock(self.now_us)
        client.create_queue("dead-letters", partitions=1)
        for name, partitions in (("mail", 2), ("payments", 3), ("shipping", 2), ("thumbnails", 4), ("audit-log", 1)):
            client.create_queue(name, partitions=partitions, dead_queue="dead-letters", max_attempts=3)
        for _ in range(90):
            self._ten_seconds()
        client.pause_partitions("shipping", [1])
        client.drain_partitions("thumbnails", [3])
        client.compact_partitions("payments")
        for _ in range(3):
            self._ten_seconds()

    def _ten_seconds(self) -> None:
        """A step of the history. The daemon looks at its clock twice a second."""
        for name, kind, coming, going in (
            ("mail", "welcome", 30, 26), ("payments", "charge", 12, 12), ("shipping", "label", 9, 4),
            ("thumbnails", "resize", 45, 44), ("audit-log", "event", 20, 20),
        ):  # fmt: skip
            self._work(name, kind, self._about(coming), self._about(going))
        self.now_us += 10_000_000
        self.client.set_clock(self.now_us)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            samples = self.client.queue_history("mail").samples
            if samples and samples[-1].at == self.now_us // 10_000_000 * 10_000_000:
                break
            time.sleep(0.02)

    def _about(self, number: int) -> int:
        return max(1, round(number * self.random.uniform(0.6, 1.4)))

    def _work(self, name: str, kind: str, coming: int, going: int) -> None:
        client = self.client
        reference = f"batch-{self.random.randrange(40)}"
        client.produce(
            name,
            [produce_item(self._order(), kind=kind, reference=reference, encoding="json") for _ in range(coming)],
        )
        items = client.lease(name, going, client_id=f"{name}-worker-{self.random.randrange(3)}").items
        failing = [item.id for item in items if self.random.random() < 0.03]
        held = [item.id for item in items if item.id not in failing and self.random.random() < 0.02]
        done = [item.id for item in items if item.id not in failing and item.id not in held]
        if done:
            client.complete(name, done)
        for item_id in failing:
            client.retry(name, [item_id], dead=True, reason=self.random.choice(FAILURES))

    def _order(self) -> str:
        order = 48_000 + self.random.randrange(900)
        return json.dumps({"order": order, "customer": {"name": "Ann", "tags": ["new", "eu"]}, "total": 49.9})

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()


def pictures(browser: Browser, shop: Shop, folder: Path) -> None:
    item = shop.client.list_items("dead-letters", limit=1)[0].id
    query = "select kind, count(*) as items from items group by kind order by items desc"
    pages = {
        "overview": "/console/",
        "queue": "/console/queue?name=payments",
        "items": "/console/items?name=mail",
        "item": f"/console/item?name=dead-letters&id={item}",
        "dead": "/console/dead?name=dead-letters&last=1h",
        "sql": f"/console/sql?name=dead-letters&query={query}",
        "jobs": "/console/jobs",
        "daemon": "/console/daemon",
        "drain": "/console/act/drain?name=mail&partition=0",
    }
    for scheme in ("light", "dark"):
        for name, path in pages.items():
            _picture(browser, path, folder / f"console-{name}-{scheme}.png", scheme, 1180)
    for name in ("overview", "queue", "dead", "item"):
        _picture(browser, pages[name], folder / f"console-{name}-narrow.png", "light", 400)


def _picture(browser: Browser, path: str, file: Path, scheme: Any, width: int) -> None:
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 760}, timezone_id="UTC", locale="en-GB"
    )
    page = context.new_page()
    page.goto(f"http://localhost:{PORT}{path}")
    page.screenshot(path=str(file), full_page=True)
    context.close()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
    with tempfile.TemporaryDirectory() as directory:
        shop = Shop(Path(directory))
        try:
            shop.fill()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                pictures(browser, shop, folder)
                browser.close()
        finally:
            shop.stop()


if __name__ == "__main__":
    main()
