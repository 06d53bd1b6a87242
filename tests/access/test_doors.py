"""The doors of a daemon: where it listens, whom the Unix socket lets in, and how repeated failures are delayed."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import limits
from querator.daemon.access import FailedAttempts
from querator.daemon.access.addresses import is_loopback
from tests.access.guarded import Guarded
from tests.daemons import Daemon, clean_environment, querator

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

ASK = """
import http.client, json, os, socket, sys
uid, gid, path, call, body = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
os.setgroups([gid]); os.setgid(gid); os.setuid(uid)
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
try:
    connection.sock.connect(path)
except PermissionError:
    print("no permission"); sys.exit()
connection.request("POST", "/v1/" + call, body)
print(connection.getresponse().read().decode())
"""


def ask_as(user: str, group: str, path: Path, call: str, body: dict[str, object] | None = None) -> str:
    """The answer that a process of another user gets over the Unix socket."""
    ids = [str(pwd.getpwnam(user).pw_uid), str(grp.getgrnam(group).gr_gid)]
    words = [sys.executable, "-c", ASK, *ids, str(path), call, json.dumps(body or {})]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that other users can enter, unlike pytest's own and the temporary directory of `make test`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


class TestUnixSocket:
    def test_the_user_of_the_daemon_is_admin(self, daemon: Guarded) -> None:
        me = daemon.admin("/v1/tokens.whoami", {})
        assert (me["kind"], me["name"], me["role"]) == ("user", pwd.getpwuid(os.geteuid()).pw_name, "admin")

    def test_a_token_counts_there_too(self, daemon: Guarded) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "querator.cli.main", "tokens", "whoami", "-o", "json"],
            env=clean_environment(daemon.directory)
            | {"QUERATOR_SOCKET": str(daemon.socket), "QUERATOR_TOKEN": daemon.tokens["viewer"]},
            capture_output=True,
            text=True,
        )
        assert json.loads(done.stdout)["role"] == "viewer"

    @NEEDS_ROOT
    def test_other_users_cannot_open_it(self, open_path: Path) -> None:
        with Daemon(open_path) as daemon:
            assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
            assert ask_as("nobody", "nogroup", daemon.socket, "tokens.whoami") == "no permission"

    @NEEDS_ROOT
    def test_members_of_the_group_have_the_role_of_the_configuration(self, open_path: Path) -> None:
        config = open_path / "q.toml"
        config.write_text('[access]\nsocket_role = "producer"\nsocket_queues = ["mine*"]\n')
        with Daemon(open_path, "--socket-group", "games", "--config", str(config)) as daemon:
            assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660
            me = json.loads(ask_as("nobody", "games", daemon.socket, "tokens.whoami"))
            assert me == {"name": "nobody", "kind": "user", "role": "producer", "queues": ["mine*"]}
            denied = json.loads(ask_as("nobody", "games", daemon.socket, "queues.list"))
            assert (denied["code"], denied["message"]) == (403, "access denied")
            assert ask_as("nobody", "nogroup", daemon.socket, "tokens.whoami") == "no permission"

    @NEEDS_ROOT
    def test_a_socket_that_the_group_cannot_reach_is_reported(self, tmp_path: Path) -> None:
        with Daemon(tmp_path, "--socket-group", "games") as daemon:
            assert any("cannot reach the socket" in line for line in daemon.output.splitlines())

    def test_an_unknown_group_is_refused(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path, "--socket-group", "no-such-group", may_fail=True)
        assert daemon.exit_code == 1
        assert "there is no group 'no-such-group' on this machine" in daemon.output


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TestAddresses:
    @pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1"])
    def test_only_this_machine_reaches_loopback(self, address: str) -> None:
        assert is_loopback(address)

    @pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.168.0.1:1", "[fe80::1%eth0]:1", "host:1"])
    def test_others_reach_anything_else(self, address: str) -> None:
        assert not is_loopback(address)

    def test_loopback_without_tokens_is_served_with_one_warning(self, tmp_path: Path) -> None:
        with Guarded(tmp_path, tokens=False) as daemon:
            assert daemon.ask("/v1/queues.list", b"{}").status == 200
            assert daemon.ask("/v1/queues.list", b"{}", "any-text-passes-as-before").status == 200
            warnings = [line for line in daemon.log if line["level"] == "warning"]
            assert [line["logger"] for line in warnings] == ["querator.access"]
            assert "tokens create" in warnings[0]["hint"]

    @pytest.mark.parametrize("text", ['access = "required"', '[access]\nmode = "required"'])
    def test_access_required_closes_it_before_the_first_token(self, tmp_path: Path, text: str) -> None:
        config = tmp_path / "q.toml"
        config.write_text(text)
        with Guarded(tmp_path, "--config", str(config), tokens=False) as daemon:
            assert daemon.ask("/v1/queues.list", b"{}").json["message"] == "authentication required"
            assert daemon.ask("/v1/queues.list", b"{}", daemon.create_token("t", "viewer")).status == 200

    def test_any_other_address_is_refused_without_tokens_and_tls(self, tmp_path: Path) -> None:
        daemon = Daemon(tmp_path, "--http", f"0.0.0.0:{free_port()}", may_fail=True)
        assert daemon.exit_code == 1
        for text in ("without tokens and TLS", "tokens create NAME --role admin", "--tls-cert", "--insecure"):
            assert text in daemon.output

    def test_insecure_overrides_and_is_told_everywhere(self, tmp_path: Path) -> None:
        port = free_port()
        with Daemon(tmp_path, "--http", f"0.0.0.0:{port}", "--insecure") as daemon:
            assert daemon.call("/v1/queues.list", {}, address=f"127.0.0.1:{port}") == (200, {})
            assert re.search("INSECURE.*may do everything without a token", daemon.output)
            status = querator(tmp_path, "daemon", "status", "--data", str(daemon.data), "-o", "json")
            assert json.loads(status.stdout)["insecure"] is True
            check = querator(tmp_path, "check", "daemon", "--socket", str(daemon.socket))
            assert "the daemon runs with --insecure" in check.stdout
            doctor = querator(tmp_path, "doctor", "--socket", str(daemon.socket), "--data", str(daemon.data))
            assert "the daemon runs with --insecure" in doctor.stdout

    def test_access_required_wins_over_insecure(self, tmp_path: Path) -> None:
        config = tmp_path / "q.toml"
        config.write_text('access = "required"')
        with Guarded(tmp_path, "--config", str(config), "--insecure", tokens=False) as daemon:
            assert daemon.ask("/v1/queues.list", b"{}").status == 401


class TestFailedAttempts:
    def test_an_address_that_fails_often_waits(self) -> None:
        attempts = FailedAttempts()
        waits = [attempts.failed("10.0.0.1", now=0.0) for _ in range(limits.FAILED_ATTEMPTS_MAX + 1)]
        assert waits == [False] * limits.FAILED_ATTEMPTS_MAX + [True]
        assert not attempts.failed("10.0.0.2", now=0.0)
        assert not attempts.failed("10.0.0.1", now=limits.FAILED_ATTEMPTS_SECONDS)

    def test_a_network_of_ipv6_counts_as_one_address(self) -> None:
        attempts = FailedAttempts()
        waits = [attempts.failed(f"[2001:db8::{n:x}]", now=0.0) for n in range(limits.FAILED_ATTEMPTS_MAX + 1)]
        assert waits[-1]
        assert not attempts.failed("[2001:db8:0:1::1]", now=0.0)

    def test_memory_stays_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "FAILED_ATTEMPTS_ADDRESSES_MAX", 10)
        attempts = FailedAttempts()
        for n in range(1_000):
            attempts.failed(f"10.0.{n // 256}.{n % 256}", now=0.0)
        assert len(attempts._counts) == 10

    def test_few_answers_wait_at_once(self) -> None:
        attempts = FailedAttempts()
        allowed = [attempts.begin_wait("h") for _ in range(limits.FAILED_ATTEMPTS_WAITING_MAX + 1)]
        assert allowed == [True] * limits.FAILED_ATTEMPTS_WAITING_MAX + [False]
        attempts.end_wait("h")
        assert attempts.begin_wait("h")

    def test_a_right_token_never_waits_behind_wrong_ones(self, tmp_path: Path) -> None:
        with Guarded(tmp_path) as daemon:
            wrong = "qtr-x-" + "0" * 43
            for _ in range(limits.FAILED_ATTEMPTS_MAX):
                daemon.ask("/v1/queues.list", b"{}", wrong)
            connection = daemon.tcp()
            connection.request("POST", "/v1/queues.list", b"{}", {"Authorization": f"Bearer {wrong}"})
            # This one is answered while the wrong one still waits.
            assert daemon.ask("/v1/queues.list", b"{}", daemon.tokens["viewer"]).status == 200
            connection.sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.sock.recv(1, socket.MSG_PEEK)
            connection.sock.setblocking(True)
            assert connection.getresponse().status == 401
            connection.close()
