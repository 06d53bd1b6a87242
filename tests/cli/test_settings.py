"""querator context, config and the precedence of settings"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.daemons import Daemon


@pytest.fixture
def bare(tmp_path: Path) -> CommandLine:
    """A command line without a daemon, with an empty home directory and no settings."""
    return CommandLine(tmp_path, None)


def test_contexts_are_added_used_shown_and_removed(bare: CommandLine) -> None:
    bare.ok("context", "add", "one", "--endpoint", "http://one:2319")
    bare.ok("context", "add", "two", "--socket", "/run/two.sock", "--token-file", "/keys/two")
    assert [(one["name"], one["current"]) for one in bare.json("context", "list")] == [("one", True), ("two", False)]
    bare.ok("context", "use", "two")
    assert bare.json("context", "show") == {
        "name": "two",
        "current": True,
        "endpoint": "unix:/run/two.sock",
        "token_file": "/keys/two",
        "ca_file": "",
        "client_cert": "",
        "client_key": "",
    }
    assert bare.json("context", "show", "one")["endpoint"] == "http://one:2319"
    bare.ok("context", "remove", "two")
    assert bare("context", "show").exit_code == 4


def test_contexts_refuse_nonsense(bare: CommandLine) -> None:
    assert bare("context", "add", "x").exit_code == 2
    assert bare("context", "add", "x", "--endpoint", "nonsense").exit_code == 2
    assert bare("context", "use", "nope").exit_code == 4
    bare.ok("context", "add", "x", "--endpoint", "http://x:1")
    assert bare("context", "add", "x", "--endpoint", "http://x:2").exit_code == 5
    bare.ok("context", "add", "x", "--endpoint", "http://x:2", "--replace")
    assert bare.json("context", "show", "x")["endpoint"] == "http://x:2"


def test_the_contexts_file_is_for_its_owner(bare: CommandLine, tmp_path: Path) -> None:
    bare.ok("context", "add", "x", "--endpoint", "http://x:1")
    (file,) = tmp_path.glob(".config/querator/contexts.toml")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_contexts_file_that_is_broken_is_reported(bare: CommandLine, tmp_path: Path) -> None:
    bare.ok("context", "add", "x", "--endpoint", "http://x:1")
    (tmp_path / ".config/querator/contexts.toml").write_text("nonsense")
    for words in (["queues", "list"], ["context", "list"]):
        result = bare(*words)
        assert result.exit_code == 1
        assert "contexts.toml is not TOML" in result.stderr
        assert "hint: repair it, or remove it" in result.stderr


def origin(cli: CommandLine, *words: str, **settings: object) -> tuple[str, str]:
    (row,) = [one for one in cli.json("config", "show", *words, **settings) if one["name"] == "client.address"]
    return row["value"], row["origin"]


def test_flag_before_environment_before_context_before_default(bare: CommandLine, tmp_path: Path) -> None:
    assert origin(bare) == (f"unix:{tmp_path}/.local/state/querator/querator.sock", "default")
    bare.ok("context", "add", "prod", "--endpoint", "http://prod:1")
    assert origin(bare) == ("http://prod:1", "context prod")
    environment = {"QUERATOR_SOCKET": "/run/env.sock"}
    assert origin(bare, env=environment) == ("unix:/run/env.sock", "QUERATOR_SOCKET")
    assert origin(bare, "--endpoint", "http://flag:1", env=environment) == ("http://flag:1", "flag")


def test_a_context_reaches_its_daemon(bare: CommandLine, daemon: Daemon) -> None:
    bare.ok("context", "add", "here", "--socket", str(daemon.socket))
    bare.ok("context", "add", "nowhere", "--socket", "/nowhere", "--use")
    assert bare("queues", "list").exit_code == 6
    assert bare("queues", "list", "--context", "here").exit_code == 0
    assert bare("queues", "list", env={"QUERATOR_CONTEXT": "here"}).exit_code == 0
    assert bare("queues", "list", "--context", "nope").exit_code == 4


def test_the_daemon_is_reached_over_tcp_too(bare: CommandLine, daemon: Daemon) -> None:
    address = bare.json("daemon", "status", "--data", str(daemon.data))["http"].split(",")[0]
    assert bare("queues", "list", "--endpoint", f"http://{address}").exit_code == 0
    assert bare("queues", "list", "--endpoint", f"http://{address}/").exit_code == 0
    assert bare("queues", "list", env={"QUERATOR_ENDPOINT": f"http://{address}"}).exit_code == 0


def test_config_show_is_a_table_too(bare: CommandLine) -> None:
    lines = bare.ok("config", "show").splitlines()
    assert lines[0].split() == ["NAME", "VALUE", "ORIGIN"]
    assert any(line.startswith("daemon.data") for line in lines)


def test_a_token_is_read_from_a_file_and_never_shown(bare: CommandLine, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    assert "secret" not in bare.ok("config", "show", "--token-file", str(token))
    result = bare("queues", "list", "--token-file", str(tmp_path / "missing"))
    assert result.exit_code == 1
    assert "missing cannot be read: No such file or directory (flag)\n\nhint: querator config show" in result.stderr


def test_only_the_daemon_that_is_meant_is_stopped(bare: CommandLine, daemon: Daemon) -> None:
    here = {"QUERATOR_DATA": str(daemon.data)}
    bare.ok("context", "add", "prod", "--endpoint", "http://prod:1")
    for words in (["--socket", "/elsewhere"], ["--endpoint", "http://elsewhere:1"], []):
        result = bare("daemon", "stop", *words, env=here)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"is not the daemon on {daemon.data}; nothing was done" in result.stderr
        assert "hint: on the machine of the daemon: querator daemon stop --data DIR" in result.stderr
    assert daemon.process.poll() is None


def test_status_asks_the_daemon_that_is_named(bare: CommandLine, daemon: Daemon) -> None:
    told = bare.json("daemon", "status", "--socket", str(daemon.socket))
    assert (told["address"], told["health"]) == (f"unix:{daemon.socket}", "pass")
    assert bare("daemon", "status", "--socket", "/elsewhere").exit_code == 6
    meant = bare.json("daemon", "status", "--socket", str(daemon.socket), env={"QUERATOR_DATA": str(daemon.data)})
    assert meant["pid"] == daemon.process.pid
