"""SIGHUP makes the daemon open its log file again. It ends a daemon only if the daemon's terminal closes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator.daemon import lock
from tests import ROOT
from tests.daemons import QUERATOR, Daemon, UnixConnection, clean_environment, querator
from tests.waiting import PATIENCE_SECONDS, until


def messages(log: Path) -> list[str]:
    return [json.loads(line)["message"] for line in log.read_text().splitlines()] if log.exists() else []


def answers(socket: Path) -> bool:
    connection = UnixConnection(socket)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, "--log-file", str(tmp_path / "daemon.log")) as daemon:
        yield daemon


class TestTheLogFile:
    def test_is_opened_again_after_it_was_renamed(self, daemon: Daemon, tmp_path: Path) -> None:
        log, old = tmp_path / "daemon.log", tmp_path / "daemon.log.1"
        assert messages(log)[0].endswith("started")
        log.rename(old)
        daemon.client.create_queue("before")
        assert messages(old)[-1] == "queue created"
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: messages(log) == ["log file reopened"])
        daemon.client.create_queue("after")
        assert messages(log) == ["log file reopened", "queue created"]
        assert messages(old)[-1] == "queue created" and "log file reopened" not in messages(old)
        assert oct(log.stat().st_mode & 0o777) == "0o600"

    def test_goes_on_into_the_old_file_if_the_new_one_cannot_be_opened(self, daemon: Daemon, tmp_path: Path) -> None:
        log, old = tmp_path / "daemon.log", tmp_path / "daemon.log.1"
        log.rename(old)
        log.mkdir()
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: messages(old)[-1] == "log file cannot be reopened")
        assert "Is a directory" in old.read_text().splitlines()[-1]
        assert answers(daemon.socket)

    def test_rotates_as_the_logrotate_example_says(self, daemon: Daemon, tmp_path: Path) -> None:
        text = (ROOT / "packaging" / "querator.logrotate").read_text()
        documented = re.findall(r"```logrotate\n(.*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
        (block,) = re.findall(r"^/var.*?^}\n", text, re.DOTALL | re.MULTILINE)
        assert documented == [block]
        (script,) = re.findall(r"postrotate\n(.*?)endscript", block, re.DOTALL)
        (reload,) = re.findall(r"^ExecReload=(.*)$", (ROOT / "packaging" / "querator.service").read_text(), re.M)
        programs = tmp_path / "bin"
        programs.mkdir()
        systemctl = programs / "systemctl"
        systemctl.write_text(
            f"#!/bin/sh\n[ \"$*\" = 'reload querator.service' ] && MAINPID={daemon.process.pid} && {reload}\n"
        )
        systemctl.chmod(0o755)
        log, old = tmp_path / "daemon.log", tmp_path / "daemon.log.1"
        log.rename(old)
        subprocess.run(["/bin/sh", "-ec", script], env={"PATH": f"{programs}:/usr/bin:/bin"}, check=True)
        until(lambda: messages(log) == ["log file reopened"])

    def test_rotates_by_hand_as_documented(self, daemon: Daemon, tmp_path: Path) -> None:
        (script,) = re.findall(r"^mv daemon.log.*?(?=```)", (ROOT / "docs" / "operating.md").read_text(), re.M | re.S)
        settings = clean_environment(tmp_path) | {
            "QUERATOR_DATA": str(daemon.data),
            "QUERATOR_SOCKET": str(daemon.socket),
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }
        subprocess.run(["/bin/sh", "-ec", script], cwd=tmp_path, env=settings, check=True)
        until(lambda: messages(tmp_path / "daemon.log") == ["log file reopened"])

    def test_that_cannot_be_opened_is_told_at_the_start(self, tmp_path: Path) -> None:
        log = tmp_path / "missing" / "daemon.log"
        done = querator(tmp_path, "daemon", "run", "--data", str(tmp_path / "data"), "--log-file", str(log))
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: log file {log} cannot be opened: No such file or directory\n\nhint: ")


def test_without_a_log_file_nothing_ends(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        for _ in range(3):
            daemon.process.send_signal(signal.SIGHUP)
        until(lambda: "SIGHUP: there is no log file to reopen" in daemon.output)
        assert answers(daemon.socket)
        assert daemon.stop() == 0


class Terminal:
    """Runs a command in its own terminal, which can be closed."""

    def __init__(self, directory: Path, command: str) -> None:
        self.log, self.socket, self.data = directory / "daemon.log", directory / "q.sock", directory / "data"
        run = [*QUERATOR, "daemon", "run", "--data", self.data, "--socket", self.socket, "--log-file", self.log]
        self.master, slave = pty.openpty()

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command.replace("DAEMON", shlex.join(map(str, run)))],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=clean_environment(directory),
            cwd=directory,  # where nohup puts its nohup.out
            preexec_fn=take_terminal,
        )
        os.close(slave)
        until(lambda: messages(self.log))

    @property
    def pid(self) -> int:
        """The process id of the daemon while it runs."""
        holder = lock.holder(self.data)
        return holder.pid if holder else 0

    def close(self) -> None:
        os.close(self.master)


@pytest.mark.parametrize("command", ["exec DAEMON", "DAEMON; true"], ids=["alone", "in a shell"])
def test_in_the_foreground_it_ends_with_its_terminal_and_says_so(tmp_path: Path, command: str) -> None:
    terminal = Terminal(tmp_path, command)
    terminal.close()
    code = terminal.process.wait(PATIENCE_SECONDS)
    until(lambda: not terminal.pid)
    assert code == (0 if command.startswith("exec") else -signal.SIGHUP)
    until(lambda: messages(terminal.log)[-1] == "querator stopped")
    stopping = json.loads(terminal.log.read_text().splitlines()[-2])
    assert (stopping["message"], stopping["reason"]) == ("querator is stopping", "the terminal was closed")


def test_in_the_foreground_a_signal_of_an_operator_reopens_the_log(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "exec DAEMON")
    os.kill(terminal.pid, signal.SIGHUP)
    until(lambda: messages(terminal.log)[-1] == "log file reopened")
    assert answers(terminal.socket)
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.process.wait(PATIENCE_SECONDS) == 0
    terminal.close()


@pytest.mark.parametrize("command", ["nohup DAEMON; true", "set -m; DAEMON & read line"], ids=["nohup", "background"])
def test_under_nohup_or_in_the_background_it_outlives_its_terminal(tmp_path: Path, command: str) -> None:
    terminal = Terminal(tmp_path, command)
    pid = terminal.pid
    terminal.close()
    terminal.process.wait(PATIENCE_SECONDS)
    os.kill(pid, signal.SIGHUP)  # as a shell does when its own terminal closes
    until(lambda: "log file reopened" in messages(terminal.log))
    assert answers(terminal.socket) and "querator is stopping" not in messages(terminal.log)
    os.kill(pid, signal.SIGTERM)
    until(lambda: messages(terminal.log)[-1] == "querator stopped")
    until(lambda: not terminal.pid)


EARLY_HANGUP = """
import os, signal, sys
class Hangup:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGHUP)
sys.meta_path.insert(0, Hangup())
sys.argv = ["querator", "daemon", "run", "--help"]
from querator.cli.main import main
main()
"""


def test_sighup_does_not_end_a_daemon_that_is_still_importing_its_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY_HANGUP], env=clean_environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--log-file" in done.stdout
