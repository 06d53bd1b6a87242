"""querator items"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from querator import Client
from querator.cli.terminal.payloads import pretty
from querator.client import catalogue
from querator.errors import InvalidRequest
from tests.cli.command_line import TERMINAL, CommandLine, fresh_name
from tests.cli.test_queue import leased_ids, totals
from tests.daemons import Daemon


def ids_of(client: Client, queue: str) -> list[str]:
    return [item.id for item in client.list_items(queue)]


def dead_pair(client: Client) -> tuple[str, str]:
    """A queue and its dead queue."""
    name, dead = fresh_name(), fresh_name()
    client.create_queue(dead)
    client.create_queue(name, dead_queue=dead)
    return name, dead


def kill(client: Client, queue: str, *payloads: str, kind: str = "") -> None:
    client.produce(queue, [catalogue.produce_item(payload, kind=kind) for payload in payloads])
    client.retry(queue, [item.id for item in client.lease(queue, len(payloads)).items], dead=True)


# List


def test_list_has_all_states(cli: CommandLine, client: Client, queue: str) -> None:
    leased_ids(client, queue, "leased")
    client.produce(queue, ["ready", catalogue.produce_item("later", enqueue_at="2099-01-01T00:00:00Z")])
    records = cli.json("items", "list", queue)
    assert [(one["state"], one["utf8"]) for one in records] == [
        ("leased", "leased"),
        ("ready", "ready"),
        ("scheduled", "later"),
    ]
    assert records[2]["enqueue_at"] == "2099-01-01T00:00:00Z"
    assert records[0]["lease_deadline"] is not None
    for state in ("ready", "leased", "scheduled"):
        assert [one["state"] for one in cli.json("items", "list", queue, "--state", state)] == [state]


def test_list_pages_through_partitions(cli: CommandLine, client: Client, wide_queue: str) -> None:
    client.produce(wide_queue, [str(n) for n in range(1_000)])
    client.produce(wide_queue, [str(n) for n in range(1_000, 2_000)])
    client.produce(wide_queue, ["more"])
    records = cli.json("items", "list", wide_queue, "--limit", "0")
    assert len({one["id"] for one in records}) == len(records) == 2_001
    for form in ("-q", "--output=table"):
        cut = cli("items", "list", wide_queue, form)
        assert len(cut.stdout.splitlines()) == (100 if form == "-q" else 101)
        assert cut.stderr == "only the first 100 items; --limit 0 lists all\n"
    for limit in ("0", "5", "5000"):
        assert cli("items", "list", wide_queue, "--limit", limit, "-q").stderr == ""
    assert {one["partition"] for one in cli.json("items", "list", wide_queue, "--partition", "1")} == {1}


def test_list_in_tables_and_names(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, ["two\nlines\x1b[2J"])
    lines = cli.ok("items", "list", queue).splitlines()
    assert len(lines) == 2
    assert "  two\\nlines\\x1b[2J  " in lines[1]
    assert cli.ok("items", "list", queue, "-q").split() == ids_of(client, queue)
    assert "no such items" in cli("items", "list", queue, "--state", "leased", terminals=TERMINAL).stderr


def test_list_of_an_unknown_partition(cli: CommandLine, queue: str) -> None:
    result = cli("items", "list", queue, "--partition", "7")
    assert result.exit_code == 4
    assert "'7' is not a valid partition" in result.stderr


# Inspect


def test_inspect_shows_everything(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, catalogue.produce_item('{"b":[1,2]}', kind="k", reference="r", encoding="application/json"))
    (item,) = ids_of(client, queue)
    shown = cli.ok("items", "inspect", queue, item)
    assert "state            ready" in shown
    assert '{\n  "b": [\n    1,\n    2\n  ]\n}\n' in shown
    assert cli.json("items", "inspect", queue, item)["utf8"] == '{"b":[1,2]}'
    on_terminal = cli.ok("items", "inspect", queue, item, terminals=TERMINAL)
    assert "Z  (" in on_terminal  # absolute and relative


def test_inspect_tells_how_an_item_died(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    kill(client, name, "x")
    (item,) = ids_of(client, dead)
    (death,) = cli.json("items", "inspect", dead, item)["history"]
    assert (death["queue_name"], death["reason"], death["attempts"]) == (name, "client", 1)
    shown = cli.ok("items", "inspect", dead, item)
    assert "\nhistory\n" in shown
    assert name in shown


def test_inspect_shows_why_attempts_failed(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    client.produce(name, "x")
    for client_id, reason in (("ann", "timeout"), ("bob", "exit status 2\nTraceback:\n  no such table")):
        (leased,) = client.lease(name, client_id=client_id).items
        client.advance_clock("1500ms")
        cli.ok("queue", "retry", name, leased.id, "--reason", reason)
    (item,) = ids_of(client, name)
    first, second = cli.json("items", "inspect", name, item)["failed_attempts"]
    assert (first["attempt"], first["client_id"], first["held"], first["reason"]) == (1, "ann", "1.5s", "timeout")
    assert (second["attempt"], second["client_id"]) == (2, "bob")
    assert second["reason"] == "exit status 2\nTraceback:\n  no such table"
    shown = cli.ok("items", "inspect", name, item)
    assert "\nfailed attempts\n" in shown
    assert "\nlast reason\nexit status 2\nTraceback:\n  no such table\n" in shown
    (leased,) = client.lease(name).items
    client.retry(name, [leased.id], dead=True, reason="poison")
    (item,) = ids_of(client, dead)
    told = cli.json("items", "inspect", dead, item)
    assert [one["reason"] for one in told["failed_attempts"]] == ["timeout", second["reason"], "poison"]
    assert [one["reason"] for one in told["history"]] == ["client"]
    count = "select last_reason, count(*) as n from items group by all"
    assert cli.json("sql", dead, count) == [{"last_reason": "poison", "n": 1}]
    assert cli.json("items", "list", dead, "--where", "last_reason like 'poi%'")[0]["id"] == item
    assert cli.json("items", "list", dead, "--where", "last_reason = 'other'") == []


def test_a_reason_that_is_too_long_is_refused(client: Client, queue: str) -> None:
    client.produce(queue, "x")
    (leased,) = client.lease(queue).items
    call = catalogue.retry(queue, [leased.id])
    call.request.items[0].reason = "é" * 1_001  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match="reason is invalid; cannot be greater than '2000' bytes"):
        client.send(call)
    client.retry(queue, [leased.id], reason="é" * 5_000)
    (item,) = ids_of(client, queue)
    assert client.inspect_item(queue, item).failed_attempts[0].reason == "é" * 1_000


def test_a_thousand_items_with_a_long_reason_fit_into_one_retry(client: Client, queue: str) -> None:
    client.produce(queue, ["x"] * 1_000)
    client.retry(queue, [item.id for item in client.lease(queue, 1_000).items], reason="é\n" * 2_000)
    assert client.stats(queue).logical_queues[0].partitions[0].total_leased == 0


def test_inspect_raw_is_the_payload_alone(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, b"\x00\xff\n")
    (item,) = ids_of(client, queue)
    assert cli("items", "inspect", queue, item, "--raw").stdout_bytes == b"\x00\xff\n"
    assert "00000000  00 ff 0a" in cli.ok("items", "inspect", queue, item)


def test_inspect_of_what_is_not_there(cli: CommandLine, client: Client, queue: str) -> None:
    client.produce(queue, "x")
    (item,) = ids_of(client, queue)
    client.delete_items(queue, [item])
    assert cli("items", "inspect", queue, item).exit_code == 4
    assert cli("items", "inspect", queue, "garbage").exit_code == 1


@pytest.mark.parametrize(
    ("payload", "encoding", "lines"),
    [
        (b"plain", "", ["plain"]),
        (b"two\nlines\n", "text/plain", ["two", "lines"]),
        (b'{"a":1}', "", ["{", '  "a": 1', "}"]),
        (b"{not json", "json", ["{not json"]),
        (b"\xff\xfe", "", ["00000000  ff fe" + " " * 42 + "  .."]),
        (b"", "", [""]),
    ],
)
def test_payloads_are_shown_as_what_they_are(payload: bytes, encoding: str, lines: list[str]) -> None:
    assert list(pretty(payload, encoding)) == lines


# Delete


def test_delete_asks_first(cli: CommandLine, client: Client, wide_queue: str) -> None:
    client.produce(wide_queue, ["a", "b"])
    client.produce(wide_queue, ["c"])
    chosen = [item.id for partition in (0, 1) for item in client.list_items(wide_queue, partition=partition)]
    assert cli("items", "delete", wide_queue, *chosen).exit_code == 2
    assert "would delete 3 items" in cli("items", "delete", wide_queue, *chosen, "--dry-run").stderr
    assert cli("items", "delete", wide_queue, "garbage", "--yes").exit_code == 2
    typed = cli("items", "delete", wide_queue, chosen[0], input=f"{wide_queue}\n", terminals=TERMINAL)
    assert typed.exit_code == 0
    cli.ok("items", "delete", wide_queue, "-", "--yes", input="\n".join(chosen[1:]))
    assert totals(client, wide_queue) == (0, 0, 0)


# Redrive


def test_redrive_sends_dead_items_home(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    other = fresh_name()
    client.create_queue(other, dead_queue=dead)
    kill(client, name, "a", "b", kind="k")
    kill(client, other, "c")
    record = cli.json("items", "redrive", dead)
    assert (record["redriven"], record["failed"]) == (3, 0)
    group = {"kind": "k", "reason": "client", "last_reason": "", "origin": name, "items": 2}
    assert group in record["groups"]
    assert totals(client, dead) == (0, 0, 0)
    assert sorted(item.payload for item in client.list_items(name)) == [b"a", b"b"]
    assert [item.kind for item in client.list_items(name)] == ["k", "k"]
    assert [item.payload for item in client.list_items(other)] == [b"c"]


def test_redrive_dry_run_counts_by_kind_and_reason(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    kill(client, name, "a", "b", kind="k")
    result = cli("items", "redrive", dead, "--dry-run")
    assert "would redrive 2 items" in result.stderr
    assert result.stdout.splitlines()[1].split() == ["k", "client", "-", name, "2"]
    assert totals(client, dead) == (2, 0, 0)


def test_redrive_groups_by_why_attempts_failed_and_keeps_what_happened(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    for payload, reason in (("a", "timed out\nafter 5s"), ("b", "timed out\nafter 7s"), ("c", "no such table")):
        client.produce(name, payload)
        (leased,) = client.lease(name, client_id="ann").items
        client.advance_clock("1500ms")
        client.retry(name, [leased.id], dead=True, reason=reason)
    groups = cli.json("items", "redrive", dead, "--dry-run")["groups"]
    assert [(group["last_reason"], group["items"]) for group in groups] == [("timed out", 2), ("no such table", 1)]
    assert cli.json("items", "redrive", dead, "--where", "last_reason like '%table'")["redriven"] == 1
    (back,) = client.list_items(name)
    told = cli.json("items", "inspect", name, back.id)
    (failed,), (death,) = told["failed_attempts"], told["history"]
    assert (failed["client_id"], failed["held"], failed["reason"]) == ("ann", "1.5s", "no such table")
    assert (death["queue_name"], death["reason"], back.payload, back.attempts) == (name, "client", b"c", 0)
    (leased,) = client.lease(name, client_id="bob").items
    client.retry(name, [leased.id], reason="again")
    (back,) = client.list_items(name)
    attempts = client.inspect_item(name, back.id).failed_attempts
    assert [(one.client_id, one.reason) for one in attempts] == [("ann", "no such table"), ("bob", "again")]


def test_redrive_elsewhere_and_only_so_many(cli: CommandLine, client: Client, queue: str) -> None:
    name, dead = dead_pair(client)
    kill(client, name, "a", "b", "c")
    cli.ok("items", "redrive", dead, "--to", queue, "--limit", "2", "--rate", "1000")
    assert totals(client, queue) == (2, 0, 0)
    assert totals(client, dead) == (1, 0, 0)
    assert cli("items", "redrive", dead, "--to", dead).exit_code == 2
    assert cli("items", "redrive", dead, "--to", "nope").exit_code == 4


def test_redrive_leaves_what_it_cannot_place(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    kill(client, name, "a")
    client.produce(dead, "never died")
    result = cli("items", "redrive", dead)
    assert result.exit_code == 3
    assert "its origin is not known" in result.stderr
    assert [item.payload for item in client.list_items(dead)] == [b"never died"]


def test_redrive_leaves_leased_items_to_their_holders(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    kill(client, name, "a")
    client.lease(dead)
    assert cli.json("items", "redrive", dead)["redriven"] == 0
    assert totals(client, dead) == (0, 1, 0)


def test_a_redrive_that_broke_off_before_deleting_adds_nothing_when_repeated(
    cli: CommandLine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, dead = dead_pair(client)
    kill(client, name, "a", "b")
    monkeypatch.setattr("querator.cli.items.redrive.RedriveRun._delete", lambda *_: None)
    cli.ok("items", "redrive", dead)
    assert totals(client, dead) == (2, 0, 0)
    monkeypatch.undo()
    cli.ok("items", "redrive", dead)
    assert (totals(client, dead), totals(client, name)) == ((0, 0, 0), (2, 0, 0))


def test_a_redrive_that_broke_off_adds_nothing_even_if_items_are_done_and_batches_differ(
    cli: CommandLine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, dead = dead_pair(client)
    kill(client, name, "a", "b", "c")
    monkeypatch.setattr("querator.cli.items.redrive.RedriveRun._delete", lambda *_: None)
    cli.ok("items", "redrive", dead, "--limit", "2")
    monkeypatch.undo()
    client.complete(name, [item.id for item in client.lease(name, 2).items])
    cli.ok("items", "redrive", dead)
    assert (totals(client, dead), totals(client, name)) == ((0, 0, 0), (1, 0, 0))


def test_redrive_asks_the_daemon_once_per_batch_and_not_once_per_item(
    cli: CommandLine, daemon: Daemon, client: Client
) -> None:
    name, dead = dead_pair(client)
    kill(client, name, *map(str, range(300)))
    before = requests_answered(daemon)
    assert cli.json("items", "redrive", dead)["redriven"] == 300
    assert requests_answered(daemon) - before < 20
    assert (totals(client, dead), totals(client, name)) == ((0, 0, 0), (300, 0, 0))


def requests_answered(daemon: Daemon) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(daemon.socket))) as plain:
        lines = plain.get("http://daemon/metrics").text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("http_handler_duration_count"))


def test_redrive_can_be_interrupted(cli: CommandLine, client: Client) -> None:
    name, dead = dead_pair(client)
    kill(client, name, *map(str, range(20)))
    process = cli.process("items", "redrive", dead, "--rate", "2", stderr=subprocess.PIPE)
    while totals(client, name)[0] == 0:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert "hint: the same command continues with the rest" in told
    left, done = totals(client, dead)[0], totals(client, name)[0]
    assert (left + done, f"redrove {done} item" in told) == (20, True)
    cli.ok("items", "redrive", dead)
    assert (totals(client, dead), totals(client, name)) == ((0, 0, 0), (20, 0, 0))


# Export and import


def test_an_export_can_be_imported_again(
    cli: CommandLine, client: Client, queue: str, wide_queue: str, tmp_path: Path
) -> None:
    items = [catalogue.produce_item(b"\xff", kind="k"), catalogue.produce_item("text", reference="r", encoding="e")]
    client.produce(queue, [*items, catalogue.produce_item("later", enqueue_at="2099-01-01T00:00:00Z")])
    target = tmp_path / "items.ndjson"
    cli.ok("items", "export", queue, "--to", str(target))
    exported = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(exported) == 3
    assert cli.ok("items", "export", queue).splitlines() == target.read_text().splitlines()
    words = ("items", "import", wide_queue, str(target))
    assert cli(*words).stderr == f"imported 3 items to '{wide_queue}'\n"
    assert cli(*words).stderr == f"imported 0 items to '{wide_queue}' (3 were there already)\n"
    record = cli.json(*words)
    assert (record["imported"], record["repeated"]) == (0, 3)
    found = [item for partition in (0, 1) for item in client.list_items(wide_queue, partition=partition)]
    assert sorted((i.payload, i.kind, i.reference, i.encoding) for i in found) == [
        (b"text", "", "r", "e"),
        (b"\xff", "k", "", ""),
    ]
    assert totals(client, wide_queue) == (2, 0, 1)
    (later,) = cli.json("items", "list", wide_queue, "--state", "scheduled")
    assert (later["utf8"], later["enqueue_at"]) == ("later", "2099-01-01T00:00:00Z")


def test_an_export_replaces_no_file_and_leaves_no_half_one(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path
) -> None:
    client.produce(queue, "x")
    target = tmp_path / "items.ndjson"
    target.write_text("mine")
    assert cli("items", "export", queue, "--to", str(target)).exit_code == 2
    assert target.read_text() == "mine"
    assert cli("items", "export", "nope", "--to", str(tmp_path / "other")).exit_code == 4
    assert not list(tmp_path.glob("other*"))


def test_bad_lines_of_an_import_are_reported(cli: CommandLine, client: Client, queue: str) -> None:
    result = cli("items", "import", queue, "-", input='{"utf8":"a"}\nnonsense\n{"colour":1}\n')
    assert result.exit_code == 3
    assert "line 2: " in result.stderr
    assert "line 3: " in result.stderr
    assert "imported 1 item" in result.stderr
    assert cli("items", "import", queue, terminals=TERMINAL).exit_code == 2


def test_import_dry_run_imports_nothing(cli: CommandLine, client: Client, queue: str) -> None:
    assert "would import 1 item" in cli("items", "import", queue, "--dry-run", input='{"utf8":"a"}\n').stderr
    assert totals(client, queue) == (0, 0, 0)
