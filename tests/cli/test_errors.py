"""Errors: one clear line, a hint, the right exit code, and never a traceback unless asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from querator import Client, build, errors
from querator.cli.shell.tree import hoist_shared_options
from querator.cli.terminal import failures
from querator.client.attempts import Attempts
from tests.cli.command_line import TERMINAL, CommandLine, fresh_name
from tests.daemons import QUERATOR, Daemon
from tests.scripted import ScriptedDaemon, refusal


def test_no_daemon_is_exit_6(lonely: CommandLine) -> None:
    result = lonely("queues", "list")
    assert (result.exit_code, result.stdout) == (6, "")
    assert result.stderr.startswith("error: no daemon at unix:")
    assert result.stderr.endswith("\n\nhint: querator daemon run\n")


def test_a_timeout_is_also_for_a_daemon_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon starts after the first attempt has failed."""
    started: list[Daemon] = []
    delay_after = Attempts.delay_after

    def start(attempts: Attempts, error: errors.QueratorError) -> float:
        monkeypatch.setattr(Attempts, "delay_after", delay_after)
        started.append(Daemon(tmp_path))
        return attempts.delay_after(error)

    monkeypatch.setattr(Attempts, "delay_after", start)
    try:
        cli = CommandLine(tmp_path, tmp_path / "q.sock")
        assert cli.json("queues", "list", "--timeout", "120s") == []
    finally:
        started[0].stop()


def test_no_permission_is_reported(lonely: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("querator.client.connection._UnixConnection.connect", refuse)
    result = lonely("queues", "list")
    assert result.exit_code == 6
    assert "no permission to use" in result.stderr
    assert "hint: the socket belongs to the user who runs the daemon" in result.stderr


def test_json_errors_are_objects_on_standard_error(cli: CommandLine) -> None:
    result = cli("queues", "show", "nope", "-o", "json")
    assert (result.exit_code, result.stdout) == (4, "")
    error = json.loads(result.stderr)["error"]
    assert error["code"] == 400
    assert error["exit_code"] == 4
    assert error["message"] == "queue does not exist; no such queue named 'nope'"
    assert error["hint"] == "querator queues list"


def test_quiet_errors_are_one_line_for_cron(lonely: CommandLine) -> None:
    assert lonely("queues", "list", "-q").stderr.count("\n") == 1


def test_errors_are_coloured_on_a_terminal_only(lonely: CommandLine) -> None:
    assert "\x1b[" in lonely("queues", "list", terminals=TERMINAL).stderr
    assert "\x1b[" not in lonely("queues", "list", terminals=TERMINAL, env={"NO_COLOR": "1"}).stderr
    assert "\x1b[" not in lonely("queues", "list").stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["queues", "list", "--nope"], "no such option: --nope"),
        (["nope"], "there is no command 'querator nope'"),
        (["queues", "lst"], "there is no command 'querator queues lst'"),
        (["queue", "reload", "q"], "hint: did you mean 'querator partitions reload'?"),
        (["queues", "pause", "q"], "hint: did you mean 'querator partitions pause'?"),
        (["queue", "retry", "q", "x", "--reason", "é" * 1_001], "--reason: has 2,002 bytes, at most 2,000 are allowed"),
        (["queues", "show"], "missing argument"),
        (["queues", "list", "-o", "yaml"], "'yaml' is not one of table, json, ndjson, name"),
        (["queue", "lease", "q", "-n", "many"], "'many' is not a whole number"),
        (["queue", "lease", "q", "-n", "0"], "0 is less than 1"),
        (["queue", "lease", "q", "-n", "1001"], "1001 is more than 1000"),
        (["completion"], "missing argument 'shell'. Choose from: bash, zsh, fish"),
        (["context", "add", "x"], "say where the daemon is"),
        (["-q", "queue", "retry", "q", "x", "--delay", "1s", "--dead"], "exclude each other"),
        (["queues", "list", "--timeout", "7d"], "'7d' is not a duration"),
        (["queues", "list", "--endpoint", "nonsense"], "'nonsense' is not an endpoint"),
    ],
)
def test_usage_errors_are_exit_2(cli: CommandLine, words: list[str], told: str) -> None:
    result = cli(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert told in result.stderr
    assert "-q" in words or "\n\nhint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_usage_error_names_the_help_of_its_command(cli: CommandLine) -> None:
    assert cli("-o", "table", "context", "add", "x").stderr.endswith("\n\nhint: querator context add --help\n")


def test_what_helps_is_named(cli: CommandLine, client: Client, queue: str) -> None:
    name = fresh_name()
    client.create_queue(name, dead_queue=queue)
    client.pause_partitions(queue, [0])
    for words, hint in (
        (["queues", "create", fresh_name(), "--dead-queue", "nope"], "querator queues create NAME"),
        (["queues", "delete", queue, "--yes"], "--force deletes it anyway"),
        (["queue", "produce", queue, "x", "--timeout", "10ms"], "querator partitions list QUEUE shows why"),
        (["items", "inspect", queue, "nonsense"], "querator items list QUEUE"),
        (["items", "list", queue, "--where", "nope > 1"], "the tables are items, leases and scheduled; querator sql"),
    ):
        assert f"\n\nhint: {hint}" in cli(*words).stderr


def test_a_daemon_that_cannot_start_says_what_to_choose(cli: CommandLine, daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, hint in (
        (["--data", str(tmp_path / "file")], "--data DIR names another one"),
        (["--data", str(tmp_path / "data"), "--socket", str(daemon.socket)], "--socket PATH and --http HOST:PORT"),
    ):
        done = cli.process("daemon", "run", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        told = done.communicate(timeout=60)[1].decode()
        assert done.returncode == 1
        assert f"\n\nhint: {hint}" in told


def test_standard_error_is_the_error_object_alone(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, ["a", "b"])
    (leased,) = client.lease(queue, 1).items
    for words, input in (
        (["queue", "produce", queue, "--ndjson"], '{"utf8": "a"}\nnonsense\n'),
        (["queue", "complete", queue, leased.id, "nonsense"], None),
        (["items", "redrive", queue], None),
    ):
        result = cli(*words, "-o", "json", input=input)
        assert json.loads(result.stderr)["error"]["exit_code"] == result.exit_code == 3, result.output
        assert "error" in str(json.loads(result.stdout))


def test_a_misspelt_command_is_guessed(cli: CommandLine) -> None:
    assert "hint: did you mean 'querator queues list'?" in cli("queues", "lst").stderr


def test_usage_errors_are_objects_too(cli: CommandLine) -> None:
    assert json.loads(cli("queues", "list", "--nope", "-o", "json").stderr)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("code", "message", "exit_code"),
    [
        (400, "items cannot be empty", 1),
        (400, "queue does not exist; no such queue named 'q'", 4),
        (400, "reload is already running; wait for it", 5),
        (401, "api key is invalid", 1),
        (403, "access denied", 1),
        (453, "user storage not configured", 1),
        (500, "Internal Error", 1),
        (501, "no such method; /v1/queues.info", 1),
    ],
)
def test_refusals_of_the_daemon_have_their_exit_codes(tmp_path: Path, code: int, message: str, exit_code: int) -> None:
    with ScriptedDaemon(tmp_path, refusal(code, message)) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("queues", "show", "q")
    assert result.exit_code == exit_code
    assert f"error: {message}" in result.stderr


def test_a_busy_daemon_is_exit_7(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, refusal(454, "queue is overloaded; try again later")) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("queue", "complete", "q", "x", "--timeout", "50ms")
    assert result.exit_code == 7


def test_every_exit_code_is_documented(cli: CommandLine) -> None:
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.QueratorError)
    ]
    assert {kind.exit_code for kind in kinds} <= set(failures.EXIT_CODES)
    told = cli.ok("help", "exit-codes")
    for code in failures.EXIT_CODES:
        assert f"  {code} " in told


def test_ctrl_c_during_a_query_of_duckdb_is_no_defect() -> None:
    script = """
import os, signal, threading
import duckdb
from querator.cli.terminal.failures import as_querator_error

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    duckdb.sql("select sum(a.range * b.range) from range(10000000) a, range(10000000) b").fetchall()
except BaseException as error:
    print(type(as_querator_error(error)).__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Interrupted\n", done.stderr


def test_a_defect_has_no_traceback_unless_asked_for(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of course")

    monkeypatch.setattr("querator.cli.queues.all_queues", broken)
    result = cli("queues", "list")
    assert result.exit_code == 1
    assert "error: ZeroDivisionError: of course" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in cli("queues", "list", "--debug").stderr


def test_an_argument_that_is_not_utf8_is_reported(cli: CommandLine) -> None:
    result = cli("queues", "show", os.fsdecode(b"\xff"))
    assert result.exit_code == 2
    assert "not valid UTF-8" in result.stderr


def test_a_closed_pipe_is_no_error_to_read_about(cli: CommandLine, daemon: Daemon) -> None:
    queue = fresh_name()
    daemon.client.create_queue(queue)
    for _ in range(5):
        daemon.client.produce(queue, ["x" * 1_000] * 1_000)
    process = cli.process("items", "list", queue, "--limit", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    told = process.stderr.read()
    assert (process.wait(60), told) == (141, b"")
    process.stderr.close()


def test_a_full_disk_is_reported(cli: CommandLine) -> None:
    with open("/dev/full", "wb") as full:
        process = cli.process("help", "exit-codes", stdout=full, stderr=subprocess.PIPE)
        told = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 1
    assert told.startswith("error: No space left on device")
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("form", "expected"),
    [("table", b"error: interrupted\n"), ("json", b'{"error":{"message":"interrupted","exit_code":130}}\n')],
)
def test_ctrl_c_is_exit_130(cli: CommandLine, queue: str, daemon: Daemon, form: str, expected: bytes) -> None:
    words = ("queue", "lease", queue, "--timeout", "60s", "-o", form)
    process = cli.process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while daemon.client.stats(queue).logical_queues[0].lease_waiting == 0:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out, told) == (130, b"", expected)


@pytest.mark.parametrize("words", [["queues", "list"], ["__complete", "queues", "", ""]])
def test_ctrl_c_while_modules_are_imported_is_silent(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    (tmp_path / "socket.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run([*QUERATOR, *words], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["-o", "json", "queues", "list"], ["queues", "list", "-o", "json"]),
        (["--socket=/x", "-q", "queues", "list"], ["queues", "list", "--socket=/x", "-q"]),
        (["-q", "queue", "produce", "q", "--", "-x"], ["queue", "produce", "q", "-q", "--", "-x"]),
        (["--help"], ["--help"]),
        (["-q"], ["-q"]),
        (["queues", "list"], ["queues", "list"]),
    ],
)
def test_shared_options_may_stand_in_front(typed: list[str], meant: list[str]) -> None:
    assert hoist_shared_options(typed) == meant


def test_a_noun_alone_shows_its_verbs(cli: CommandLine) -> None:
    result = cli("queues")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "create" in result.stderr


def test_querator_alone_shows_all_nouns(cli: CommandLine) -> None:
    shown = cli.ok()
    for noun in ("daemon", "queues", "queue", "partitions", "items", "sql", "top", "check", "doctor", "context"):
        assert f"\n  {noun} " in shown


def test_help_of_a_command(cli: CommandLine) -> None:
    assert "Usage: querator queues create [OPTIONS] NAME" in cli.ok("help", "queues", "create")
    assert cli.ok("help", "queues", "create") == cli.ok("queues", "create", "--help")
    assert "Usage: querator queue consume [OPTIONS] QUEUE --exec CMD" in cli.ok("help", "queue", "consume")
    assert cli("help", "nonsense").exit_code == 2
    assert "QUERATOR_SOCKET" in cli.ok("help", "environment")
    assert "-o ndjson" in cli.ok("help", "output")


def test_versions(cli: CommandLine, lonely: CommandLine) -> None:
    assert cli.ok("version") == cli.ok("--version")
    assert cli.json("version")["daemon_version"] == cli.json("version")["version"]
    assert cli.json("version")["daemon_build"] == cli.json("version")["build"] == build.name()
    assert lonely.json("version")["daemon_version"] is None
