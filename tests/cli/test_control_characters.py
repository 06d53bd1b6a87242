"""A name may contain any character. Printing it must not control the terminal or imitate our own output."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from querator import Client
from querator.cli.shell import candidates
from querator.client import catalogue
from tests.cli.command_line import TERMINAL, CommandLine, fresh_name
from tests.daemons import Daemon

EVIL_NAME = "\x1b[31m\x9b2J\x7f\u202efake"
EVIL = f"{EVIL_NAME}\r\nerror: fake"
FORMS = ["table", "name", "json", "ndjson"]


def controls(text: str) -> set[str]:
    return {c for c in text if not c.isprintable()} - {"\n"}


@pytest.fixture
def evil_queue(client: Client) -> Iterator[str]:
    name = fresh_name() + EVIL_NAME
    client.create_queue(name)
    client.produce(name, [catalogue.produce_item(EVIL, kind=EVIL, reference=EVIL)])
    client.pause_partitions(name, [0])
    yield name
    client.delete_queue(name)


COMMANDS = [
    *(
        [*words, "-o", form]
        for form in FORMS
        for words in (
            ["queues", "list"],
            ["queues", "show", "QUEUE"],
            ["queue", "stats", "QUEUE"],
            ["partitions", "list", "QUEUE"],
            ["items", "list", "QUEUE"],
            ["items", "list", "QUEUE", "--where", "true"],
            ["sql", "QUEUE", 'select kind, text as "x\x9by" from items'],
            ["top", "--once"],
            ["queue", "complete", "QUEUE", EVIL],
            ["queues", "create", "QUEUE"],
            ["queues", "show", "no such queue" + EVIL],
        )
    ),
    ["queues", "delete", "QUEUE"],
    ["queues", "delete", "QUEUE", "--dry-run"],
    ["queues", "update", "QUEUE", "--reference", EVIL],
    ["queue", "clear", "QUEUE", "--scheduled", "--dry-run"],
    ["queue", EVIL],
    ["check", "queue", "QUEUE"],
    ["check", "queue", "QUEUE", "--format", "prometheus"],
    ["check", "partitions", "QUEUE"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words).encode("unicode_escape").decode())
@pytest.mark.parametrize("terminal", [False, True])
def test_no_command_prints_them(cli: CommandLine, evil_queue: str, words: list[str], terminal: bool) -> None:
    typed = [evil_queue if word == "QUEUE" else word for word in words]
    # Without colour, so that any escape sequence in the output came from the name.
    result = cli(*typed, terminals=TERMINAL if terminal else None, env={"NO_COLOR": "1"}, input="not its name\n")
    assert result.output
    assert controls(result.stdout + result.stderr) == set()
    assert not any(line.startswith("error: fake") for line in result.output.splitlines())


def test_csv_shows_none_on_a_terminal_and_keeps_them_in_a_file(cli: CommandLine, evil_queue: str) -> None:
    words = ["sql", evil_queue, "select kind from items", "-o", "csv"]
    assert controls(cli.ok(*words, terminals=TERMINAL)) == set()
    assert EVIL.encode() in cli(*words).stdout_bytes


def test_json_still_has_the_name(cli: CommandLine, evil_queue: str) -> None:
    assert evil_queue in [one["queue_name"] for one in cli.json("queues", "list")]
    assert json.loads(cli.ok("queues", "show", evil_queue, "-o", "ndjson"))["queue_name"] == evil_queue


def test_a_shell_completes_none(
    daemon: Daemon, evil_queue: str, queue: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "ANSWER_SECONDS_MAX", 30)
    candidates.answer(["queues", "", "", "querator", "--socket", str(daemon.socket)])
    told = capsys.readouterr().out
    assert queue in told.splitlines()
    assert controls(told) == set()
    assert "fake" not in told
