"""querator top: its samples and its output without a terminal. test_terminal.py runs it on a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console, ConsoleDimensions

from querator import Client
from querator.cli.lookups.metrics import PartitionView, QueueView
from querator.cli.terminal.streams import Terminals
from querator.cli.top import View, screen
from querator.cli.top.keys import first_key
from querator.cli.top.sampling import Order, Sampler, sparkline
from tests.cli.command_line import CommandLine


def view(name: str, ready: int = 0, produced: float = 0, completed: float = 0) -> QueueView:
    return QueueView(name, produced=produced, completed=completed, partitions={0: PartitionView(ready=ready)})


def test_rates_come_from_two_samples() -> None:
    sampler = Sampler()
    sampler.take({"q": view("q", produced=100)}, 10.0)
    (first,) = sampler.rows
    assert first.rate_in is None
    sampler.take({"q": view("q", produced=300, completed=50)}, 12.0)
    (second,) = sampler.rows
    assert (second.rate_in, second.rate_out) == (100.0, 25.0)


def test_a_restarted_daemon_is_no_negative_rate() -> None:
    sampler = Sampler()
    sampler.take({"q": view("q", produced=100)}, 10.0)
    sampler.take({"q": view("q", produced=5)}, 11.0)
    assert sampler.rows[0].rate_in == 0


def test_queues_are_sorted_by_what_is_asked() -> None:
    sampler = Sampler()
    sampler.take({"b": view("b", 5), "a": view("a", 1), "c": view("c", 5)}, 1.0)
    assert [row.name for row in sampler.sorted_rows(Order.NAME)] == ["a", "b", "c"]
    assert [row.name for row in sampler.sorted_rows(Order.READY)] == ["b", "c", "a"]
    assert [row.name for row in sampler.sorted_rows(Order.IN)] == ["a", "b", "c"]


def test_a_deleted_queue_is_forgotten() -> None:
    sampler = Sampler()
    sampler.take({"q": view("q", 5)}, 1.0)
    sampler.take({}, 2.0)
    sampler.take({"q": view("q", 1)}, 3.0)
    assert sampler.rows[0].history == (1,)


def test_sparklines() -> None:
    assert sparkline((0, 1, 2, 7), 10) == "▁▂▃█"
    assert sparkline((0, 0), 10) == "▁▁"
    assert sparkline((1, 2, 3), 2) == "▅▇"
    assert sparkline((), 5) == ""


def test_keys_move_the_view() -> None:
    seen = View(Order.NAME)
    names = ["a", "b"]
    for key in ("down", "down", "enter"):
        seen.press(key, names)
    assert (seen.chosen, seen.opened) == (1, "b")
    seen.press("escape", names)
    seen.press("up", names)
    seen.press("r", names)
    assert (seen.chosen, seen.opened, seen.order, seen.ended) == (0, None, Order.READY, False)
    seen.press("q", names)
    assert seen.ended


def test_keys_that_come_together_are_told_apart() -> None:
    typed, names = b"n\x1b[B\x1bOA\r\x1bq\xff", []
    while typed:
        name, typed = first_key(typed)
        names.append(name)
    assert names == ["n", "down", "up", "enter", "escape", "q", "\ufffd"]


def test_a_narrow_terminal_has_fewer_columns_and_whole_names() -> None:
    wanted = {column.title: 8 for column in screen.COLUMNS} | {screen.SPARK: 8}
    assert screen.fitting(wanted, 200) == wanted | {screen.SPARK: screen.SPARK_COLUMNS}
    assert screen.fitting(wanted, 98 + 5) == wanted | {screen.SPARK: 13}
    assert "waiting" not in screen.fitting(wanted, 97)
    assert list(screen.fitting(wanted, 40)) == ["queue", "state", "ready", "leased"]
    assert screen.fitting(wanted, 15) == {"queue": 5, "ready": 8}


def test_more_queues_than_lines_are_shown_around_the_chosen_one() -> None:
    assert screen.window(0, 3, 10) == range(0, 3)
    assert screen.window(0, 30, 10) == range(0, 10)
    assert screen.window(15, 30, 10) == range(10, 20)
    assert screen.window(29, 30, 10) == range(20, 30)
    assert screen.window(5, 30, -3) == range(5, 6)
    assert screen.window(0, 0, 10) == range(0, 0)


@pytest.mark.parametrize("opened", [None, "q"])
def test_the_screen_says_why_a_partition_takes_nothing(opened: str | None) -> None:
    sampler = Sampler()
    broken = PartitionView(state="error", trouble="No space left on device")
    soon = PartitionView(state="available", trouble="nearly full")
    sampler.take({"q": QueueView("q", partitions={0: soon, 1: broken})}, 1.0)
    shown = View(Order.NAME)
    shown.opened = opened
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(screen.draw(sampler, sampler.rows, shown, "here", "", ConsoleDimensions(100, 20)))
    text = console.export_text()
    assert "error" in text and "q: No space left on device" in text
    assert ("nearly full" in text) is (opened is not None)


def test_piped_it_is_ndjson(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, ["a", "b"])
    records = [json.loads(line) for line in cli.ok("top", "--once", "-o", "ndjson").splitlines()]
    (mine,) = [one for one in records if one["queue_name"] == queue]
    assert (mine["ready"], mine["state"], mine["rate_in"]) == (2, "available", None)


def test_once_is_a_table_in_a_pipe_too(cli: CommandLine, queue: str) -> None:
    for words in (["top", "--once"], ["top", "--once", "-o", "table"]):
        header, *lines = cli.ok(*words).splitlines()
        assert header.split()[:3] == ["QUEUE_NAME", "STATE", "READY"]
        assert queue in [line.split()[0] for line in lines]
    assert queue in [one["queue_name"] for one in cli.json("top", "--once")]


def test_once_on_a_terminal_is_a_table(cli: CommandLine, queue: str) -> None:
    shown = cli.ok("top", "--once", terminals=Terminals(stdout=True, columns=200), env={"NO_COLOR": "1"})
    assert "│ QUEUE" in shown
    assert queue in shown


def test_without_a_daemon(lonely: CommandLine) -> None:
    assert lonely("top", "--once").exit_code == 6
