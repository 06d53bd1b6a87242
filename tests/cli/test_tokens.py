"""`querator tokens` and `querator audit`, and that no output ever shows a token."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.guarded import MINE, Guarded
from tests.daemons import QUERATOR, clean_environment


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("tokens")) as guarded:
        yield guarded


def run(
    daemon: Guarded, *words: str, stdin: str = "", ok: bool = True, **environ: str
) -> subprocess.CompletedProcess[str]:
    """A command on the Unix socket, unless the words or variables name another way."""
    where = {} if "--endpoint" in words else {"QUERATOR_SOCKET": str(daemon.socket)}
    done = subprocess.run(
        [*QUERATOR, *words],
        env=clean_environment(daemon.directory) | where | environ,
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == ok, done.stderr
    return done


def test_a_token_from_its_creation_to_its_end(daemon: Guarded) -> None:
    queues = ("--queue", "mine*", "--queue", "zz*")
    made = run(daemon, "tokens", "create", "joe", "--role", "viewer", *queues, "--expires", "90d")
    token = made.stdout.strip()
    assert token.startswith("qtr-viewer-") and "no queue matches 'zz*' yet" in made.stderr
    (one,) = (one for one in json.loads(run(daemon, "tokens", "list", "-o", "json").stdout) if one["name"] == "joe")
    assert (one["role"], one["queues"], one["state"]) == ("viewer", ["mine*", "zz*"], "valid")
    tcp = ("--endpoint", f"http://{daemon.http}")
    for how in ({"QUERATOR_TOKEN": token}, {}):
        words = () if how else ("--token-file", "-")
        me = run(daemon, "tokens", "whoami", "-o", "json", *tcp, *words, stdin=token + "\n", **how)
        assert json.loads(me.stdout)["name"] == "joe"
    rotated = json.loads(run(daemon, "tokens", "rotate", "joe", "--grace", "0", "-o", "json").stdout)
    assert rotated["token"] != token
    refused = run(daemon, "queues", "list", *tcp, ok=False, QUERATOR_TOKEN=token)
    assert "api key does not exist" in refused.stderr and "hint: the token was revoked" in refused.stderr
    run(daemon, "tokens", "revoke", "joe")
    assert run(daemon, "tokens", "show", "joe", ok=False).returncode == 4
    audit = json.loads(run(daemon, "audit", "--since", "1h", "-o", "json").stdout)
    audited = [line["call"] for line in audit]
    assert audit[-1]["asked"] == {"name": "joe"}
    assert run(daemon, "audit", "--follow", "-o", "json", ok=False).returncode == 2
    changes = [call for call in audited if call.startswith("tokens.")]
    assert changes[-3:] == ["tokens.create", "tokens.rotate", "tokens.revoke"]


@pytest.mark.parametrize("words", [("tokens", "create", "x"), ("tokens", "create", "x", "--role", "king")])
def test_a_token_needs_a_role(daemon: Guarded, words: tuple[str, ...]) -> None:
    assert run(daemon, *words, ok=False).returncode == 2


def test_no_output_ever_shows_a_token(daemon: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(daemon.tokens["viewer of mine"])
    file.chmod(0o600)
    secret = daemon.tokens["viewer of mine"]
    tcp = ("--endpoint", f"http://{daemon.http}", "--token-file", str(file), "--debug")
    for words in (
        ("queue", "stats", "others", *tcp),
        ("queue", "produce", MINE, "x", *tcp),
        ("queue", "stats", "mine-missing", *tcp),
        ("queue", "stats", MINE, "--endpoint", "http://127.0.0.1:9", *tcp[2:]),
    ):
        done = run(daemon, *words, ok=False)
        assert secret not in done.stdout + done.stderr
    for words in (("doctor", *tcp[:-1]), ("config", "show", *tcp[:-1])):
        done = subprocess.run(
            [*QUERATOR, *words], env=clean_environment(daemon.directory), capture_output=True, text=True
        )
        assert secret not in done.stdout + done.stderr
    assert secret not in daemon.output


def test_no_flag_takes_a_token() -> None:
    """Other users of a machine see the flags of a command in `ps`."""
    from querator.cli.shell.options import _shared_parameters
    from querator.cli.terminal.render import Format

    assert "token_file" in _shared_parameters(Format) and "token" not in _shared_parameters(Format)
