"""The daemon as a process: its sockets, its lock, its signals, and the commands that start, query and stop it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from querator import build
from querator.cli.daemon import with_http_value
from querator.daemon import lock
from tests.daemons import Daemon, querator
from tests.waiting import PATIENCE_SECONDS, until

Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons, by default on the same data and socket. A second one may be refused."""
    numbers = itertools.count(1)
    with contextlib.ExitStack() as started:

        def start(*words: str, **more: Any) -> Daemon:
            log = f"daemon-{next(numbers)}.log"
            return started.enter_context(Daemon(tmp_path, *words, log=log, may_fail=True, **more))

        yield start


def test_it_listens_on_a_socket_of_its_owner_and_on_tcp_at_once(start: Start) -> None:
    daemon = start(http=True)
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.data.stat().st_mode) == 0o700
    holder = lock.holder(daemon.data)
    assert holder is not None and holder.pid == daemon.process.pid
    assert (daemon.data / "LOCK").read_text().splitlines()[0] == str(daemon.process.pid)
    (address,) = holder.http
    for where in ("", address):
        status, body = daemon.call("/health", address=where)
        assert (status, body["status"]) == (200, "pass")


def test_files_are_for_their_owner_alone(start: Start) -> None:
    daemon = start()
    daemon.client.create_queue("q")
    for path in daemon.data.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_second_daemon_is_refused_by_name(start: Start) -> None:
    first = start()
    second = start(socket="other.sock")
    assert second.exit_code == 1
    assert f"another daemon, PID {first.process.pid}, already runs on {first.data}" in second.output
    assert first.call("/health")[0] == 200


def test_a_stale_socket_is_replaced(start: Start) -> None:
    first = start()
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    assert first.socket.exists()
    second = start()
    assert second.call("/health")[0] == 200


def test_a_live_socket_is_never_taken(start: Start) -> None:
    first = start()
    second = start(data="elsewhere")
    assert second.exit_code == 1
    assert f"cannot listen on {first.socket}: another daemon is listening there" in second.output
    assert first.call("/health")[0] == 200


def test_a_socket_that_listens_but_never_answers_is_live(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(tmp_path / "q.sock"))
        busy.listen(0)
        assert start().exit_code == 1


def test_what_is_no_socket_is_not_removed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "q.sock").write_text("precious")
    daemon = start()
    assert daemon.exit_code == 1 and "it exists and is no socket" in daemon.output
    assert (tmp_path / "q.sock").read_text() == "precious"


def test_an_address_in_use_is_named(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        daemon = start("--http", address)
    assert daemon.exit_code == 1
    assert f"error: cannot listen on {address}: " in daemon.output
    assert not daemon.socket.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_answers_who_waits_and_ends_well(start: Start, number: signal.Signals) -> None:
    daemon = start()
    daemon.client.create_queue("q")
    lease = {"queue_name": "q", "batch_size": 1, "client_id": "c", "request_timeout": "1m"}
    answers: list[tuple[int, dict[str, Any]]] = []
    waiting = threading.Thread(target=lambda: answers.append(daemon.call("/v1/queue.lease", lease)))
    waiting.start()
    until(lambda: daemon.client.stats("q").logical_queues[0].lease_waiting)
    assert daemon.stop(number) == 0
    waiting.join(PATIENCE_SECONDS)
    assert answers == [(453, {"code": 453, "code_text": "Request Failed", "message": "queue is shutting down"})]
    assert not daemon.socket.exists()
    assert lock.holder(daemon.data) is None


def test_a_signal_under_load_leaves_nobody_waiting(start: Start) -> None:
    daemon = start()
    daemon.client.create_queue("q")
    produce = {"queue_name": "q", "request_timeout": "1m", "items": [{"utf8": "x"}]}
    lease = {"queue_name": "q", "batch_size": 1, "client_id": "", "request_timeout": "1m"}
    under_way = threading.Barrier(13)
    refused: list[dict[str, Any]] = []

    def work(number: int) -> None:
        calls = [("/v1/queue.produce", produce), ("/v1/queue.stats", {"queue_name": "q"})]
        path, body = calls[number % 2] if number < 8 else ("/v1/queue.lease", lease | {"client_id": f"c{number}"})
        answered = 0
        while True:
            try:
                status, answer = daemon.call(path, body)
            except (OSError, http.client.HTTPException):
                return  # it has gone
            if status != 200:
                refused.append(answer)
                if daemon.process.poll() is not None:
                    return
            answered += 1
            if answered == 1:
                under_way.wait(PATIENCE_SECONDS)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for worker in workers:
        worker.start()
    under_way.wait(PATIENCE_SECONDS)
    assert daemon.stop() == 0
    for worker in workers:
        worker.join(PATIENCE_SECONDS)
    assert not any(worker.is_alive() for worker in workers)
    assert {answer["message"] for answer in refused} <= {"queue is shutting down", "service is shutting down"}


@pytest.mark.parametrize("path", ["/v1/queue.produce", "/v1/queues.create", "/v1/bulk/items.produce?queue_name=q"])
def test_a_stop_is_told_to_who_is_still_sending(start: Start, path: str) -> None:
    daemon = start()
    daemon.client.create_queue("q")
    with socket.socket(socket.AF_UNIX) as slow:
        slow.settimeout(PATIENCE_SECONDS)
        slow.connect(str(daemon.socket))
        slow.sendall(f"POST {path} HTTP/1.1\r\nHost: q\r\nContent-Length: 100\r\n\r\n".encode() + b"\xff" * 4)
        assert daemon.stop() == 0
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        assert (answer.status, json.loads(answer.read())["message"]) == (453, "service is shutting down")
    assert "Traceback" not in daemon.output


def test_what_was_produced_is_there_after_a_stop_and_after_a_kill(start: Start) -> None:
    daemon = start()
    daemon.client.create_queue("q")
    item = {"queue_name": "q", "request_timeout": "10s", "items": [{"utf8": "x"}]}
    for stop in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        assert daemon.call("/v1/queue.produce", item)[0] == 200
        daemon.stop(stop)
        daemon = start()
    assert len(daemon.call("/v1/storage/items.list", {"queue_name": "q"})[1]["items"]) == 3


def test_the_log_is_json_on_standard_error(start: Start) -> None:
    daemon = start()
    daemon.client.create_queue("q")
    assert daemon.stop() == 0
    assert {"time", "level", "logger", "message"} <= daemon.log[0].keys()
    assert daemon.log[0]["pid"] == daemon.process.pid
    assert daemon.log[-1]["message"] == "querator stopped"
    assert [json.loads(line) for line in daemon.output.splitlines()] == daemon.log
    assert daemon.stdout_file.read_text() == ""


def test_a_file_and_the_environment_say_how_to_run(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text('[logging]\nformat = "text"\n[[queues]]\nname = "mail"\npartitions = 2\n')
    daemon = start("--config", str(file))
    _, body = daemon.call("/v1/queues.list", {})
    assert [(q["queue_name"], q["requested_partitions"]) for q in body["items"]] == [("mail", 2)]
    assert daemon.output.split()[1] == "info"


def test_a_setting_that_makes_no_sense_is_named(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text('[loging]\nlevel = "info"')
    daemon = start("--config", str(file))
    assert daemon.exit_code == 1
    assert daemon.output == f"error: config file {file}: unknown key 'loging'\n\nhint: did you mean 'logging'?\n"


def test_the_test_clock_is_there_only_with_its_flag(start: Start) -> None:
    assert start().call("/v1/clock.advance", {"by": "1s"})[0] == 501
    with_clock = start("--test-clock", data="other", socket="other.sock")
    assert with_clock.call("/v1/clock.set", {"now": "2030-01-01T00:00:00Z"}) == (200, {"now": "2030-01-01T00:00:00Z"})
    assert with_clock.call("/v1/clock.advance", {"by": "90s"}) == (200, {"now": "2030-01-01T00:01:30Z"})


# status and stop


def test_status_and_stop(start: Start, tmp_path: Path) -> None:
    daemon = start(http=True)
    daemon.client.create_queue("q")
    data = ("--data", str(daemon.data))
    told = json.loads(querator(tmp_path, "daemon", "status", *data, "-o", "json").stdout)
    assert (told["pid"], told["health"], told["queues"]) == (daemon.process.pid, "pass", 1)
    assert told["socket"] == str(daemon.socket) and told["version"] and told["http"] and told["uptime"]
    assert told["build"] == build.name()
    stopped = querator(tmp_path, "daemon", "stop", *data)
    assert (stopped.returncode, stopped.stdout) == (0, "")
    assert daemon.exit_code == 0


@pytest.mark.parametrize("verb", ["status", "stop"])
def test_nobody_to_ask_or_stop(tmp_path: Path, verb: str) -> None:
    told = querator(tmp_path, "daemon", verb, "--data", str(tmp_path / "none"))
    assert (told.returncode, told.stdout) == (6, "")
    assert f"error: no daemon runs on {tmp_path / 'none'}" in told.stderr
    assert not (tmp_path / "none").exists()


def test_a_lock_file_that_nobody_holds_is_not_believed(tmp_path: Path) -> None:
    """Another process may have the PID by now, and must not be stopped."""
    (tmp_path / "LOCK").write_text(f"{os.getpid()}\n")
    assert querator(tmp_path, "daemon", "stop", "--data", str(tmp_path)).returncode == 6


def test_status_of_a_daemon_that_does_not_answer(start: Start, tmp_path: Path) -> None:
    daemon = start()
    daemon.process.send_signal(signal.SIGSTOP)
    told = querator(tmp_path, "daemon", "status", "--data", str(daemon.data), "--timeout", "200ms", "-o", "json")
    daemon.process.send_signal(signal.SIGCONT)
    assert told.returncode == 0 and json.loads(told.stdout)["pid"] == daemon.process.pid
    assert "does not answer" in told.stderr
    stuck = querator(tmp_path, "daemon", "stop", "--data", str(daemon.data))
    assert stuck.returncode == 0


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--http"], ["--http="]),
        (["--http", "--data", "d"], ["--http=", "--data", "d"]),
        (["--http", "h:1"], ["--http", "h:1"]),
        (["--http=h:1", "--data", "--http"], ["--http=h:1", "--data", "--http="]),
        ([], []),
    ],
)
def test_http_needs_no_address(words: list[str], meant: list[str]) -> None:
    assert with_http_value(words) == meant
