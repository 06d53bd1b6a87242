"""querator partitions and jobs"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from querator import Client
from querator.cli.shell import candidates
from tests.cli.command_line import CommandLine
from tests.daemons import Daemon, two_storages
from tests.scripted import Answer, Asked, ScriptedDaemon, refusal
from tests.waiting import until

RUNNING = {"job_id": "j1", "kind": "migrate", "queue_name": "q", "state": "running", "done": 5, "total": 10}
DONE = RUNNING | {"state": "done", "done": 10}
PARTITION = {"queue_name": "q", "storage": "default", "state": "available", "requested_state": "available"}


def states(client: Client, queue: str) -> list[str]:
    return [one.state for one in client.list_partitions(queue)]


def test_list_and_show(cli: CommandLine, wide_queue: str) -> None:
    records = cli.json("partitions", "list", wide_queue)
    assert [(one["partition"], one["state"]) for one in records] == [(0, "available"), (1, "available")]
    assert cli.ok("partitions", "list", wide_queue).splitlines()[0].split()[:3] == [
        "QUEUE_NAME",
        "PARTITION",
        "STATE",
    ]
    assert wide_queue in {one["queue_name"] for one in cli.json("partitions", "list")}
    shown = cli.json("partitions", "show", wide_queue, "1")
    assert (shown["partition"], shown["requested_state"]) == (1, "available")
    assert cli("partitions", "show", wide_queue, "9").exit_code == 4
    assert cli("partitions", "list", "nope").exit_code == 4


def test_pause_and_resume(cli: CommandLine, client: Client, wide_queue: str) -> None:
    assert "partition 0 of" in cli("partitions", "pause", wide_queue, "0", "--wait").stderr
    assert states(client, wide_queue) == ["paused", "available"]
    cli.ok("partitions", "pause", wide_queue, "0", "--for", "15m")
    assert cli.json("partitions", "show", wide_queue, "0")["resume_at"] is not None
    cli.ok("partitions", "resume", wide_queue, "--all", "--wait")
    assert states(client, wide_queue) == ["available", "available"]


def test_which_partitions_must_be_said(cli: CommandLine, wide_queue: str) -> None:
    assert cli("partitions", "pause", wide_queue).exit_code == 2
    assert cli("partitions", "pause", wide_queue, "0", "--all").exit_code == 2
    assert cli("partitions", "pause", wide_queue, "7").exit_code == 4
    assert cli("partitions", "pause", wide_queue, "x").exit_code == 2


def test_taking_the_last_one_away_is_warned_of(cli: CommandLine, wide_queue: str) -> None:
    assert "warning" not in cli("partitions", "pause", wide_queue, "0").stderr
    assert "warning: no partition of" in cli("partitions", "pause", wide_queue, "1").stderr


def test_dry_run_changes_nothing(cli: CommandLine, client: Client, wide_queue: str) -> None:
    for verb in ("pause", "drain", "offline", "reload"):
        assert ", now available" in cli("partitions", verb, wide_queue, "--all", "--dry-run").stderr
    assert states(client, wide_queue) == ["available", "available"]


def test_drain_waits_until_nothing_is_left(cli: CommandLine, client: Client, wide_queue: str) -> None:
    client.produce(wide_queue, "x")
    result = cli("partitions", "drain", wide_queue, "0", "--wait", "--timeout", "20ms")
    assert result.exit_code == 7
    assert "are still draining" in result.stderr
    client.complete(wide_queue, [item.id for item in client.lease(wide_queue).items])
    assert "drained" in cli("partitions", "drain", wide_queue, "0", "--wait").stderr


def test_offline_and_reload(cli: CommandLine, client: Client, wide_queue: str) -> None:
    cli.ok("partitions", "offline", wide_queue, "1", "--wait")
    assert states(client, wide_queue) == ["available", "unavailable"]
    refused = cli("partitions", "resume", wide_queue, "1")
    assert refused.exit_code == 1
    assert "reload" in refused.stderr  # the command that helps
    cli.ok("partitions", "reload", wide_queue, "1")
    assert states(client, wide_queue) == ["available", "available"]


def test_cron_reloads_in_silence(cli: CommandLine, wide_queue: str) -> None:
    result = cli("partitions", "reload", "--all-queues", "-q")
    assert (result.exit_code, result.output) == (0, "")
    assert cli("partitions", "reload").exit_code == 2
    assert cli("partitions", "reload", wide_queue, "--all-queues").exit_code == 2


def test_a_reload_that_already_runs_is_a_conflict_on_one_line(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.path == "/v1/queues.list":
            return (200, {"items": [{"queue_name": "q"}]})
        return refusal(400, "reload is already running; wait for it")

    with ScriptedDaemon(tmp_path, answer) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("partitions", "reload", "--all-queues", "-q")
    assert result.exit_code == 5
    assert result.stderr == "error: 'q': reload is already running; wait for it\n"


def test_a_reload_of_which_some_failed_is_partly_done(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.path == "/v1/queues.list":
            return (200, {"items": [{"queue_name": "a"}, {"queue_name": "b"}]})
        return (200, {"code": 200}) if asked.request["queue_name"] == "a" else refusal(453, "broken file")

    with ScriptedDaemon(tmp_path, answer) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("partitions", "reload", "--all-queues")
    assert result.exit_code == 3
    assert "reloaded 1 of 2 queues; 'b': broken file" in result.stderr


# Jobs


def test_jobs_on_the_daemon(cli: CommandLine, client: Client, wide_queue: str, tmp_path: Path) -> None:
    client.produce(wide_queue, ["a", "b", "c"])
    for words in (
        ["migrate", wide_queue, "0", "--to", "1"],
        ["verify", wide_queue],
        ["compact", wide_queue, "1"],
        ["backup", wide_queue, "--to", str(tmp_path / "backup")],
        ["restore", wide_queue, "--from", str(tmp_path / "backup"), "--yes"],
    ):
        job = cli.json("partitions", *words, "--wait")
        assert (job["state"], job["queue_name"]) == ("done", wide_queue)
        assert cli.json("jobs", "show", job["job_id"]) == job
        assert job["job_id"] in cli.ok("partitions", "jobs", "-q").split()
    assert [one["ready"] for one in cli.json("partitions", "list", wide_queue)] == [0, 3]


def test_resizing(cli: CommandLine, client: Client, wide_queue: str) -> None:
    cli.ok("queues", "update", wide_queue, "--partitions", "3")
    assert len(client.list_partitions(wide_queue)) == 3
    assert "a job empties" in cli("queues", "update", wide_queue, "--partitions", "1").stderr
    until(lambda: len(client.list_partitions(wide_queue)) == 1)


def test_what_jobs_cannot_do(cli: CommandLine, wide_queue: str) -> None:
    assert cli("jobs", "show", "nope").exit_code == 4
    assert cli("jobs", "cancel", "nope").exit_code == 4
    assert cli("partitions", "migrate", wide_queue, "0", "--to-storage", "nope").exit_code == 4
    assert cli("partitions", "migrate", wide_queue, "0", "--to", "0").exit_code == 1


class JobDaemon:
    """Answers every request with a job, and reports its end at the third question about it."""

    def __init__(self, end: dict[str, Any] = DONE) -> None:
        self.looks = 0
        self.end = end

    def __call__(self, asked: Asked) -> Answer:
        match asked.path:
            case "/v1/queues.info":
                return (200, {"queue_name": "q"})
            case "/v1/partitions.list":
                return (200, {"items": [PARTITION, PARTITION | {"partition": 1}]})
            case "/v1/jobs.show":
                self.looks += 1
                return (200, RUNNING if self.looks < 3 else self.end)
            case "/v1/jobs.list":
                return (200, {"items": [RUNNING]})
            case "/v1/jobs.cancel":
                return (200, {"code": 200})
        return (200, {"job_id": "j1"})


STARTERS = [
    (["migrate", "q", "0", "--to", "1"], {"queue_name": "q", "to_partition": 1}),
    (["migrate", "q", "1", "--to-storage", "fast"], {"queue_name": "q", "partition": 1, "to_storage": "fast"}),
    (["backup", "q", "--to", "/backups"], {"queue_name": "q", "to": "/backups"}),
    (["restore", "q", "0", "--from", "/backups", "--yes"], {"queue_name": "q", "partitions": [0], "from": "/backups"}),
    (["verify", "q"], {"queue_name": "q"}),
    (["compact", "q", "1"], {"queue_name": "q", "partitions": [1]}),
]


@pytest.mark.parametrize(("words", "request_"), STARTERS)
def test_long_work_is_a_job(tmp_path: Path, words: list[str], request_: dict[str, Any]) -> None:
    with ScriptedDaemon(tmp_path, JobDaemon()) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        result = cli("partitions", *words)
        waited = cli.json("partitions", *words, "--wait")
    assert (result.exit_code, result.stdout) == (0, "j1\n")
    assert "querator jobs show j1 --wait" in result.stderr
    assert waited["state"] == "done"
    (first, *_) = [asked for asked in daemon.asked if asked.path == f"/v1/partitions.{words[0]}"]
    assert first.request == request_


def test_a_job_that_fails_is_an_error_to_who_waits(tmp_path: Path) -> None:
    failed = RUNNING | {"state": "failed", "reason": "disk full"}
    with ScriptedDaemon(tmp_path, JobDaemon(failed)) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("partitions", "verify", "q", "--wait")
    assert result.exit_code == 1
    assert "error: job j1 failed: disk full" in result.stderr


def test_waiting_for_a_job_can_end_before_the_job(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, JobDaemon(RUNNING)) as daemon:
        result = CommandLine(tmp_path, daemon.socket)("jobs", "show", "j1", "--wait", "--timeout", "20ms")
    assert result.exit_code == 7
    assert "the job is still running" in result.stderr


def test_jobs_are_listed_and_cancelled(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, JobDaemon()) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        assert cli.json("jobs", "list") == cli.json("partitions", "jobs")
        assert cli.ok("jobs", "list", "-q") == "j1\n"
        assert json.loads(cli.ok("jobs", "list", "-o", "ndjson"))["total"] == 10
        for noun in ("jobs", "partitions"):
            assert "is being cancelled" in cli(noun, "cancel", "j1").stderr


def test_where_to_migrate_must_be_said(cli: CommandLine, wide_queue: str) -> None:
    assert cli("partitions", "migrate", wide_queue, "0").exit_code == 2
    assert cli("partitions", "migrate", wide_queue, "0", "--to", "1", "--to-storage", "x").exit_code == 2
    assert "would migrate" in cli("partitions", "migrate", wide_queue, "0", "--to", "1", "--dry-run").stderr


def test_a_dry_run_refuses_what_does_not_exist(cli: CommandLine, wide_queue: str) -> None:
    for words in (
        ["migrate", wide_queue, "0", "--to", "7"],
        ["compact", wide_queue, "7"],
    ):
        assert cli("partitions", *words, "--dry-run").exit_code == 4, words


def test_restore_asks_first(cli: CommandLine, wide_queue: str) -> None:
    assert cli("partitions", "restore", wide_queue, "--from", "/x").exit_code == 2


# Against a daemon of its own, with two storages


@pytest.fixture
def storages(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, *two_storages(tmp_path)) as running:
        yield running


def test_a_partition_moves_to_another_storage_and_back(storages: Daemon, tmp_path: Path) -> None:
    cli, client = CommandLine(tmp_path, storages.socket), storages.client
    client.create_queue("q", partitions=2)
    client.produce("q", ["a", "b", "c"])
    (held,) = client.lease("q", 1).items
    assert (
        "would migrate partition 0 of 'q' to other: 3 items"
        in cli("partitions", "migrate", "q", "0", "--to-storage", "other", "--dry-run").stderr
    )
    for storage in ("other", "default"):
        assert "done" in cli("partitions", "migrate", "q", "0", "--to-storage", storage, "--wait").stderr
        found = cli.json("partitions", "list", "q")
        assert [(one["storage"], one["state"]) for one in found] == [(storage, "available"), ("default", "available")]
        files = {one["file"] for one in found if one["storage"] == "default"}
        assert {path.name for path in (tmp_path / "default").glob("*.duckdb")} == files
        refused = cli("partitions", "migrate", "q", "0", "--to-storage", storage)
        assert refused.exit_code == 1 and f"is in storage '{storage}' already" in refused.stderr
    cli.ok("queue", "complete", "q", held.id)
    assert cli.json("partitions", "show", "q", "0")["ready"] == 2
    unknown = cli("partitions", "migrate", "q", "0", "--to-storage", "nope")
    assert unknown.exit_code == 4 and "there are 'default', 'other'" in unknown.stderr


def test_a_second_reload_is_refused_while_one_runs(storages: Daemon, tmp_path: Path) -> None:
    cli, client = CommandLine(tmp_path, storages.socket), storages.client
    client.create_queue("q", partitions=100)
    with cli.process("partitions", "reload", "q", "--all", "-q") as first:
        while not any(one.reason == "closed for a reload" for one in client.list_partitions("q")):
            assert first.poll() is None, "it was over before it was seen"
        second = cli("partitions", "reload", "q", "7")
        cron = cli("partitions", "reload", "--all-queues", "-q")
        assert first.wait(60) == 0
    assert second.exit_code == 5 and "error: reload is already running; wait until" in second.stderr
    assert cron.exit_code == 5 and cron.stderr.count("\n") == 1
    assert set(states(client, "q")) == {"available"}


def test_a_partition_with_a_job_is_busy(storages: Daemon, tmp_path: Path) -> None:
    cli, client = CommandLine(tmp_path, storages.socket), storages.client
    client.create_queue("q", partitions=2, lease_timeout="10m")
    client.produce("q", "a")
    (held,) = client.lease("q", 1).items
    job = cli.json("partitions", "migrate", "q", "0", "--to", "1")
    for words in (
        ["reload", "q", "0"],
        ["offline", "q", "1"],
        ["migrate", "q", "1", "--to-storage", "other"],
        ["verify", "q"],
    ):
        refused = cli("partitions", *words)
        assert refused.exit_code == 5 and f"job '{job['job_id']}' (migrate into partition)" in refused.stderr, words
        assert "hint: querator jobs list" in refused.stderr
    cli.ok("queue", "complete", "q", held.id)
    assert cli.json("jobs", "show", job["job_id"], "--wait")["state"] == "done"


def test_a_file_that_cannot_be_opened_comes_with_the_way_out(storages: Daemon, tmp_path: Path) -> None:
    cli = CommandLine(tmp_path, storages.socket)
    storages.client.create_queue("q", partitions=2)
    storages.client.produce("q", "a")
    cli.ok("partitions", "offline", "q", "--all")
    paths = [tmp_path / "default" / one["file"] for one in cli.json("partitions", "list", "q")]
    content = paths[0].read_bytes()
    paths[0].write_bytes(paths[1].read_bytes())
    result = cli("partitions", "reload", "q", "--all")
    assert result.exit_code == 1
    assert "partition '0': " in result.stderr and "is the file of another partition" in result.stderr
    assert "hint: querator partitions offline" in result.stderr
    shown = cli.json("partitions", "list", "q")
    assert [one["state"] for one in shown] == ["error", "available"]
    assert "is the file of another partition" in shown[0]["reason"] and shown[0]["since"] is not None
    cli.ok("partitions", "offline", "q", "0")
    paths[0].write_bytes(content)
    cli.ok("partitions", "reload", "q", "0")
    assert cli.json("partitions", "show", "q", "0")["ready"] == 1


def test_storages_show_where_they_are_and_what_they_hold(cli: CommandLine, daemon: Daemon, wide_queue: str) -> None:
    (storage,) = cli.json("storages", "list")
    assert storage["storage"] == "default"
    assert storage["directory"] == str(daemon.data / "partitions")
    assert storage["partitions"] == len(cli.json("partitions", "list"))
    assert storage["partition_bytes"] > 0
    assert storage["journal_bytes"] > 0
    assert 0 < storage["free_bytes"] <= storage["total_bytes"]
    assert storage["reason"] == ""
    header = cli.ok("storages", "list").splitlines()[0].split()
    assert header == [
        "STORAGE",
        "DIRECTORY",
        "PARTITIONS",
        "PARTITION_BYTES",
        "JOURNAL_BYTES",
        "FREE_BYTES",
        "REASON",
    ]


def test_storages_without_partitions_are_listed_and_completed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "querator.toml"
    config.write_text(
        '[[storages]]\nname = "fast"\ndirectory = "fast"\n\n[[storages]]\nname = "spare"\ndirectory = "spare"\n'
    )
    with Daemon(tmp_path, "--config", str(config)) as other:
        found = CommandLine(tmp_path, other.socket).json("storages", "list")
        assert [(one["storage"], one["partitions"]) for one in found] == [("fast", 0), ("spare", 0)]
        assert [one["directory"] for one in found] == [str(tmp_path / "fast"), str(tmp_path / "spare")]
        monkeypatch.setattr(candidates, "ANSWER_SECONDS_MAX", 30)
        assert candidates.answer(["storages", "s", "", "querator", "--socket", str(other.socket)]) == 0
        assert capsys.readouterr().out == "spare\n"


def test_a_storage_that_is_gone_says_so(tmp_path: Path) -> None:
    config = tmp_path / "querator.toml"
    config.write_text('[[storages]]\nname = "fast"\ndirectory = "fast"\n')
    with Daemon(tmp_path, "--config", str(config)) as other:
        (tmp_path / "fast").rename(tmp_path / "elsewhere")
        (found,) = CommandLine(tmp_path, other.socket).json("storages", "list")
        assert found["reason"] == "No such file or directory"


def test_show_gives_the_whole_path_of_the_file(cli: CommandLine, wide_queue: str) -> None:
    path = Path(cli.json("partitions", "show", wide_queue, "1")["file"])
    assert path.is_absolute()
    assert path.suffix == ".duckdb"
    assert path.is_file()


def test_all_queues_are_backed_up_and_one_is_made_again_under_another_name(storages: Daemon, tmp_path: Path) -> None:
    cli, client = CommandLine(tmp_path, storages.socket), storages.client
    names = ["plain", "../up", ".", "with/slash", "x" * 500, "é:%"]
    for name in names:
        client.create_queue(name, partitions=2, reference=name[:20])
        client.produce(name, [name])
    to = tmp_path / "backups"
    told = cli.json("partitions", "backup", "--all-queues", "--to", str(to), "--wait")
    assert (sorted(told["queues"]), told["backed_up"]) == (sorted(names), len(names))
    manifests = {
        json.loads(path.read_text())["queue"]["queue_name"]: path.parent for path in to.glob("*/manifest.json")
    }
    assert sorted(manifests) == sorted(names) and len(list(tmp_path.glob("**/manifest.json"))) == len(names)
    jobs = cli.json("partitions", "backup", "--all-queues", "--to", str(tmp_path / "again"))
    assert sorted(job["queue_name"] for job in jobs) == sorted(names)

    where = str(manifests["../up"])
    dry = cli("partitions", "restore", "copy", "--from", where, "--dry-run")
    assert dry.exit_code == 0 and "the backup is sound" in dry.stderr
    # The restore replaces nothing, so it needs no confirmation.
    assert cli.json("partitions", "restore", "copy", "--from", where, "--wait")["state"] == "done"
    assert client.queue_info("copy").reference == "../up"
    assert [item.payload for item in client.lease("copy", 1).items] == [b"../up"]


def test_a_dry_run_of_a_restore_finds_what_is_wrong(storages: Daemon, tmp_path: Path) -> None:
    cli, client = CommandLine(tmp_path, storages.socket), storages.client
    client.create_queue("q", partitions=2)
    to = tmp_path / "backup"
    cli.ok("partitions", "backup", "q", "--to", str(to), "--wait")
    assert cli("partitions", "restore", "q", "7", "--from", str(to), "--dry-run").exit_code == 4
    (file,) = to.glob("partition-1-*.duckdb")
    file.write_bytes(file.read_bytes()[:-1])
    result = cli("partitions", "restore", "q", "--from", str(to), "--dry-run")
    assert result.exit_code == 1 and "is not what its manifest says" in result.stderr


def test_some_queues_cannot_be_backed_up(storages: Daemon, tmp_path: Path) -> None:
    cli, client = CommandLine(tmp_path, storages.socket), storages.client
    client.create_queue("good")
    client.create_queue("bad")
    client.offline_partitions("bad")
    result = cli("partitions", "backup", "--all-queues", "--to", str(tmp_path / "b"), "--wait")
    assert result.exit_code == 3
    assert "backed up 1 of 2 queues; 'bad': " in result.stderr
    assert (tmp_path / "b" / "good" / "manifest.json").exists()
    assert cli("partitions", "backup", "--to", "/x").exit_code == 2
    assert cli("partitions", "backup", "good", "--all-queues", "--to", "/x").exit_code == 2
