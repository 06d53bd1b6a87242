"""querator queues"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from querator import Client
from querator.client import catalogue
from querator.client.connection import ConnectionPool, parse_address
from querator.config import SYSTEM_TLS
from tests.cli.command_line import TERMINAL, CommandLine, fresh_name
from tests.daemons import Daemon

RATES = ("produced_last_minute", "completed_last_minute")


def test_create_makes_a_queue_with_the_usual_settings(cli: CommandLine, client: Client) -> None:
    name = fresh_name()
    result = cli("queues", "create", name)
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"created queue '{name}'" in result.stderr
    info = client.queue_info(name)
    assert (info.lease_timeout, info.expire_timeout, info.requested_partitions) == ("1m0s", "24h0m0s", 1)


def test_create_takes_every_setting(cli: CommandLine) -> None:
    name, dead = fresh_name(), fresh_name()
    cli.ok("queues", "create", dead)
    timeouts = ["--lease-timeout", "5m", "--expire-timeout", "2h"]
    others = ["--partitions", "3", "--max-attempts", "4", "--reference", "mine", "--dead-queue", dead]
    record = cli.json("queues", "create", name, *timeouts, *others)
    assert record["queue_name"] == name
    assert record["partitions"] == 3
    assert (record["lease_timeout"], record["expire_timeout"]) == ("5m0s", "2h0m0s")
    assert (record["max_attempts"], record["dead_queue"], record["reference"]) == (4, dead, "mine")


def test_retention_is_in_days_and_can_be_changed_and_switched_off(cli: CommandLine) -> None:
    name = fresh_name()
    assert cli.json("queues", "create", name)["retention"] == ""
    assert cli.json("queues", "update", name, "--retention", "30d")["retention"] == "30d"
    assert cli.json("queues", "update", name, "--lease-timeout", "2m")["retention"] == "30d"
    assert cli.json("queues", "show", name)["retention"] == "30d"
    assert cli.json("queues", "update", name, "--retention", "0")["retention"] == ""


def test_creating_what_exists_is_a_conflict_unless_that_is_fine(cli: CommandLine, queue: str) -> None:
    result = cli("queues", "create", queue)
    assert result.exit_code == 5
    assert f"error: queue '{queue}' already exists\n\nhint: " in result.stderr
    assert cli("queues", "create", queue, "--if-not-exists").exit_code == 0


def test_create_prints_the_name_when_asked(cli: CommandLine) -> None:
    name = fresh_name()
    assert cli.ok("queues", "create", name, "-o", "name") == f"{name}\n"


@pytest.mark.parametrize(
    "option",
    [["--lease-timeout", "7d"], ["--expire-timeout", "-1s"], ["--retention", "3 weeks"], ["--partitions", "0"]],
)
def test_create_refuses_nonsense(cli: CommandLine, option: list[str]) -> None:
    result = cli("queues", "create", fresh_name(), *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr


def test_list_is_a_plain_table_when_piped(cli: CommandLine, queue: str) -> None:
    lines = cli.ok("queues", "list").splitlines()
    assert lines[0].split()[:2] == ["QUEUE_NAME", "PARTITIONS"]
    (line,) = [line for line in lines if line.startswith(queue)]
    assert line.split()[1:] == ["1", "0", "0", "0", "0", "0", "-", "-"]


def test_list_is_boxed_on_a_terminal(cli: CommandLine, queue: str) -> None:
    shown = cli.ok("queues", "list", terminals=TERMINAL)
    assert "╭" in shown
    assert queue in shown


def test_list_in_json_ndjson_and_names(cli: CommandLine, queue: str) -> None:
    whole = cli.json("queues", "list")
    lines = cli.ok("queues", "list", "-o", "ndjson").splitlines()
    assert [json.loads(line) for line in lines] == whole
    names = [record["queue_name"] for record in whole]
    assert cli.ok("queues", "list", "-q").split() == names
    assert cli.ok("queues", "list", "-o", "name").split() == names
    assert names == sorted(names)
    assert queue in names


def test_list_is_filtered_by_name(cli: CommandLine, queue: str) -> None:
    assert cli.ok("queues", "list", "-q", "--contains", queue[1:].upper()).split() == [queue]


def test_list_shows_chosen_columns(cli: CommandLine, queue: str) -> None:
    assert cli.ok("queues", "list", "--columns", "partitions,queue_name").split("\n")[0] == "PARTITIONS  QUEUE_NAME"
    assert {"queue_name": queue} in cli.json("queues", "list", "--columns", "queue_name")
    result = cli("queues", "list", "--columns", "colour")
    assert result.exit_code == 2
    assert "there is no column 'colour'" in result.stderr


def test_list_shows_what_queues_hold_and_do(cli: CommandLine, client: Client, wide_queue: str) -> None:
    def listed() -> dict[str, Any]:
        (one,) = [one for one in cli.json("queues", "list") if one["queue_name"] == wide_queue]
        return {key: one[key] for key in ("ready", "leased", "scheduled", *RATES, "oldest_age")}

    assert listed() == dict.fromkeys(("ready", "leased", "scheduled", *RATES), 0) | {"oldest_age": ""}
    client.produce(wide_queue, ["a", "b", "c"])
    client.produce(wide_queue, [catalogue.produce_item("d", enqueue_at="2999-01-01T00:00:00Z")])
    held = client.lease(wide_queue, 2).items
    client.complete(wide_queue, [held[0].id])
    assert listed() == {
        "ready": 1,
        "leased": 1,
        "scheduled": 1,
        "produced_last_minute": 4,
        "completed_last_minute": 1,
        "oldest_age": "0s",
    }
    client.advance_clock("30s")
    assert listed()["oldest_age"] == "30s"
    assert listed()["produced_last_minute"] == 4
    header = cli.ok("queues", "list").splitlines()[0].split()
    assert header[1:8] == [
        "PARTITIONS",
        "READY",
        "LEASED",
        "SCHEDULED",
        "PRODUCED_LAST_MINUTE",
        "COMPLETED_LAST_MINUTE",
        "OLDEST_AGE",
    ]


def test_list_and_show_have_the_same_fields_of_the_same_types(cli: CommandLine, wide_queue: str) -> None:
    (listed,) = [one for one in cli.json("queues", "list") if one["queue_name"] == wide_queue]
    shown = cli.json("queues", "show", wide_queue)
    assert {key: shown[key] for key in listed} == listed
    assert shown["partitions"] == 2


def test_clients_of_the_original_get_no_field_that_they_do_not_know(daemon: Daemon, queue: str) -> None:
    pool = ConnectionPool(parse_address(f"unix:{daemon.socket}"), {}, SYSTEM_TLS)
    for path, body in (("queues.info", f'{{"queue_name": "{queue}"}}'), ("queues.list", "{}")):
        answer = pool.exchange("POST", f"/v1/{path}", body.encode(), {"Content-Type": "application/json"}, 30)
        assert answer.status == 200
        assert b"figures" not in answer.body
    pool.close()


@pytest.mark.parametrize(
    "words",
    [["queue", "list"], ["queue", "show", "QUEUE"], ["queues", "stats", "QUEUE"], ["queues", "produce", "QUEUE", "x"]],
)
def test_queue_and_queues_take_each_other_s_verbs(cli: CommandLine, queue: str, words: list[str]) -> None:
    typed = [queue if word == "QUEUE" else word for word in words]
    other = {"queue": "queues", "queues": "queue"}[words[0]]
    assert cli(*typed).exit_code == 0
    usage = cli(*typed, "--help").stdout.splitlines()
    assert usage[0].strip().startswith(f"Usage: querator {words[0]} {words[1]} ")
    assert usage[1:] == cli(other, *typed[1:], "--help").stdout.splitlines()[1:]


def test_a_verb_that_neither_has_is_reported(cli: CommandLine) -> None:
    for words in (["queue", "lst"], ["queues", "lst"]):
        result = cli(*words)
        assert result.exit_code == 2
        assert f"did you mean 'querator {words[0]} list'?" in result.stderr


def test_list_stops_at_its_limit(cli: CommandLine, queue: str, wide_queue: str) -> None:
    assert len(cli.json("queues", "list", "--limit", "1")) == 1


def test_show_has_settings_and_partitions(cli: CommandLine, wide_queue: str) -> None:
    record = cli.json("queues", "show", wide_queue)
    assert [one["partition"] for one in record["partition_details"]] == [0, 1]
    assert {one["state"] for one in record["partition_details"]} == {"available"}
    shown = cli.ok("queues", "show", wide_queue)
    assert re.search(r"^lease_timeout +1m0s$", shown, re.MULTILINE)
    assert "PARTITION" in shown


def test_show_of_an_unknown_queue_is_not_found(cli: CommandLine) -> None:
    result = cli("queues", "show", "nope")
    assert result.exit_code == 4
    assert result.stderr == ("error: queue does not exist; no such queue named 'nope'\n\nhint: querator queues list\n")


def test_update_changes_only_what_is_given(cli: CommandLine, client: Client) -> None:
    name, dead = fresh_name(), fresh_name()
    client.create_queue(dead)
    client.create_queue(name, dead_queue=dead, reference="keep")
    cli.ok("queues", "update", name, "--max-attempts", "7")
    info = client.queue_info(name)
    assert (info.max_attempts, info.dead_queue, info.reference) == (7, dead, "keep")
    cli.ok("queues", "update", name, "--dead-queue", "")
    assert client.queue_info(name).dead_queue == ""


def test_update_without_a_change_is_a_usage_error(cli: CommandLine, queue: str) -> None:
    assert cli("queues", "update", queue).exit_code == 2


def test_update_dry_run_changes_nothing(cli: CommandLine, client: Client, queue: str) -> None:
    result = cli("queues", "update", queue, "--max-attempts", "7", "--dry-run")
    assert "would change max_attempts" in result.stderr
    assert client.queue_info(queue).max_attempts == 0


def test_delete_needs_a_confirmation_where_nobody_can_be_asked(cli: CommandLine, queue: str) -> None:
    result = cli("queues", "delete", queue)
    assert result.exit_code == 2
    assert "hint: --yes confirms it" in result.stderr
    assert queue in cli.ok("queues", "list", "-q")


def test_delete_with_yes(cli: CommandLine, queue: str) -> None:
    cli.ok("queues", "delete", queue, "--yes")
    assert queue not in cli.ok("queues", "list", "-q")


def test_delete_on_a_terminal_asks_for_the_name(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, ["a", "b"])
    wrong = cli("queues", "delete", queue, input="something\n", terminals=TERMINAL)
    assert wrong.exit_code == 1
    assert "2 items (0 leased)" in wrong.stderr
    assert "nothing was done" in wrong.stderr
    assert cli("queues", "delete", queue, input="", terminals=TERMINAL).exit_code == 2
    assert cli("queues", "delete", queue, input=f"{queue}\n", terminals=TERMINAL).exit_code == 0
    assert queue not in cli.ok("queues", "list", "-q")


def test_delete_dry_run_deletes_nothing(cli: CommandLine, queue: str) -> None:
    assert f"would delete queue '{queue}'" in cli("queues", "delete", queue, "--dry-run").stderr
    assert queue in cli.ok("queues", "list", "-q")


def test_deleting_nothing_is_not_found_unless_that_is_fine(cli: CommandLine) -> None:
    assert cli("queues", "delete", "nope", "--yes").exit_code == 4
    assert cli("queues", "delete", "nope", "--yes", "--if-exists").exit_code == 0


def test_a_dead_queue_in_use_is_only_deleted_by_force(cli: CommandLine, client: Client) -> None:
    name, dead = fresh_name(), fresh_name()
    client.create_queue(dead)
    client.create_queue(name, dead_queue=dead)
    result = cli("queues", "delete", dead, "--yes")
    assert result.exit_code == 1
    assert f"'{dead}' is the dead_queue of '{name}'" in result.stderr
    cli.ok("queues", "delete", dead, "--yes", "--force")
    assert client.queue_info(name).dead_queue == ""


def test_show_has_only_the_columns_that_are_asked_for(cli: CommandLine, queue: str) -> None:
    assert cli.ok("queues", "show", queue, "--columns", "max_attempts") == "max_attempts  0\n"
