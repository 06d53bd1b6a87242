"""A backup directory alone is enough to create its queue again, under any name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from querator.errors import InvalidRequest, RequestFailed
from querator.wire import messages as m
from tests.maintenance.house import SECOND, House


@pytest.fixture
def to(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backups") / "q"


def made(house: House) -> list[str]:
    """A queue with settings that are not the defaults, a paused partition and a draining one."""
    house.create("dead")
    house.create(
        partitions=3, lease_timeout="90s", expire_timeout="36h", max_attempts=7, dead_queue="dead", reference="ours"
    )
    texts = [str(n) for n in range(30)]
    for text in texts:
        house.produce(text)
    house.produce("later", at=house.clock.now_us() + 3600 * SECOND)
    house.ask("pause", 1, for_="15m")
    house.ask("drain", 2)
    return [*texts, "later"]


def info(house: House, name: str) -> m.QueueInfo:
    found: m.QueueInfo = house.call("queues.info", m.QueuesInfoRequest(queue_name=name))
    return found


def settings(house: House, name: str) -> m.QueueInfo:
    """The settings of a queue, without its name and the times of its creation and last change."""
    found = info(house, name)
    found.queue_name, found.created_at, found.updated_at = "", None, None
    return found


class TestUnderAnotherName:
    def test_it_is_the_queue_that_was_backed_up(self, house: House, to: Path) -> None:
        texts = made(house)
        before = house.statuses()
        assert house.job("backup", to=str(to)).state == "done"
        job = house.job("restore", queue="copy", from_=str(to))
        assert (job.state, job.reason, job.queue_name) == ("done", "", "copy")
        assert settings(house, "copy") == settings(house, "q")
        after = house.statuses("copy")
        assert [(one.state, one.resume_at) for one in after] == [(one.state, one.resume_at) for one in before]
        assert [(one.total, one.scheduled) for one in after] == [(one.total, one.scheduled) for one in before]
        assert sorted(house.contents("copy")) == sorted(texts) == sorted(house.contents())
        house.restart()
        assert sorted(house.contents("copy")) == sorted(texts)
        assert [one.state for one in house.statuses("copy")] == ["available", "paused", "draining"]

    def test_the_two_go_their_own_ways(self, house: House, to: Path) -> None:
        texts = made(house)
        house.job("backup", to=str(to))
        house.job("restore", queue="copy", from_=str(to))
        items = house.lease(100, queue="copy")
        house.complete(*(item.id for item in items), queue="copy").result(5)
        house.produce("new", queue="copy")
        assert sorted(house.contents()) == sorted(texts)
        assert len(house.contents("copy")) == len(texts) - len(items) + 1
        assert house.job("verify", queue="copy").state == "done"

    def test_after_the_queue_is_gone_it_can_have_its_old_name(self, house: House, to: Path) -> None:
        texts = made(house)
        wanted = settings(house, "q")
        house.job("backup", to=str(to))
        house.call("queues.delete", m.QueuesDeleteRequest(queue_name="q"))
        assert house.job("restore", from_=str(to)).state == "done"
        assert settings(house, "q") == wanted and sorted(house.contents()) == sorted(texts)

    def test_a_timeout_that_no_client_may_spell_out_is_restored(self, house: House, to: Path) -> None:
        house.create(lease_timeout="1000000.123456s", expire_timeout="2000h")
        assert info(house, "q").lease_timeout == "277h46m40.123456s"  # this text is longer than a request may have
        house.produce("a")
        house.job("backup", to=str(to))
        house.call("partitions.restore", m.PartitionsRestoreRequest(queue_name="copy", from_=str(to), dry_run=True))
        assert house.job("restore", queue="copy", from_=str(to)).state == "done"
        assert settings(house, "copy") == settings(house, "q")

    def test_some_partitions_of_it(self, house: House, to: Path) -> None:
        made(house)
        house.job("backup", to=str(to))
        house.job("restore", queue="copy", from_=str(to), partitions=[2])
        assert [(one.state, one.total) for one in house.statuses("copy")] == [
            ("available", 0), ("available", 0), ("draining", 10),
        ]  # fmt: skip

    def test_a_queue_that_exists_is_not_taken_for_another(self, house: House, to: Path) -> None:
        made(house)
        house.create("other")
        house.job("backup", to=str(to))
        refusal = house.job_refusal("restore", queue="other", from_=str(to))
        assert isinstance(refusal, InvalidRequest)
        assert refusal.message.endswith("'q', restore it under a name that no queue has yet")

    def test_its_dead_queue_must_be_there(self, house: House, to: Path) -> None:
        made(house)
        house.job("backup", to=str(to))
        for name in ("q", "dead"):
            house.call("queues.delete", m.QueuesDeleteRequest(queue_name=name))
        refusal = house.job_refusal("restore", queue="copy", from_=str(to))
        assert "'dead' was not found, create it first" in refusal.message
        assert house.registry.queues == {}

    def test_a_restore_that_fails_takes_the_queue_back(self, house: House, to: Path) -> None:
        made(house)
        house.job("backup", to=str(to))
        (file,) = to.glob("partition-2-*.duckdb")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        files = set((house.directory / "default").glob("*.duckdb"))
        job = house.job("restore", queue="copy", from_=str(to))
        assert job.state == "failed" and "the backup is damaged" in job.reason
        assert sorted(house.registry.queues) == ["dead", "q"]
        assert set((house.directory / "default").glob("*.duckdb")) == files

    def test_nobody_uses_it_before_it_is_whole(self, house: House, to: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made(house)
        house.job("backup", to=str(to))
        seen = []

        def look(name: str) -> None:
            if name == "restore.staged":
                seen.append([partition.allows.produce for partition in house.logical("copy").partitions])

        monkeypatch.setattr("querator.daemon.jobs.restore.failpoint", look)
        house.job("restore", queue="copy", from_=str(to))
        assert seen == [[False, False, False], [True, False, False], [True, False, False]]


class TestDryRun:
    def check(self, house: House, queue: str, to: Path, *partitions: int) -> None:
        request = m.PartitionsRestoreRequest(queue_name=queue, from_=str(to), partitions=list(partitions), dry_run=True)
        assert house.call("partitions.restore", request) == m.JobReply()

    def refusal(self, house: House, queue: str, to: Path) -> str:
        request = m.PartitionsRestoreRequest(queue_name=queue, from_=str(to), dry_run=True)
        error = house.refusal("partitions.restore", request)
        assert isinstance(error, InvalidRequest | RequestFailed)
        return error.message

    def test_it_changes_nothing(self, house: House, to: Path) -> None:
        texts = made(house)
        house.job("backup", to=str(to))
        house.ask("resume", 1)
        house.ask("resume", 2)
        house.produce("after")
        jobs = len(house.registry.jobs.all())
        self.check(house, "q", to)
        self.check(house, "copy", to, 0, 2)
        assert sorted(house.contents()) == sorted([*texts, "after"]) and "copy" not in house.registry.queues
        assert len(house.registry.jobs.all()) == jobs
        assert not list((house.directory / "default").glob("*.creating"))

    def test_it_finds_what_a_restore_would_find(self, house: House, to: Path) -> None:
        made(house)
        house.create("other")
        assert "there is no backup" in self.refusal(house, "q", to)
        house.job("backup", to=str(to))
        assert "holds a backup of queue 'q'" in self.refusal(house, "other", to)
        (file,) = to.glob("partition-2-*.duckdb")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        for name in ("q", "copy"):
            assert "is not what its manifest says" in self.refusal(house, name, to)
        file.unlink()
        for name in ("q", "copy"):
            assert "is missing" in self.refusal(house, name, to)


def test_the_manifest_can_be_read_by_people(house: House, to: Path) -> None:
    made(house)
    house.job("backup", to=str(to))
    found = json.loads((to / "manifest.json").read_text())
    assert found["queue"]["lease_timeout"] == "1m30s" and found["queue"]["dead_queue"] == "dead"
    assert [entry["state"] for entry in found["partitions"]] == ["available", "paused", "draining"]
