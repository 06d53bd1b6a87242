"""`querator console`: a local port to a daemon without TCP, which only the printed address opens."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.console.browsing import Reader
from tests.daemons import QUERATOR, Daemon, clean_environment
from tests.waiting import until

STRANGER_UID = 65_534


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    with Daemon(tmp_path) as daemon:
        daemon.client.create_queue("mail")
        process = subprocess.Popen(
            [*QUERATOR, "console", "--no-browser", "-o", "json", "--socket", str(daemon.socket)],
            stdout=subprocess.PIPE,
            env=clean_environment(tmp_path),
        )
        try:
            assert process.stdout is not None
            text = b""
            while not text.rstrip().endswith(b"}"):
                text += process.stdout.readline()
            yield json.loads(text)["url"]
        finally:
            process.terminate()
            process.wait()


def status(link: str, path: str, **headers: str) -> int:
    wire = http.client.HTTPConnection(urlsplit(link).netloc, timeout=20)
    wire.request("GET", path, headers=headers)
    return wire.getresponse().status


def test_the_address_that_ps_shows_does_not_let_another_user_in(tmp_path: Path) -> None:
    """The command opens a browser, whose arguments everybody can read."""
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}.part && mv {seen}.part {seen}\n')
    browser.chmod(0o755)
    with Daemon(tmp_path) as daemon:
        environment = {**clean_environment(tmp_path), "BROWSER": str(browser)}
        words = [*QUERATOR, "console", "--socket", str(daemon.socket)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment)
        try:
            until(seen.exists)
            link = seen.read_text().strip()
            path = urlsplit(link).path
            if os.geteuid() == 0:  # only root can act as a stranger
                os.seteuid(STRANGER_UID)
                try:
                    assert status(link, path) == 403
                finally:
                    os.seteuid(0)
            assert status(link, path) == 303
            assert status(link, path) == 403
        finally:
            process.terminate()
            process.wait()


def test_the_printed_address_opens_the_console_once(browser: Browser, link: str) -> None:
    parts = urlsplit(link)
    assert status(link, "/console") == 403 and status(link, "/wrong") == 403
    reader = Reader(browser, f"{parts.scheme}://{parts.netloc}")
    page = reader.page
    page.goto(link)
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    page.get_by_role("link", name="mail", exact=True).click()
    page.locator("#pause-0").click()
    page.locator("#confirm").click()
    expect(page.locator("#remark")).to_contain_text("paused")
    assert status(link, parts.path) == 403  # the address was used
    cookies = "; ".join(f"{one['name']}={one['value']}" for one in reader.context.cookies())
    assert status(link, "/console", Cookie=cookies) == 200
    assert status(link, "/v1/queues.list", Cookie=cookies) == 404
    assert status(link, "/console", Cookie=cookies, Host="evil.example") == 403
    reader.close()
