"""Completions in real shells, and manual pages in a real `man`. Both agree with the command tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from querator import Client
from querator.cli.shell import describe, manpages, scripts
from querator.cli.shell.candidates import answer
from querator.cli.shell.tree import NOUNS
from tests.cli.command_line import CommandLine, fresh_name
from tests.daemons import Daemon

ROOT = Path(__file__).parents[2]
COMPLETIONS = ROOT / "completions"

BASH = """
source "$1"; shift
COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
_querator
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { : }
compset() { : }
_files() { echo FILES; }
_describe() { local name=$4 line; for line in ${(P)name}; do echo "${line%%:*}"; done }
compadd() { shift; print -l -- "$@"; }
source "$1"; shift
words=("$@"); CURRENT=$#words
_querator
"""
"""Replaces zsh's own completion functions with ones that print the offered words. Our script is unchanged."""

Complete = Callable[..., list[str]]


@pytest.fixture
def environment(daemon: Daemon, tmp_path: Path) -> dict[str, str]:
    """A shell that finds our querator on its PATH."""
    program = tmp_path / "bin" / "querator"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m querator.cli.main "$@"\n')
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUERATOR_")}
    path = f"{program.parent}:{os.environ['PATH']}"
    return kept | {"PATH": path, "HOME": str(tmp_path), "QUERATOR_SOCKET": str(daemon.socket), "LC_ALL": "C.UTF-8"}


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(request: pytest.FixtureRequest, environment: dict[str, str]) -> Complete:
    """The words that a shell offers for the last word typed."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = str(COMPLETIONS / scripts.FILES[shell])

    def run(*words: str) -> list[str]:
        if shell == "bash":
            command = ["bash", "--norc", "-c", BASH, "bash", script, *words]
        elif shell == "zsh":
            command = ["zsh", "-f", "-c", ZSH, "zsh", script, *words]
        else:
            line = " ".join(words).replace("'", "\\'")
            command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert told.stderr == "", told.stderr
        offered = [line.split("\t")[0] for line in told.stdout.splitlines() if line]
        # Zsh filters by what is typed after the function has offered everything.
        return [word for word in offered if shell != "zsh" or word.startswith(words[-1].rpartition("=")[2])]

    return run


def test_nouns_verbs_and_options(complete: Complete) -> None:
    assert set(complete("querator", "que")) == {"queue", "queues"}
    assert set(complete("querator", "queues", "")) == {"create", "list", "show", "update", "delete"}
    assert complete("querator", "queues", "list", "--out") == ["--output"]
    assert set(complete("querator", "queues", "list", "-o", "")) == {"table", "json", "ndjson", "name"}
    assert set(complete("querator", "completion", "")) == {"bash", "zsh", "fish"}


def test_names_come_from_the_daemon(complete: Complete, client: Client, wide_queue: str) -> None:
    assert complete("querator", "queues", "show", wide_queue[:8]) == [wide_queue]
    assert complete("querator", "queues", "create", "x", "--dead-queue", wide_queue[:8]) == [wide_queue]
    assert set(complete("querator", "partitions", "pause", wide_queue, "")) == {"0", "1"}
    client.produce(wide_queue, "x")
    (item,) = client.list_items(wide_queue)
    assert complete("querator", "items", "inspect", wide_queue, "") == [item.id]


def test_options_and_their_values_are_not_taken_for_arguments(complete: Complete, wide_queue: str) -> None:
    assert set(complete("querator", "partitions", "pause", "--for", "5m", wide_queue, "-q", "")) == {"0", "1"}


def test_files(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "payload.json").touch()
    offered = complete("querator", "queue", "produce", "q", "--file", f"{tmp_path}/pay")
    assert offered in ([f"{tmp_path}/payload.json"], ["FILES"], [])


def test_a_name_with_a_colon_in_bash(environment: dict[str, str], client: Client) -> None:
    name = f"{fresh_name()}:b"
    client.create_queue(name)
    script = str(COMPLETIONS / "querator.bash")
    before = name.partition(":")[0]
    command = ["bash", "--norc", "-c", BASH, "bash", script, "querator", "queues", "show", f"{before}:"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout == "b\n"


def test_completion_without_a_daemon_is_silent(lonely: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["queues", "", "", "querator", "queues", "show", "--socket", "/nowhere"]) == 1
    assert answer(["nonsense"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_completion_listens_to_the_options_that_are_typed(
    daemon: Daemon, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--socket", str(daemon.socket)], [f"--socket={daemon.socket}"]):
        assert answer(["queues", queue[:8], "", "querator", *words, "queues", "show"]) == 0
        assert capsys.readouterr().out == f"{queue}\n"


def test_contexts_complete(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.ok("context", "add", "prod", "--endpoint", "http://x:1")
    monkeypatch.setenv("HOME", str(cli.environment["HOME"]))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert answer(["contexts", "p", "", "querator", "context", "use"]) == 0
    assert capsys.readouterr().out == "prod\n"


def test_the_command_prints_the_committed_script(cli: CommandLine) -> None:
    for shell, name in scripts.FILES.items():
        assert cli.ok("completion", shell) == (COMPLETIONS / name).read_text()


def test_generated_files_are_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "packaging" / "generate.py"), "--check"]
    told = subprocess.run(check, capture_output=True, text=True, timeout=120)
    assert (told.returncode, told.stderr) == (0, "")


def test_every_command_has_a_page_and_says_what_it_does() -> None:
    tree = describe.tree()
    pages = manpages.pages(tree)
    for command in tree.walk():
        assert command.summary, command.path
        assert f"{manpages.page_name(command)}.1" in pages
        for option in command.options:
            assert option.help, (command.path, option.names)


def test_a_noun_says_the_same_of_itself_in_the_list_and_in_its_module() -> None:
    for child in describe.tree().children:
        assert NOUNS[child.path[0]].help == child.summary


def test_placeholders_say_how_to_complete_them() -> None:
    kinds = {
        parameter.metavar: parameter.kind
        for command in describe.tree().walk()
        for parameter in [*command.options, *command.arguments]
    }
    named = {"QUEUE": "queues", "PARTITION": "partitions", "ID": "ids", "JOB": "jobs", "STORAGE": "storages"}
    assert named.items() <= kinds.items()
    assert kinds["FILE|-"] == "files"
    assert kinds["DURATION"] == ""


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
@pytest.mark.parametrize("page", ["querator", "querator-queue-consume", "querator-check-queue"])
def test_man_renders_the_pages(page: str) -> None:
    environment = os.environ | {"MANWIDTH": "80", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    told = subprocess.run(
        ["man", "--warnings", "-l", str(ROOT / "man" / f"{page}.1")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.returncode == 0
    assert told.stderr == ""
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
        assert f"\n{section}\n" in told.stdout
