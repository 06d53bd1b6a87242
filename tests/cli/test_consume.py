"""querator queue consume: a worker for the shell"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from querator import Client
from querator.cli.queue.worker import Backoff, Plan, Worker
from querator.client import catalogue
from querator.wire.messages import QueueLeaseItem
from tests.cli.command_line import CommandLine, fresh_name
from tests.cli.test_queue import totals
from tests.daemons import Daemon
from tests.waiting import until

GO_ON = 'while [ ! -e "$GO" ]; do sleep 0.02; done'
"""A command that runs until the test lets it end."""


def test_exit_0_completes(cli: CommandLine, client: Client, queue: str, tmp_path: Path) -> None:
    client.produce(queue, [f"payload {number}" for number in range(25)])
    command = f"cat > {tmp_path}/$QUERATOR_ITEM_ID.got"
    assert cli.json("queue", "consume", queue, "--exec", command, "--until-empty")["completed"] == 25
    assert totals(client, queue) == (0, 0, 0)
    got = {path.read_text() for path in tmp_path.glob("*.got")}
    assert got == {f"payload {number}" for number in range(25)}


def test_the_command_finds_its_item_in_the_environment(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path
) -> None:
    client.produce(queue, catalogue.produce_item(b"\xff\x00", kind="a kind", reference="r'\"", encoding="bin"))
    keys = ("ID", "KIND", "REFERENCE", "ENCODING", "ATTEMPTS")
    variables = " ".join(f'"$QUERATOR_ITEM_{key}"' for key in keys) + ' "$QUERATOR_QUEUE"'
    command = f"cat > {tmp_path}/payload; printf '%s\\n' {variables} > {tmp_path}/env"
    cli.ok("queue", "consume", queue, "--exec", command, "--until-empty")
    id, *rest = (tmp_path / "env").read_text().splitlines()
    assert len(id) == 27
    assert rest == ["a kind", "r'\"", "bin", "1", queue]
    assert (tmp_path / "payload").read_bytes() == b"\xff\x00"


def test_anything_else_retries_with_backoff(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, "x")
    result = cli("queue", "consume", queue, "--exec", "exit 9", "--until-empty", "--backoff", "1h..2h")
    assert result.exit_code == 3
    assert "exit status 9; again in" in result.stderr
    assert "completed 0 items, 1 retried" in result.stderr
    assert totals(client, queue) == (0, 0, 1)


def test_for_a_script_what_commands_print_goes_to_standard_error(cli: CommandLine, client: Client, queue: str) -> None:
    words = ("queue", "consume", queue, "--exec", "echo printed", "--until-empty", "-o")
    for form in ("table", "json", "ndjson"):
        client.produce(queue, "x")
        process = cli.process(*words, form, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, told = process.communicate(timeout=60)
        if form == "table":
            assert out == b"printed\n"
        else:
            assert (json.loads(out)["completed"], told) == (1, b"printed\n")


def test_an_item_keeps_the_exit_status_and_the_last_lines_of_stderr(
    cli: CommandLine, client: Client, queue: str
) -> None:
    client.produce(queue, "x")
    command = "seq 1 2000 >&2; echo the disk is full >&2; exit 9"
    words = ("queue", "consume", queue, "--exec", command, "--until-empty", "--backoff", "1h", "--client-id", "ann")
    worker = cli.process(*words, stderr=subprocess.PIPE)
    _, told = worker.communicate(timeout=60)
    assert b"\n1\n2\n" in b"\n" + told and b"the disk is full\n" in told  # the lease is shown as before
    (item,) = client.list_scheduled(queue)
    (failed,) = client.inspect_item(queue, item.id).failed_attempts
    assert (failed.client_id, failed.attempt) == ("ann", 1)
    lines = failed.reason.splitlines()
    assert (lines[0], lines[-1]) == ("exit status 9", "the disk is full")
    numbers = list(map(int, lines[1:-1]))
    assert numbers == list(range(numbers[0], 2_001)) and len(numbers) > 100
    assert len(failed.reason.encode()) <= 2_000


def test_what_a_command_left_in_the_background_is_not_waited_for(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, "x")
    assert cli.json("queue", "consume", queue, "--exec", "sleep 600 & true", "--until-empty")["completed"] == 1


def test_a_command_killed_by_a_signal_retries(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, "x")
    # Longer than any test moves the daemon's clock ahead. Otherwise the item is due again at once.
    result = cli("queue", "consume", queue, "--exec", "kill -9 $$", "--until-empty", "--backoff", "10h..10h")
    assert "killed by SIGKILL" in result.stderr


def test_the_last_attempt_goes_to_the_dead_queue(cli: CommandLine, client: Client) -> None:
    name, dead = fresh_name(), fresh_name()
    client.create_queue(dead)
    client.create_queue(name, dead_queue=dead, max_attempts=1)
    client.produce(name, "x")
    result = cli("queue", "consume", name, "--exec", "false", "--until-empty", "-o", "json")
    assert json.loads(result.stdout)["dead"] == 1
    assert "exit status 1; dead after 1 attempt\n" in result.stderr
    assert totals(client, dead) == (1, 0, 0)


def test_a_command_that_reads_no_input_is_fine(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, "x" * 500_000)
    assert cli.json("queue", "consume", queue, "--exec", "exec <&-; true", "--until-empty")["completed"] == 1


def test_it_ends_after_its_limit(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, [str(number) for number in range(10)])
    assert cli.json("queue", "consume", queue, "--exec", "true", "--limit", "3", "-n", "2")["completed"] == 3
    assert totals(client, queue) == (7, 0, 0)


def test_commands_run_side_by_side(cli: CommandLine, client: Client, queue: str, tmp_path: Path) -> None:
    client.produce(queue, ["a", "b", "c"])
    # Each command waits for the other two, so this would never end with fewer than three at once.
    command = f"touch {tmp_path}/$$.run; while [ $(ls {tmp_path}/*.run | wc -l) -lt 3 ]; do sleep 0.01; done"
    assert (
        cli.json("queue", "consume", queue, "--exec", command, "--concurrency", "3", "--until-empty")["completed"] == 3
    )


@pytest.mark.parametrize("words", [[], ["--exec", "true", "--backoff", "x"], ["--exec", "true", "--backoff", "5m..1s"]])
def test_nonsense_is_refused(cli: CommandLine, queue: str, words: list[str]) -> None:
    assert cli("queue", "consume", queue, *words).exit_code == 2


def test_an_unknown_queue(cli: CommandLine) -> None:
    assert cli("queue", "consume", "nope", "--exec", "true").exit_code == 4


def started(
    cli: CommandLine, client: Client, queue: str, items: int, go: Path, *options: str
) -> tuple[subprocess.Popen[Any], int]:
    """A worker that runs two commands, and the number of items that it has leased."""
    client.produce(queue, [str(number) for number in range(items)])
    cli.environment["GO"] = str(go)
    words = ["queue", "consume", queue, "--exec", f"touch {go}.$QUERATOR_ITEM_ID; {GO_ON}", "--concurrency", "2"]
    worker = cli.process(*words, "-n", "5", "-o", "json", *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while len(list(go.parent.glob(f"{go.name}.*"))) < 2:
        assert worker.poll() is None
    return worker, totals(client, queue)[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_lets_commands_finish_and_hands_back_the_rest(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path, number: int, code: int
) -> None:
    go = tmp_path / "go"
    worker, leased = started(cli, client, queue, 10, go)
    assert leased == 5
    worker.send_signal(number)
    while totals(client, queue) != (8, 2, 0):  # three of the five items were not started, and are ready again
        assert worker.poll() is None
    go.touch()
    out, _ = worker.communicate(timeout=60)
    assert worker.returncode == code
    record = json.loads(out)
    assert (record["completed"], record["handed_back"]) == (2, 3)
    assert totals(client, queue) == (8, 0, 0)


def test_ctrl_c_reports_once_what_was_done(cli: CommandLine, client: Client, queue: str, tmp_path: Path) -> None:
    worker, _ = started(cli, client, queue, 2, tmp_path / "go", "-o", "table")
    worker.send_signal(signal.SIGINT)
    (tmp_path / "go").touch()
    out, told = worker.communicate(timeout=60)
    assert (worker.returncode, out) == (130, b"")
    assert told.decode().splitlines()[-1] == "error: interrupted: completed 2 items, 0 retried"


def test_a_second_signal_ends_the_commands_too(cli: CommandLine, client: Client, queue: str, tmp_path: Path) -> None:
    worker, _ = started(cli, client, queue, 5, tmp_path / "go")
    worker.send_signal(signal.SIGTERM)
    while totals(client, queue) != (3, 2, 0):
        assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    out, told = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert json.loads(out)["retried"] == 2
    assert b"killed by SIGTERM" in told
    assert totals(client, queue) == (5, 0, 0)


def test_a_signal_ends_a_worker_that_waits_for_items(cli: CommandLine, client: Client, queue: str) -> None:
    worker = cli.process("queue", "consume", queue, "--exec", "true", stderr=subprocess.PIPE)
    while client.stats(queue).logical_queues[0].lease_waiting == 0:
        assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    assert worker.returncode == 0
    until(lambda: not client.stats(queue).logical_queues[0].lease_waiting)


def test_leases_are_extended_while_a_command_runs(
    cli: CommandLine, client: Client, daemon: Daemon, tmp_path: Path
) -> None:
    queue, go = fresh_name(), tmp_path / "go"
    client.create_queue(queue, lease_timeout="600ms")
    worker, _ = started(cli, client, queue, 2, go)
    for _ in range(3):
        # The worker extends leases by real time, but the queue's clock stands still. Advance it after each extension.
        before = min(item.lease_deadline or 0 for item in client.list_items(queue))
        now = client.advance_clock("500ms")
        while min(item.lease_deadline or 0 for item in client.list_items(queue)) <= max(before, now):
            assert worker.poll() is None
    go.touch()
    out, _ = worker.communicate(input=None, timeout=60) if worker.poll() is not None else _end(worker, client, queue)
    assert json.loads(out)["completed"] == 2
    assert json.loads(out)["lost"] == 0


def _end(worker: subprocess.Popen[Any], client: Client, queue: str) -> tuple[bytes, bytes]:
    while totals(client, queue) != (0, 0, 0):
        assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    out, told = worker.communicate(timeout=60)
    return out, told


def test_a_lost_lease_is_told_and_the_worker_goes_on(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker, _ = started(cli, client, queue, 2, go, "--limit", "2")
    client.advance_clock("2m")  # both leases end
    go.touch()
    out, told = worker.communicate(timeout=60)
    assert worker.returncode == 3
    assert json.loads(out)["lost"] == 2
    assert b"its lease was lost" in told


def test_what_a_closed_partition_cannot_complete_is_completed_when_it_is_back(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker, _ = started(cli, client, queue, 2, go)
    client.offline_partitions(queue)
    go.touch()
    assert worker.stderr is not None
    while b"could not complete" not in (line := worker.stderr.readline()):
        assert line, "the worker has ended"
    client.reload_partitions(queue)
    out, _ = _end(worker, client, queue)
    record = json.loads(out)
    assert (record["completed"], record["lost"]) == (2, 0)


def test_until_empty_the_last_completes_wait_for_a_closed_partition(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker, _ = started(cli, client, queue, 2, go, "--until-empty", "--timeout", "5m")
    client.offline_partitions(queue)
    go.touch()
    assert worker.stderr is not None
    while b"could not complete" not in (line := worker.stderr.readline()):
        assert line, "the worker has ended"
    client.reload_partitions(queue)
    out, _ = worker.communicate(timeout=60)
    assert (worker.returncode, json.loads(out)["completed"], totals(client, queue)) == (0, 2, (0, 0, 0))


def test_what_cannot_be_completed_in_time_is_told_and_not_counted_as_completed(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker, _ = started(cli, client, queue, 2, go, "--until-empty", "--timeout", "1s")
    client.offline_partitions(queue)
    go.touch()
    out, told = worker.communicate(timeout=60)
    record = json.loads(out)
    assert (worker.returncode, record["completed"], record["lost"], record["not_completed"]) == (3, 0, 0, 2)
    assert b"partition not available" in told
    assert b"could not complete 2 items; they will be leased again when their leases expire" in told
    client.reload_partitions(queue)
    assert totals(client, queue) == (0, 2, 0)


def test_a_closed_partition_keeps_no_other_lease_from_being_extended(
    cli: CommandLine, client: Client, tmp_path: Path
) -> None:
    queue, go = fresh_name(), tmp_path / "go"
    client.create_queue(queue, partitions=2, lease_timeout="600ms")
    client.produce(queue, "a")
    worker, _ = started(cli, client, queue, 1, go, "-n", "1")
    client.offline_partitions(queue, [0])
    before = client.list_items(queue, partition=1)[0].lease_deadline or 0
    client.advance_clock("500ms")
    while (client.list_items(queue, partition=1)[0].lease_deadline or 0) <= before:
        assert worker.poll() is None
    go.touch()
    client.reload_partitions(queue, [0])
    out, _ = _end(worker, client, queue)
    assert json.loads(out)["completed"] == 2


HANGS = 'echo $$ > "$GO.$QUERATOR_ITEM_ID"; echo it hangs >&2; sleep 600'


def test_a_command_that_hangs_is_ended_and_its_item_retried(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path
) -> None:
    client.produce(queue, "x")
    words = ("queue", "consume", queue, "--exec", HANGS, "--until-empty", "--exec-timeout", "200ms")
    result = cli(*words, "--backoff", "1h", env={"GO": str(tmp_path / "pid")})
    assert result.exit_code == 3
    assert "timed out after 0.2s, killed by SIGTERM; again in" in result.stderr
    assert totals(client, queue) == (0, 0, 1)


def test_a_command_that_ignores_sigterm_is_killed(
    cli: CommandLine, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("querator.cli.queue.shell_command.GRACE_SECONDS", 0.2)
    client.produce(queue, "x")
    command = "trap '' TERM; while :; do sleep 0.05; done"
    result = cli(
        "queue", "consume", queue, "--exec", command, "--until-empty", "--exec-timeout", "2s", "--backoff", "1h"
    )
    assert "timed out after 2s, killed by SIGKILL; again in" in result.stderr


def test_an_item_is_handed_back_only_when_nothing_of_its_command_is_left(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM ends the shell at once, but its child process ignores the signal and would work on the item for ever."""
    monkeypatch.setattr("querator.cli.queue.shell_command.GRACE_SECONDS", 0.2)
    client.produce(queue, "x")
    inner = "trap '' TERM; echo $$ > \"$GO\"; while :; do sleep 0.05; done"
    words = ("queue", "consume", queue, "--exec", f"/bin/sh -c {shlex.quote(inner)}; exit $?")
    result = cli(*words, "--until-empty", "--exec-timeout", "1s", "--backoff", "1h", env={"GO": str(tmp_path / "pid")})
    assert "timed out after 1s, killed by SIGTERM; again in" in result.stderr
    assert not runs(int((tmp_path / "pid").read_text()))


def runs(pid: int) -> bool:
    """Whether a process runs. A zombie does not count."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("text", ["x", "0s", "-1s"])
def test_a_timeout_that_is_none_is_refused(cli: CommandLine, queue: str, text: str) -> None:
    assert cli("queue", "consume", queue, "--exec", "true", "--exec-timeout", text).exit_code == 2


def test_a_lost_lease_ends_its_command_and_is_told_once(cli: CommandLine, client: Client, tmp_path: Path) -> None:
    queue, go = fresh_name(), tmp_path / "go"
    client.create_queue(queue, lease_timeout="600ms")
    client.produce(queue, "x")
    cli.environment["GO"] = str(go)
    words = ("queue", "consume", queue, "--exec", HANGS, "--limit", "1", "-o", "json")
    worker = cli.process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list(tmp_path.glob("go.*")):
        assert worker.poll() is None
    # Far beyond every extension that may be under way, so that the worker has lost the lease.
    client.pause_partitions(queue)
    client.advance_clock("1m")
    out, told = worker.communicate(timeout=60)
    assert (worker.returncode, json.loads(out)["lost"], told.count(b"its lease was lost")) == (3, 1, 1)
    assert b"its command is stopped" in told


def test_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(1, 300)
    assert [backoff.delay(attempt, lambda: 1.0) for attempt in (1, 2, 3, 9, 10, 100)] == [1, 2, 4, 256, 300, 300]
    assert backoff.delay(3, lambda: 0.0) == 3
    assert backoff.delay(1, lambda: 0.0) == 1


def test_what_was_begun_is_never_handed_back_as_unbegun() -> None:
    """A thread that claims an item while the worker stops must not start it if the item was handed back first."""

    class Silent:
        def retry(self, *_: object, **__: object) -> None: ...

    plan = Plan("q", "true", 1, 1, Backoff(0, 0), None, None, True, 60, 0, 30)
    worker = Worker(Silent(), Silent(), plan, lambda _: None)  # type: ignore[arg-type]
    from querator.cli.queue.worker import Held

    held = Held(QueueLeaseItem(id="a"))
    worker._held["a"] = held
    worker._todo.put(held)
    worker._hand_back_waiting()
    assert worker.tally.handed_back == 1
    assert not worker._claim(held)


def test_a_worker_outlives_a_restart_also_until_the_queue_is_empty(tmp_path: Path) -> None:
    daemon, go = Daemon(tmp_path), tmp_path / "go"
    daemon.client.create_queue("q")
    cli = CommandLine(tmp_path, daemon.socket)
    cli.environment["GO"] = str(go)
    daemon.client.produce("q", ["a", "b"])
    words = ("queue", "consume", "q", "--exec", GO_ON, "--until-empty", "--concurrency", "1", "-n", "1", "-o", "json")
    worker = cli.process(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while totals(daemon.client, "q")[1] == 0:
            assert worker.poll() is None
        daemon.stop()
        go.touch()
        daemon.start()
        out, told = worker.communicate(timeout=120)
        assert worker.returncode == 0, told
        assert json.loads(out)["completed"] == 2
    finally:
        worker.kill()
        worker.wait()
        daemon.stop()


def test_a_worker_outlives_a_restart_of_the_daemon(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.client.create_queue("q")
    cli = CommandLine(tmp_path, daemon.socket)
    worker = cli.process("queue", "consume", "q", "--exec", "cat", "--limit", "1", stdout=subprocess.PIPE)
    try:
        while daemon.client.stats("q").logical_queues[0].lease_waiting == 0:
            assert worker.poll() is None
        daemon.stop()
        daemon.start()
        daemon.client.produce("q", "after the restart")
        out, _ = worker.communicate(timeout=120)
        assert (worker.returncode, out) == (0, b"after the restart")
    finally:
        worker.kill()
        worker.wait()
        daemon.stop()
