"""On a real (pseudo-)terminal: prompts, progress, colour and top"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from querator import Client
from tests.cli.command_line import CommandLine
from tests.cli.test_queue import totals
from tests.daemons import QUERATOR

PATIENCE_SECONDS = 60


class Terminal:
    """A command on a pseudo-terminal. Tests read its screen and press its keys."""

    def __init__(self, cli: CommandLine, *words: str, columns: int = 100, rows: int = 30) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {k: v for k, v in (os.environ | cli.environment).items() if v is not None}
        environment |= {"TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*QUERATOR, *words], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.shown = ""

    def until(self, *texts: str) -> str:
        """Read until all these texts were shown. Returns the output since the last call."""
        seen = ""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not all(text in seen for text in texts):
            ready, _, _ = select.select([self._master], [], [], PATIENCE_SECONDS)
            assert ready and time.monotonic() < give_up, f"waiting for {texts}, and got {seen[-500:]!r}"
            try:
                data = os.read(self._master, 65_536)
            except OSError:
                data = b""
            assert data, f"ended without {texts}: {seen[-500:]!r}"
            seen += data.decode(errors="replace")
        self.shown += seen
        return seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        while True:
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            self.shown += data.decode(errors="replace")
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(cli: CommandLine) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_(*words: str, **settings: Any) -> Terminal:
        opened.append(Terminal(cli, *words, **settings))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_delete_asks_for_the_name(terminal: Open, client: Client, queue: str) -> None:
    asked = terminal("queues", "delete", queue)
    asked.until("Type the name to continue: ")
    asked.type(f"{queue}\n")
    assert asked.end() == 0
    assert queue not in [info.queue_name for info in client.list_queues()]


def test_a_wrong_name_deletes_nothing(terminal: Open, client: Client, queue: str) -> None:
    asked = terminal("queues", "delete", queue)
    asked.until("Type the name to continue: ")
    asked.type("yes\n")
    assert asked.end() == 1
    assert "nothing was done" in asked.shown
    client.queue_info(queue)


def test_end_of_input_at_the_question(terminal: Open, queue: str) -> None:
    asked = terminal("queues", "delete", queue)
    asked.until("Type the name to continue: ")
    asked.type("\x04")
    assert asked.end() == 2


def test_ctrl_c_at_the_question(terminal: Open, client: Client, queue: str) -> None:
    asked = terminal("queues", "delete", queue)
    asked.until("Type the name to continue: ")
    asked.process.send_signal(signal.SIGINT)
    assert asked.end() == 130
    assert "Traceback" not in asked.shown
    client.queue_info(queue)


def test_a_table_has_boxes_and_colour_and_fits(terminal: Open, wide_queue: str) -> None:
    shown = terminal("partitions", "list", wide_queue)
    assert shown.end() == 0
    assert "╭" in shown.shown
    assert "\x1b[32mavailable" in shown.shown
    assert re.search(r"ago|now|in \d", shown.shown)  # tests may have moved the daemon's clock in either direction


@pytest.mark.parametrize("words", [["queues", "list"], ["queues", "show"], ["partitions", "list"], ["queue", "stats"]])
def test_forty_columns_are_enough(terminal: Open, queue: str, words: list[str]) -> None:
    named = [*words] if words == ["queues", "list"] else [*words, queue]
    shown = terminal(*named, columns=40)
    assert shown.end() == 0
    assert queue in shown.shown
    assert "Traceback" not in shown.shown


def test_waiting_shows_progress_and_removes_it(terminal: Open, client: Client, queue: str) -> None:
    client.produce(queue, "x")
    waiting = terminal("queue", "wait", queue)
    waiting.until(f"waiting for '{queue}'")
    client.complete(queue, [item.id for item in client.lease(queue).items])
    assert waiting.end() == 0
    assert waiting.shown.rstrip().endswith(f"'{queue}' is empty")
    assert "\r\x1b[K" in waiting.shown


def test_stats_watch_redraws(terminal: Open, client: Client, queue: str) -> None:
    watching = terminal("queue", "stats", queue, "--watch", "--interval", "50ms")
    watching.until("0 ready")
    client.produce(queue, "x")
    watching.until("\x1b[H\x1b[2J", "1 ready")
    watching.process.send_signal(signal.SIGINT)
    assert watching.end() == 130
    assert "Traceback" not in watching.shown


def test_top_shows_queues_and_obeys_its_keys(terminal: Open, client: Client, queue: str) -> None:
    client.produce(queue, ["a", "b", "c"])
    top = terminal("top", "--interval", "100ms", "--sort", "ready", columns=140, rows=60)
    top.until("\x1b[?1049h", "querator top", queue, "last minutes")
    client.produce(queue, ["d"] * 834)
    top.until("837")
    top.type("\r")
    top.until("partition", "   in ", "oldest")
    top.type("\x1b")
    top.until("last minutes")
    for key in "nrlsioa":
        top.type(key)
    top.type("\x1b[B\x1b[A")
    top.type("q")
    assert top.end() == 0
    assert "\x1b[?1049l" in top.shown  # the command has restored the screen
    assert "Traceback" not in top.shown


def test_top_in_forty_columns_and_ctrl_c(terminal: Open, client: Client, queue: str) -> None:
    client.produce(queue, ["a"] * 1_000)
    top = terminal("top", "--interval", "100ms", "--sort", "ready", columns=40)
    top.until("querator top", queue, "ready")
    top.type("\x03")
    top.process.send_signal(signal.SIGINT)
    assert top.end() == 130
    assert "\x1b[?1049l" in top.shown
    assert "Traceback" not in top.shown


def test_consume_on_a_terminal_drains_on_ctrl_c(terminal: Open, client: Client, queue: str) -> None:
    worker = terminal("queue", "consume", queue, "--exec", "echo got; cat; echo")
    client.produce(queue, "hello")
    worker.until("hello")
    while totals(client, queue) != (0, 0, 0):
        assert worker.process.poll() is None
    worker.process.send_signal(signal.SIGINT)
    assert worker.end() == 130
    assert "completed 1 item" in worker.shown
