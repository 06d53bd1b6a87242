"""querator queue: lease, complete, retry, extend, stats, clear, wait"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from querator import Client
from tests.cli.command_line import TERMINAL, CommandLine, fresh_name
from tests.daemons import Daemon
from tests.scripted import OK, ScriptedDaemon, refusal


def leased_ids(client: Client, queue: str, *payloads: str) -> list[str]:
    client.produce(queue, payloads)
    return [item.id for item in client.lease(queue, len(payloads)).items]


def totals(client: Client, queue: str) -> tuple[int, int, int]:
    """The numbers of ready, leased and scheduled items."""
    parts = client.stats(queue).logical_queues[0].partitions
    leased = sum(one.total_leased for one in parts)
    return sum(one.total for one in parts) - leased, leased, sum(one.scheduled for one in parts)


def test_lease_shows_items_in_every_form(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, ["one", "two", b"\xff\x00", "four"])
    (first,) = cli.json("queue", "lease", queue, "-n", "1")
    assert (first["utf8"], first["attempts"], first["partition"]) == ("one", 1, 0)
    table = cli.ok("queue", "lease", queue, "-n", "1").splitlines()
    assert table[0].split() == ["ID", "ATTEMPTS", "KIND", "REFERENCE", "LEASE_DEADLINE", "PAYLOAD"]
    assert table[1].endswith("two")
    (third,) = map(json.loads, cli.ok("queue", "lease", queue, "-n", "1", "-o", "ndjson").splitlines())
    assert third["bytes"] == "/wA="
    assert len(cli.ok("queue", "lease", queue, "-q").strip()) == 27


def test_lease_of_an_empty_queue_times_out(cli: CommandLine, queue: str) -> None:
    result = cli("queue", "lease", queue, "--timeout", "20ms")
    assert result.exit_code == 7
    assert "no items are in the queue" in result.stderr
    assert "hint: " in result.stderr


def test_lease_can_complete_what_came_before(cli: CommandLine, client: Client, queue: str) -> None:
    (done,) = leased_ids(client, queue, "a")
    client.produce(queue, "b")
    cli.ok("queue", "lease", queue, "--complete", done)
    assert totals(client, queue) == (0, 1, 0)


def test_complete_takes_ids_from_arguments_and_from_standard_input(
    cli: CommandLine, client: Client, queue: str
) -> None:
    first, *rest = leased_ids(client, queue, "a", "b", "c")
    assert "completed 1 item" in cli("queue", "complete", queue, first).stderr
    assert "completed 2 items" in cli("queue", "complete", queue, "-", input="\n".join(rest) + "\n\n").stderr
    assert totals(client, queue) == (0, 0, 0)


def test_complete_reports_each_id_that_failed(cli: CommandLine, client: Client, queue: str) -> None:
    good = leased_ids(client, queue, "a", "b")
    client.produce(queue, "c")
    (ready,) = [item.id for item in client.list_items(queue) if not item.is_leased]
    result = cli("queue", "complete", queue, good[0], ready, "garbage", good[1])
    assert result.exit_code == 3
    assert f"{ready}: item(s) cannot be completed" in result.stderr
    assert "garbage: invalid storage id" in result.stderr
    assert "completed 2 items, 2 failed" in result.stderr
    assert totals(client, queue) == (1, 0, 0)


def test_complete_of_nothing_good_is_an_error(cli: CommandLine, queue: str) -> None:
    result = cli("queue", "complete", queue, "garbage", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["ok"] is False


def test_dash_stands_alone(cli: CommandLine, queue: str) -> None:
    assert cli("queue", "complete", queue, "-", "x").exit_code == 2


def test_retry_now_later_and_dead(cli: CommandLine, client: Client) -> None:
    name, dead = fresh_name(), fresh_name()
    client.create_queue(dead)
    client.create_queue(name, dead_queue=dead)
    now, later, at, gone = leased_ids(client, name, "a", "b", "c", "d")
    cli.ok("queue", "retry", name, now)
    cli.ok("queue", "retry", name, later, "--delay", "1h")
    cli.ok("queue", "retry", name, at, "--at", "2099-01-01T00:00:00Z")
    cli.ok("queue", "retry", name, gone, "--dead")
    assert totals(client, name) == (1, 0, 2)
    assert totals(client, dead) == (1, 0, 0)


def test_an_unused_lease_does_not_count_as_an_attempt(cli: CommandLine, client: Client, queue: str) -> None:
    used, unused = leased_ids(client, queue, "used", "unused")
    cli.ok("queue", "retry", queue, used)
    cli.ok("queue", "retry", queue, unused, "--unused")
    attempts = {item.payload: item.attempts for item in client.list_items(queue)}
    assert attempts == {b"used": 1, b"unused": 0}


def test_retry_goes_on_after_a_bad_id(cli: CommandLine, client: Client, queue: str) -> None:
    first, second = leased_ids(client, queue, "a", "b")
    result = cli("queue", "retry", queue, first, "garbage", second)
    assert result.exit_code == 3
    assert "retried 2 items, 1 failed" in result.stderr
    assert totals(client, queue) == (2, 0, 0)


@pytest.mark.parametrize(
    "options",
    [
        ["--at", "tomorrow"],
        ["--delay", "soon"],
        ["--delay", "1s", "--dead"],
        ["--delay", "-1s"],
        ["--unused", "--dead"],
    ],
)
def test_retry_refuses_nonsense(cli: CommandLine, queue: str, options: list[str]) -> None:
    assert cli("queue", "retry", queue, "x" * 27, *options).exit_code == 2


def test_extend_keeps_an_item(cli: CommandLine, client: Client, daemon: Daemon, queue: str) -> None:
    kept, lost = leased_ids(client, queue, "a", "b")
    result = cli("queue", "extend", queue, kept, "--by", "10m")
    assert "leased until" in result.stderr
    client.advance_clock("2m")
    assert cli("queue", "complete", queue, kept).exit_code == 0
    assert "its lease was lost" in cli("queue", "complete", queue, lost).stderr


@pytest.mark.parametrize("verb", ["complete", "retry", "extend"])
def test_dry_run_tells_which_are_leased_and_does_nothing(
    cli: CommandLine, client: Client, queue: str, verb: str
) -> None:
    (leased,) = leased_ids(client, queue, "a")
    client.produce(queue, "b")
    (ready,) = [item.id for item in client.list_items(queue) if not item.is_leased]
    result = cli("queue", verb, queue, leased, ready, "garbage", "--dry-run")
    assert result.exit_code == 3
    assert f"{ready}: it is ready, not leased" in result.stderr
    assert "1 item, 2 failed" in result.stderr
    assert totals(client, queue) == (1, 1, 0)


def test_extend_leaves_out_a_bad_id(cli: CommandLine, client: Client, queue: str) -> None:
    (good,) = leased_ids(client, queue, "a")
    result = cli("queue", "extend", queue, "garbage", good)
    assert result.exit_code == 3
    assert "extended 1 item, 1 failed" in result.stderr


def test_stats_count_by_partition(cli: CommandLine, client: Client, wide_queue: str) -> None:
    client.produce(wide_queue, ["a", "b"])
    client.produce(wide_queue, ["c"])
    client.lease(wide_queue)
    record = cli.json("queue", "stats", wide_queue)
    assert (record["ready"], record["leased"], record["scheduled"]) == (2, 1, 0)
    (left,) = {one["average_lease_left"] for one in record["partitions"] if one["leased"]}
    assert left == "1m0s"
    assert len(record["partitions"]) == 2
    table = cli("queue", "stats", wide_queue)
    assert table.stdout.splitlines()[0].split()[:4] == ["PARTITION", "READY", "LEASED", "SCHEDULED"]
    assert "2 ready, 1 leased" in table.stderr


def test_clear_says_how_many_items_of_which_state(cli: CommandLine, client: Client, queue: str) -> None:
    leased_ids(client, queue, "leased")
    client.produce(queue, "ready")
    cli.ok("queue", "produce", queue, "later", "--delay", "1h")
    assert cli("queue", "clear", queue).exit_code == 2
    asked = cli("queue", "clear", queue, "--queue", "--dry-run")
    assert asked.stderr == f"would delete 1 ready item of queue '{queue}'\n"
    everything = cli("queue", "clear", queue, "--queue", "--destructive", "--dry-run")
    assert everything.stderr == f"would delete 1 ready, 1 leased and 1 scheduled items of queue '{queue}'\n"
    assert totals(client, queue) == (1, 1, 1)
    assert cli("queue", "clear", queue, "--queue", "--yes").stderr == f"deleted 1 ready item of '{queue}'\n"
    assert totals(client, queue) == (0, 1, 1)
    told = cli.json("queue", "clear", queue, "--scheduled", "--yes")
    assert told == {"queue_name": queue, "deleted": {"ready": 0, "leased": 0, "scheduled": 1}}
    assert totals(client, queue) == (0, 1, 0)


@pytest.mark.parametrize("what", [["--queue"], ["--scheduled"], ["--queue", "--destructive"]])
def test_every_clear_needs_a_confirmation(cli: CommandLine, client: Client, queue: str, what: list[str]) -> None:
    leased_ids(client, queue, "leased")
    client.produce(queue, "ready")
    cli.ok("queue", "produce", queue, "later", "--delay", "1h")
    refused = cli("queue", "clear", queue, *what)
    assert refused.exit_code == 2 and "--yes" in refused.stderr
    assert cli("queue", "clear", queue, *what, input="other\n", terminals=TERMINAL).exit_code == 1
    assert totals(client, queue) == (1, 1, 1)
    typed = cli("queue", "clear", queue, *what, input=f"{queue}\n", terminals=TERMINAL)
    assert typed.exit_code == 0
    assert totals(client, queue) != (1, 1, 1)


def test_a_destructive_clear_without_the_queue_is_refused(cli: CommandLine, client: Client, queue: str) -> None:
    leased_ids(client, queue, "leased")
    refused = cli("queue", "clear", queue, "--scheduled", "--destructive", "--yes")
    assert refused.exit_code == 2 and "--destructive goes with --queue" in refused.stderr
    assert totals(client, queue) == (0, 1, 0)


def test_wait_returns_when_the_queue_is_empty(cli: CommandLine, client: Client, queue: str) -> None:
    (item,) = leased_ids(client, queue, "a")
    assert cli("queue", "wait", queue, "--timeout", "10ms").exit_code == 7
    waiting = threading.Thread(target=lambda: client.complete(queue, [item]))
    waiting.start()
    assert cli("queue", "wait", queue, "--timeout", "20s").exit_code == 0
    waiting.join()


def test_an_idle_queue_may_have_scheduled_items(cli: CommandLine, queue: str) -> None:
    cli.ok("queue", "produce", queue, "later", "--delay", "1h")
    assert cli("queue", "wait", queue, "--for", "idle").exit_code == 0
    assert cli("queue", "wait", queue, "--for", "empty", "--timeout", "10ms").exit_code == 7


def test_what_was_done_before_the_daemon_failed_is_reported(tmp_path: Path) -> None:
    ids = "".join(f"id-{number}\n" for number in range(1_500))
    with ScriptedDaemon(tmp_path, OK, refusal(453, "the disk is full")) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("queue", "complete", "q", "-", input=ids)
    assert result.exit_code == 3
    assert result.stderr.startswith("error: completed 1,000 items, then: the disk is full\n\nhint: repeat the command")


ACTING = [
    ["queues", "create", "NEW"],
    ["queues", "update", "QUEUE", "--reference", "x"],
    ["queues", "delete", "QUEUE", "--yes"],
    ["queue", "produce", "QUEUE", "x"],
    ["queue", "complete", "QUEUE", "LEASED"],
    ["queue", "retry", "QUEUE", "LEASED"],
    ["queue", "extend", "QUEUE", "LEASED"],
    ["queue", "clear", "QUEUE", "--queue", "--yes"],
    ["queue", "wait", "QUEUE", "--for", "empty"],
    ["items", "delete", "QUEUE", "LEASED", "--yes"],
    ["items", "redrive", "QUEUE"],
    ["partitions", "pause", "QUEUE", "0"],
    ["partitions", "reload", "QUEUE", "0"],
    ["partitions", "verify", "QUEUE"],
    ["partitions", "verify", "QUEUE", "--wait"],
]


@pytest.mark.parametrize("words", ACTING, ids=" ".join)
def test_quiet_commands_that_act_print_nothing(cli: CommandLine, client: Client, queue: str, words: list[str]) -> None:
    item = leased_ids(client, queue, "a")[0] if "LEASED" in words else ""
    typed = [{"NEW": fresh_name(), "QUEUE": queue, "LEASED": item}.get(word, word) for word in words]
    result = cli(*typed, "-q")
    assert (result.exit_code, result.output) == (0, "")


def test_quiet_commands_that_list_print_ids(cli: CommandLine, client: Client, queue: str) -> None:
    item = leased_ids(client, queue, "a")[0]
    assert queue in cli.ok("queues", "list", "-q").splitlines()
    assert cli.ok("queues", "show", queue, "-q") == f"{queue}\n"
    assert cli.ok("items", "list", queue, "-q") == f"{item}\n"
    assert cli.ok("partitions", "list", queue, "-q") == "0\n"
    job = cli.json("partitions", "verify", queue)["job_id"]
    assert cli.ok("jobs", "show", job, "--wait", "-q") == ""
    assert job in cli.ok("jobs", "list", "-q").splitlines()


def test_history_says_its_step_and_refuses_what_is_no_duration(cli: CommandLine, queue: str) -> None:
    found = cli.json("queue", "history", queue, "--last", "24h")
    assert found == {"queue_name": queue, "step": "5m0s", "samples": []}
    assert cli("queue", "history", queue, "--last", "soon").exit_code == 2
    assert "no history" in cli("queue", "history", queue, terminals=TERMINAL).output
