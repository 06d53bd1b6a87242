"""`querator check` and `querator doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from querator import Client
from querator.cli.doctor import parse_java_version
from querator.cli.lookups import metrics
from querator.cli.terminal.streams import Terminals
from tests.cli.command_line import CommandLine
from tests.daemons import Daemon, querator


def test_check_queue_has_nagios_codes_and_one_line(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, ["a", "b", "c"])
    for options, code, word in (
        ([], 0, "OK"),
        (["--depth-warn", "4"], 0, "OK"),
        (["--depth-warn", "3"], 1, "WARNING"),
        (["--depth-warn", "1", "--depth-critical", "2"], 2, "CRITICAL"),
    ):
        result = cli("check", "queue", queue, *options)
        assert result.exit_code == code
        assert result.stdout.startswith(f"QUERATOR QUEUE {word} - {queue}: 3 ready")
        assert result.stdout.count("\n") == 1
    assert " | depth=3;1;2 age=" in result.stdout


def test_check_queue_by_age(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, "a")
    client.advance_clock("10m")
    assert cli("check", "queue", queue, "--age-warn", "5m").exit_code == 1
    assert cli("check", "queue", queue, "--age-warn", "5m", "--age-critical", "9m").exit_code == 2
    assert cli("check", "queue", queue, "--age-warn", "1h").exit_code == 0


def test_check_of_an_unknown_queue_is_unknown(cli: CommandLine) -> None:
    result = cli("check", "queue", "nope")
    assert (result.exit_code, "UNKNOWN" in result.stdout) == (3, True)


def test_checks_without_a_daemon_are_critical(lonely: CommandLine) -> None:
    for words in (["daemon"], ["partitions"], ["queue", "q"]):
        result = lonely("check", *words)
        assert (result.exit_code, "CRITICAL - no daemon" in result.stdout) == (2, True)


def test_check_partitions(cli: CommandLine, client: Client, wide_queue: str) -> None:
    assert "OK - 2 of 2 available" in cli.ok("check", "partitions", wide_queue)
    client.pause_partitions(wide_queue, [1])
    result = cli("check", "partitions", wide_queue)
    assert result.exit_code == 1
    assert f"1 of 2 available; {wide_queue}/1 paused" in result.stdout
    assert cli("check", "partitions", "nope").exit_code == 3


def test_check_daemon_in_every_format(cli: CommandLine) -> None:
    assert cli.ok("check", "daemon").startswith("QUERATOR DAEMON OK - pass, version ")
    assert json.loads(cli.ok("check", "daemon", "--format", "json"))["status"] == "OK"
    assert json.loads(cli.ok("check", "daemon", "-o", "json"))["status"] == "OK"
    assert 'querator_check_status{check="daemon"} 0' in cli.ok("check", "daemon", "--format", "prometheus")


def test_the_data_directory_names_the_socket(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        done = querator(tmp_path, "doctor", "--data", str(daemon.data), "-o", "json")
        findings = {one["check"]: one for one in json.loads(done.stdout)}
        assert findings["daemon"]["status"] == "ok", findings
        assert findings["socket"]["what"] == str(daemon.socket)


def test_a_daemon_is_stopped_by_its_socket(tmp_path: Path) -> None:
    with Daemon(tmp_path, socket="data/querator.sock") as daemon:
        done = querator(tmp_path, "daemon", "stop", "--socket", str(daemon.socket))
        assert done.returncode == 0, done.stderr
        assert daemon.process.wait(10) == 0


def test_a_daemon_is_stopped_by_its_socket_outside_of_its_data(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with Daemon(tmp_path, socket="run/querator.sock") as daemon:
        done = querator(tmp_path, "daemon", "stop", "--socket", str(daemon.socket))
        assert done.returncode == 0, done.stderr
        assert daemon.process.wait(10) == 0
    done = querator(tmp_path, "daemon", "stop", "--socket", str(daemon.socket))
    assert done.returncode == 6 and "with its data directory" in done.stderr


def test_doctor_finds_nothing_wrong(cli: CommandLine, daemon: Daemon) -> None:
    records = cli.json("doctor", "--data", str(daemon.data))
    status = {one["check"]: one["status"] for one in records}
    for check in ("settings", "socket", "daemon", "partitions", "lock", "disk space"):
        assert status[check] == "ok", records
    assert cli.ok("doctor", "--data", str(daemon.data)).splitlines()[0].split() == ["STATUS", "CHECK", "WHAT", "TODO"]


def test_doctor_says_what_to_do(lonely: CommandLine, tmp_path: Path) -> None:
    result = lonely("doctor", "-o", "json")
    assert result.exit_code == 1
    by_check = {one["check"]: one for one in json.loads(result.stdout)}
    assert by_check["socket"]["status"] == "fail"
    assert by_check["socket"]["todo"] == "querator daemon run"


def test_doctor_on_a_terminal_cuts_nothing_and_says_below_what_to_do(lonely: CommandLine, tmp_path: Path) -> None:
    shown = lonely("doctor", terminals=Terminals(stdout=True, columns=40), env={"NO_COLOR": "1"}).stdout
    lines = shown.splitlines()
    at = lines.index(f"fail  socket    {tmp_path}/nobody.sock does not exist")
    assert lines[at + 1] == "                → querator daemon run"


def test_doctor_is_quiet_about_what_is_well(lonely: CommandLine) -> None:
    shown = lonely("doctor", "-q").stdout.splitlines()
    assert "socket" in shown
    assert "settings" not in shown


def test_doctor_with_settings_that_cannot_be_read(lonely: CommandLine, tmp_path: Path) -> None:
    for name, what in (
        ("QUERATOR_CONFIG", "config file /missing does not exist (QUERATOR_CONFIG)"),
        ("QUERATOR_TOKEN_FILE", "token file /missing cannot be read: No such file or directory (QUERATOR_TOKEN_FILE)"),
    ):
        findings = json.loads(lonely("doctor", "-o", "json", env={name: "/missing"}).stdout)
        (found,) = [one for one in findings if one["check"] == "settings" and one["status"] == "fail"]
        assert found["what"] == what
        assert found["todo"]


def test_doctor_tells_of_an_open_token_file(cli: CommandLine, daemon: Daemon, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    token.chmod(0o644)
    told = cli("doctor", "-o", "json", "--data", str(daemon.data), "--token-file", str(token))
    findings = [one for one in json.loads(told.stdout) if one["status"] == "fail"]
    assert {"settings", "daemon"} <= {one["check"] for one in findings}
    assert findings[0]["todo"] == f"chmod 600 {token}"


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.9" 2023', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21"', 21),
        ("no", None),
    ],
)
def test_java_versions_are_understood(told: str, version: int | None) -> None:
    assert parse_java_version(told) == version


def test_metrics_are_read_back() -> None:
    text = (
        "# HELP x y\n"
        'querator_items{partition="0",queue="a\\"b\\\\c",state="ready"} 3.0\n'
        'querator_partition_state{partition="0",queue="a\\"b\\\\c",state="paused"} 1.0\n'
        'querator_partition_state{partition="0",queue="a\\"b\\\\c",state="error"} 0.0\n'
        'querator_dead_lettered_total{queue="a\\"b\\\\c",reason="client"} 2.0\n'
        "process_cpu_seconds_total 1e-3\n"
    )
    (view,) = metrics.queues(text).values()
    assert (view.name, view.ready, view.state, view.dead) == ('a"b\\c', 3, "paused", 2)
