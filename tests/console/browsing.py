"""What tests of the console use: a daemon, a browser, and a page that watches for what must never happen."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from tests.daemons import Daemon
from tests.waiting import PAUSE_SECONDS, until

CHROMIUM = "chromium"
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 20_000
REPORT_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""

expect.set_options(timeout=WAIT_MS)


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


class ConsoleDaemon(Daemon):
    """A daemon with TCP and a test clock."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "--test-clock", http=True)

    @property
    def address(self) -> str:
        return f"http://{self.http}"

    def let_die(self, queue: str, dead: str, *items: Any, reason: str = "no such address") -> None:
        """Makes a queue and its dead queue if need be, and lets items die there."""
        names = {one.queue_name for one in self.client.list_queues()}
        if dead not in names:
            self.client.create_queue(dead)
        if queue not in names:
            self.client.create_queue(queue, dead_queue=dead)
        self.client.produce(queue, items)
        ids = [item.id for item in self.client.lease(queue, len(items)).items]
        self.client.retry(queue, ids, dead=True, reason=reason)

    def until_sampled(self, queue: str) -> None:
        """Lets ten seconds pass, until the history has a sample of what the queue holds now."""
        ready = self.client.queue_info(queue).figures.ready

        def is_sampled() -> bool:
            samples = self.client.queue_history(queue).samples
            return bool(samples) and samples[-1].ready == ready

        self.client.advance_clock("10s")
        until(lambda: self._is_sampled_after_look(is_sampled))

    def _is_sampled_after_look(self, is_sampled: Callable[[], bool]) -> bool:
        """The first look at a queue gives no sample, so that time may have to pass once more."""
        end = time.monotonic() + 1
        while not is_sampled():
            if time.monotonic() > end:
                self.client.advance_clock("10s")
                return False
            time.sleep(PAUSE_SECONDS)
        return True

    def until_no_job_runs(self) -> None:
        until(lambda: all(job.state != "running" for job in self.client.list_jobs()), "a job does not end")

    def states(self, queue: str) -> list[str]:
        return [one.state for one in self.client.list_partitions(queue)]


class Reader:
    """A person at a browser. When it is closed, nothing may have violated the policy, left the origin or failed."""

    def __init__(self, browser: Browser, address: str, **settings: Any) -> None:
        self.address = address
        self.context = browser.new_context(timezone_id="Europe/Berlin", locale="en-GB", **settings)
        self.context.set_default_timeout(WAIT_MS)
        self.context.add_init_script(REPORT_VIOLATIONS)
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.wrong: list[str] = []
        self.may_fail = False
        """Whether the daemon may be gone for a while."""
        self.page.on("request", self._requested)
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("pageerror", lambda error: self.wrong.append(f"script failed: {error}"))
        self.page.on("console", lambda line: self._said(line.type, line.text))

    def _requested(self, request: Request) -> None:
        self.requests.append(request.url)
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc:
            self.wrong.append(f"left the origin: {request.url}")

    def _said(self, kind: str, text: str) -> None:
        is_answer = "Failed to load resource" in text  # an error page, or a daemon that is gone
        if kind == "error" and not is_answer:
            self.wrong.append(f"console: {text}")

    def open(self, path: str = "/", **fields: object) -> Page:
        query = f"?{urlencode(fields)}" if fields else ""
        self.page.goto(f"{self.address}/console{path}{query}")
        self.check()
        return self.page

    def refresh(self) -> None:
        """Does now what the page does by itself every few seconds."""
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def press(self, name: str, *, exact: bool = True) -> None:
        """Presses the button, or follows the link, with this text."""
        found = self.page.get_by_role("button", name=name, exact=exact)
        (found if found.count() else self.page.get_by_role("link", name=name, exact=exact)).first.click()
        self.page.wait_for_load_state()
        self.check()

    def sees(self, text: str | re.Pattern[str]) -> None:
        expect(self.page.locator("main")).to_contain_text(text)

    def check(self) -> None:
        if self.context.browser is not None and not self.page.is_closed():
            self.wrong += self.page.evaluate("window.violations ?? []")
        assert self.wrong == []

    def close(self) -> None:
        try:
            self.check()
        finally:
            self.context.close()
