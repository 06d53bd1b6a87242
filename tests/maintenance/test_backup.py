"""Backup, restore, verify and compact of a queue that is in use."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import duckdb
import pytest

from querator import limits
from querator.daemon.engine import at_store
from querator.daemon.jobs import compaction
from querator.daemon.store.duck import copies
from querator.errors import Conflict, InvalidRequest, NotFound, RequestFailed
from querator.wire import messages as m
from tests.maintenance.house import SECOND, House


@pytest.fixture
def to(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("backups") / "q"


def filled(house: House) -> list[str]:
    house.create(partitions=2)
    texts = [f"{n}" for n in range(100)]
    for start in range(0, 100, 10):
        house.produce(*texts[start : start + 10])
    house.produce("later", at=house.clock.now_us() + 60 * SECOND)
    return [*texts, "later"]


class TestBackup:
    def test_its_manifest_says_what_is_in_it(self, house: House, to):
        filled(house)
        house.lease(3)
        job = house.job("backup", to=str(to))
        assert (job.state, job.reason, job.kind, job.done, job.total) == ("done", "", "backup", 101, 101)
        manifest = json.loads((to / "manifest.json").read_text())
        assert manifest["queue"]["queue_name"] == "q" and manifest["format"] == 2
        assert [entry["partition"] for entry in manifest["partitions"]] == [0, 1]
        for entry, status in zip(manifest["partitions"], house.statuses(), strict=True):
            file = to / entry["file"]
            assert hashlib.sha256(file.read_bytes()).hexdigest() == entry["sha256"]
            assert entry["rows"]["items"] == status.total and entry["rows"]["leases"] == status.leased
            with duckdb.connect(str(file), read_only=True) as found:
                assert found.execute("select count(*) from items").fetchall() == [(status.total,)]
        assert house.states() == ["available"] * 2

    def test_it_holds_one_moment_while_the_queue_goes_on(self, house: House, to, monkeypatch):
        texts = filled(house)
        write = copies.write_snapshot

        def slow(snapshot, path, check):
            # Consumers empty the queue while the copy is made.
            while house.stats().partitions[0].total + house.stats().partitions[1].total:
                items = house.lease(100)
                house.complete(*(item.id for item in items)).result(5)
            return write(snapshot, path, check)

        monkeypatch.setattr("querator.daemon.store.duck.copies.write_snapshot", slow)
        house.job("backup", to=str(to))
        assert house.contents() == ["later"]
        monkeypatch.undo()
        house.job("restore", from_=str(to))
        assert sorted(house.contents()) == sorted(texts)

    def test_a_second_one_replaces_the_first(self, house: House, to):
        filled(house)
        house.job("backup", to=str(to))
        first = set(to.iterdir())
        house.produce("more")
        house.job("backup", to=str(to), partitions=[1])
        assert len(list(to.iterdir())) == 2 and set(to.iterdir()) & first == {to / "manifest.json"}

    def test_places_where_it_may_not_go(self, house: House, to):
        filled(house)
        house.create("other")
        to.mkdir()
        (to / "thesis.txt").write_text("do not overwrite")
        assert "is not empty and holds no backup" in house.job_refusal("backup", to=str(to)).message
        assert "must be an absolute path" in house.job_refusal("backup", to="here").message
        assert "must be an absolute path" in house.job_refusal("backup", to="").message
        inside = str(house.directory / "other" / "x")
        assert "is inside of storage 'other'" in house.job_refusal("backup", to=inside).message
        file = to / "thesis.txt" / "x"
        assert isinstance(house.job_refusal("backup", to=str(file)), RequestFailed)
        elsewhere = to.parent / "elsewhere"
        house.job("backup", queue="other", to=str(elsewhere))
        assert "holds a backup of queue 'other'" in house.job_refusal("backup", to=str(elsewhere)).message
        house.ask("offline", 1)
        assert "'1' is unavailable, reload it" in house.job_refusal("backup", to=str(to.parent / "new")).message

    def test_a_disk_that_fills_up_leaves_nothing_half_done(self, house: House, to, monkeypatch):
        filled(house)
        house.job("backup", to=str(to))
        before = {path: path.read_bytes() for path in to.iterdir()}

        def full(snapshot, path, check):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("querator.daemon.store.duck.copies.write_snapshot", full)
        job = house.job("backup", to=str(to))
        assert job.state == "failed" and "No space left" in job.reason
        assert {path: path.read_bytes() for path in to.iterdir()} == before

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), duckdb.IOException("No space left")])
    def test_one_that_fails_half_way_can_be_repeated(self, house: House, to, monkeypatch, error):
        filled(house)
        for n in range(10):
            house.produce(*(f"{n} {m}" for m in range(1000)))
        monkeypatch.setattr(limits, "SLICE_ROWS_MAX", 1000)
        insert = copies.Instance.cursor

        class Full:
            """The copy of the second partition fails after a thousand rows."""

            def __init__(self, cursor: Any) -> None:
                self._cursor = cursor

            def execute(self, query: str, *parameters: object) -> Any:
                if query.startswith("INSERT INTO file.items") and written.append(query) is None and len(written) == 8:
                    raise error
                return self._cursor.execute(query, *parameters)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._cursor, name)

        written: list[str] = []
        monkeypatch.setattr(
            "querator.daemon.store.duck.copies.Instance.cursor", lambda instance: Full(insert(instance))
        )
        job = house.job("backup", to=str(to))
        assert job.state == "failed" and "No space left" in job.reason and "internal" not in job.reason
        assert list(to.iterdir()) == []
        monkeypatch.undo()
        # The failed job holds no file open, so the partitions can be closed and opened again.
        house.ask("offline")
        house.ask("reload")
        assert house.states() == ["available"] * 2
        assert house.job("backup", to=str(to)).state == "done"

    def test_one_that_is_cancelled_half_way_can_be_repeated(self, house: House, to, monkeypatch):
        filled(house)
        for n in range(10):
            house.produce(*(f"{n} {m}" for m in range(1000)))
        monkeypatch.setattr(limits, "SLICE_ROWS_MAX", 1000)
        write, under_way, cancelled = copies.write_snapshot, threading.Event(), threading.Event()

        def slow(snapshot, path, check):
            def pausing(done: int) -> None:
                if "partition-1" in path.name and done:
                    under_way.set()
                    assert cancelled.wait(20)
                check(done)

            return write(snapshot, path, pausing)

        monkeypatch.setattr("querator.daemon.store.duck.copies.write_snapshot", slow)
        job_id = house.begin_job("backup", to=str(to))
        assert under_way.wait(20)
        house.create("other")
        refusal = house.job_refusal("backup", queue="other", to=str(to / ".." / to.name))
        assert isinstance(refusal, Conflict) and f"job '{job_id}' writes to" in refusal.message
        answer = house.begin("jobs.cancel", m.JobRequest(job_id=job_id))
        house.until(lambda: job_id in house.registry.jobs._cancelled)
        cancelled.set()
        assert answer.result(20).code == 200
        assert house.show_job(job_id).state == "cancelled" and list(to.iterdir()) == []
        house.ask("reload")
        assert house.job("backup", to=str(to)).state == "done"


class TestRestore:
    def test_everything_is_as_it_was(self, house: House, to):
        texts = filled(house)
        items = house.lease(5)
        house.job("backup", to=str(to))
        house.complete(*(item.id for item in items)).result(5)
        house.call("queue.clear", m.QueueClearRequest(queue_name="q", queue=True, scheduled=True, destructive=True))
        house.produce("after the backup")
        job = house.job("restore", from_=str(to))
        assert (job.state, job.reason, job.kind) == ("done", "", "restore")
        assert sorted(house.contents()) == sorted(texts)
        assert sum(status.leased for status in house.statuses()) == 5
        house.complete(*(item.id for item in items)).result(5)
        house.produce("new")
        house.restart()
        assert len(house.contents()) == 97
        assert house.states() == ["available"] * 2

    def test_new_ids_are_new_although_the_file_is_old(self, house: House, to):
        house.create()
        house.job("backup", to=str(to))
        house.produce("a")
        (old,) = house.lease()
        house.job("restore", from_=str(to))
        house.produce("b")
        (new,) = house.lease()
        assert new.id > old.id

    def test_one_partition_of_a_backup(self, house: House, to):
        filled(house)
        house.job("backup", to=str(to))
        house.call("queue.clear", m.QueueClearRequest(queue_name="q", queue=True))
        house.job("restore", from_=str(to), partitions=[1])
        assert [status.total for status in house.statuses()] == [0, 50]

    def test_a_partition_whose_file_is_ruined(self, house: House, to):
        texts = filled(house)
        house.job("backup", to=str(to))
        house.ask("offline", 0)
        house.file(0).write_bytes(b"ruined" * 10_000)
        house.refused("reload", 0)
        assert house.states() == ["error", "available"]
        assert house.job("restore", from_=str(to), partitions=[0]).state == "done"
        assert house.states() == ["available", "available"]
        assert sorted(house.contents()) == sorted(texts)
        house.restart()
        assert sorted(house.contents()) == sorted(texts)

    def test_into_a_queue_that_was_made_anew(self, house: House, to):
        texts = filled(house)
        house.job("backup", to=str(to))
        house.call("queues.delete", m.QueuesDeleteRequest(queue_name="q"))
        house.create(partitions=2)
        assert house.job("restore", from_=str(to)).state == "done"
        assert sorted(house.contents()) == sorted(texts)
        house.restart()
        assert sorted(house.contents()) == sorted(texts)

    def test_what_is_no_backup_is_refused_and_changes_nothing(self, house: House, to):
        filled(house)
        house.create("other")
        assert "there is no backup in" in house.job_refusal("restore", from_=str(to)).message
        assert "must be an absolute path" in house.job_refusal("restore", from_="q").message
        house.job("backup", to=str(to))
        wrong = house.job_refusal("restore", queue="other", from_=str(to))
        assert "holds a backup of queue 'q'" in wrong.message
        assert isinstance(house.job_refusal("restore", from_=str(to), partitions=[7]), InvalidRequest)
        house.job("backup", to=str(to), partitions=[0])
        assert isinstance(house.job_refusal("restore", from_=str(to), partitions=[1]), NotFound)
        (to / "manifest.json").write_text("{")
        assert "cannot be read" in house.job_refusal("restore", from_=str(to)).message
        assert house.states() == ["available"] * 2

    def test_a_backup_with_one_bit_changed(self, house: House, to):
        filled(house)
        house.job("backup", to=str(to))
        (file,) = to.glob("partition-1-*.duckdb")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        house.produce("kept")
        job = house.job("restore", from_=str(to), partitions=[1])
        assert job.state == "failed" and "the backup is damaged" in job.reason
        assert "kept" in house.contents() and house.states() == ["available"] * 2

    def test_fewer_partitions_than_the_backup(self, house: House, to):
        filled(house)
        house.job("backup", to=str(to))
        house.call("queues.update", m.QueueInfo(queue_name="q", requested_partitions=1))
        house.until(lambda: len(house.logical().partitions) == 1)
        assert "resize it first" in house.job_refusal("restore", from_=str(to)).message


class TestVerify:
    def test_all_is_well(self, house: House):
        filled(house)
        house.lease(7)
        job = house.job("verify")
        assert (job.state, job.reason, job.done) == ("done", "", 101)

    def test_it_finds_what_the_daemon_does_not_know(self, house: House):
        filled(house)
        partition = house.partition(0)
        partition.contents.window.waiting += 1
        job = house.job("verify", partitions=[0])
        assert job.state == "failed"
        assert job.reason.startswith("partition '0' holds 50 items, not 51")

    def test_items_that_come_due_while_the_counters_are_taken_are_no_damage(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pass that reads the counters also makes due items ready, and these changes are not in the file yet."""
        house.create()
        due = house.clock.now_us() + SECOND
        house.produce("a", "b")
        house.produce("c", "d", "e", at=due)
        calls: list[Any] = []

        async def with_a_clock_that_moves(*args: Any) -> Any:
            result = await at_store(*args)
            if not calls:
                house.clock.set(due + 1)
            calls.append(args)
            return result

        monkeypatch.setattr("querator.daemon.jobs.verify.at_store", with_a_clock_that_moves)
        job = house.job("verify")
        assert (job.state, job.reason) == ("done", "")
        assert house.statuses()[0].total == 5 and len(calls) >= 2

    def test_while_the_queue_is_busy(self, house: House):
        filled(house)
        jobs = [house.begin_job("verify")]
        for n in range(200):
            house.produce(f"x{n}")
            if n % 40 == 39 and house.show_job(jobs[-1]).state != "running":
                jobs.append(house.begin_job("verify"))
        assert {house.ended(job_id).state for job_id in jobs} == {"done"}


class TestUnsoundRows:
    """Rows that somebody changed by hand, or that an earlier version imported."""

    REASON = "partition '0' has rows that a restore would refuse: 2 rows of its table 'items' have impossible attempts"

    def edit(self, house: House) -> None:
        house.ask("offline", 0)
        with duckdb.connect(str(house.file(0))) as file:
            file.execute("update items set attempts = -1 where decode(payload) != 'a'")
        house.ask("reload", 0)
        house.until(lambda: house.states() == ["available"])

    def test_verify_reports_them(self, house: House) -> None:
        house.create()
        house.produce("a", "b", "c")
        self.edit(house)
        job = house.job("verify")
        assert (job.state, job.reason) == ("failed", self.REASON)

    def test_a_backup_of_them_fails_and_leaves_the_one_before(self, house: House, to: Path) -> None:
        house.create()
        house.produce("a", "b", "c")
        assert house.job("backup", to=str(to)).state == "done"
        before = {path.name: path.read_bytes() for path in to.iterdir()}
        self.edit(house)
        job = house.job("backup", to=str(to))
        assert (job.state, job.reason) == ("failed", self.REASON)
        assert {path.name: path.read_bytes() for path in to.iterdir()} == before


class TestDamage:
    def test_whatever_reads_a_damaged_file_says_so_and_harms_nobody_else(self, house: House, to):
        house.create(partitions=2)
        house.ask("pause", 1)
        for _ in range(4):
            house.produce(*(os.urandom(500).hex() for _ in range(1000)))
        house.ask("resume", 1)
        house.create("other")
        # Compacting creates a new file, so DuckDB has no part of it in memory.
        assert house.job("compact", partitions=[0]).state == "done"
        path = house.file(0)
        with open(path, "r+b") as file:
            for place in range(4 * 16384, path.stat().st_size, 3 * 16384):
                os.pwrite(file.fileno(), b"\xff" * 64, place + 500)
        stores = [house.partition(1).store, house.partition(queue="other").store]
        verified = house.job("verify")
        assert verified.state == "failed" and verified.reason.startswith("partition '0' cannot be read: ")
        for job in (house.job("backup", to=str(to)), house.job("compact", partitions=[0])):
            assert job.state == "failed" and "Corrupt database file" in job.reason
            assert "internal error" not in job.reason
        assert not house.registry.storages["default"].failure
        house.ask("pause", 0)
        house.produce("a")
        house.produce("b", queue="other")
        assert [house.partition(1).store, house.partition(queue="other").store] == stores


class TestCompact:
    def test_a_file_of_deleted_rows_shrinks(self, house: House):
        house.create()
        for _ in range(20):
            house.produce(*(os.urandom(300).hex() for _ in range(1000)))
        # Apply all items to the file first, so that they are deleted from the file.
        house.ask("reload")
        while house.statuses()[0].total > 1000:
            items = house.lease(1000)
            house.complete(*(item.id for item in items)).result(5)
        held = house.lease(10)
        house.ask("reload")
        before, contents = house.statuses()[0].bytes_, house.contents()
        job = house.job("compact")
        assert (job.state, job.reason, job.done, job.total) == ("done", "", 1, 1)
        assert house.statuses()[0].bytes_ < before / 2
        assert house.contents() == contents
        house.complete(*(item.id for item in held)).result(5)
        house.produce("new")
        assert house.job("verify").state == "done"
        house.restart()
        assert len(house.contents()) == len(contents) - 9

    def test_it_happens_by_itself(self, house: House, monkeypatch):
        house.create()
        for _ in range(10):
            house.produce(*(os.urandom(300).hex() for _ in range(1000)))
        house.ask("reload")
        while house.statuses()[0].total > 100:
            items = house.lease(100)
            house.complete(*(item.id for item in items)).result(5)
        monkeypatch.setattr(limits, "COMPACT_FILE_BYTES_MIN", 1000)
        house.run(compaction._look(house.registry, house.partition()))
        (job,) = house.call("jobs.list", m.JobsListRequest()).items
        assert job.kind == "compact" and house.ended(job.job_id).state == "done"

    def test_a_disk_that_is_full_does_the_partition_no_harm(self, house: House, monkeypatch):
        filled(house)
        monkeypatch.setattr("querator.daemon.store.duck.attached.read_contents", _full)
        job = house.job("compact", partitions=[0])
        assert job.state == "failed" and "No space left" in job.reason
        house.produce("x")
        assert len(house.contents()) == 102 and house.states() == ["available"] * 2


def _full(*arguments):
    raise OSError(28, "No space left on device")
