"""Migrating a partition's file to another storage, and a partition's items into another partition."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from querator import limits
from querator.daemon.store.base import StorageError
from querator.daemon.store.duck import copies
from querator.errors import Conflict, InvalidRequest, NotFound, RequestFailed
from querator.wire import messages as m
from tests.maintenance.house import SECOND, House


def filled(house: House, partitions: int = 2, items: int = 30) -> None:
    """A queue with all its items in partition 0."""
    house.create(partitions=partitions)
    house.ask("pause", *range(1, partitions))
    for start in range(0, items, 10):
        house.produce(*(f"{n}" for n in range(start, min(start + 10, items))))
    house.ask("resume")


class TestToStorage:
    def test_ids_leases_and_schedules_survive(self, house: House):
        filled(house)
        house.ask("pause", 1)
        house.produce("later", at=house.clock.now_us() + 60 * SECOND)
        items = house.lease(3)
        before, old_file = house.contents(), house.file(0)
        job = house.job("migrate", partition=0, to_storage="other")
        assert (job.state, job.reason, job.kind, job.partition) == ("done", "", "migrate to storage", 0)
        assert job.done == job.total > 0 and job.ended_at
        status = house.statuses()[0]
        assert (status.storage, status.state, status.total, status.leased) == ("other", "available", 30, 3)
        assert house.contents() == before
        assert not old_file.exists() and house.file(0).exists()
        house.complete(*(item.id for item in items)).result(5)
        assert [item.bytes_ for item in house.lease(2)] == [b"3", b"4"]
        house.advance("61s")
        house.restart()
        assert house.statuses()[0].storage == "other"
        assert "later" in house.contents()

    def test_there_and_back_again(self, house: House):
        filled(house)
        for storage in ("other", "default", "other"):
            house.produce("more")
            assert house.job("migrate", partition=0, to_storage=storage).state == "done"
            house.produce("and more")
        house.restart()
        assert len(house.contents()) == 36

    def test_it_keeps_the_state_that_was_asked_for(self, house: House):
        filled(house)
        house.ask("drain", 0)
        house.job("migrate", partition=0, to_storage="other")
        house.ask("offline", 1)
        house.job("migrate", partition=1, to_storage="other")
        assert [(s.state, s.storage) for s in house.statuses()] == [("draining", "other"), ("unavailable", "other")]
        house.ask("reload", 1)
        assert house.states() == ["draining", "available"]

    def test_a_daemon_that_stops_while_the_catalog_is_slow_to_record_the_switch_keeps_the_file(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ):
        """The job is cancelled when the stop takes too long. The catalog may have recorded the switch by then."""
        monkeypatch.setattr(limits, "JOB_STOP_SECONDS_MAX", 0.1)
        filled(house)
        switched, over = threading.Event(), threading.Event()
        switch = house.registry.catalog.switch_storage

        def slow_switch(*words):
            switch(*words)
            switched.set()
            over.wait(10)

        monkeypatch.setattr(house.registry.catalog, "switch_storage", slow_switch)
        house.begin_job("migrate", partition=0, to_storage="other")
        assert switched.wait(10)
        house.run(house.service.stop())
        over.set()
        house.start()
        house.until(lambda: house.states() == ["available", "available"])
        assert house.statuses()[0].storage == "other" and len(house.contents()) == 30

    def test_what_makes_no_sense_is_refused(self, house: House):
        filled(house)
        refusals = [
            ({"partition": 0, "to_storage": "default"}, "is in storage 'default' already"),
            ({"partition": 0, "to_storage": "nowhere"}, "no such storage 'nowhere', there are 'default', 'other'"),
            ({"partition": 7, "to_storage": "other"}, "'7' is not a valid partition"),
            ({"partition": 0}, "one of 'to_partition' and 'to_storage' must be given"),
            ({"partition": 0, "to_partition": 1, "to_storage": "other"}, "one of 'to_partition' and 'to_storage'"),
            ({"partition": 0, "to_partition": 0}, "cannot be moved into itself"),
            ({"partition": 0, "to_partition": 9}, "'9' is not a valid partition"),
        ]
        for fields, text in refusals:
            error = house.job_refusal("migrate", **fields)
            assert isinstance(error, InvalidRequest) and text in error.message
        assert isinstance(house.job_refusal("migrate", queue="nope", partition=0, to_storage="other"), NotFound)
        assert house.call("jobs.list", m.JobsListRequest()).items == []

    def test_a_storage_that_is_gone_is_told_before_the_partition_stops(self, house: House):
        filled(house)
        (house.directory / "other").rename(house.directory / "unmounted")
        error = house.job_refusal("migrate", partition=0, to_storage="other")
        assert isinstance(error, RequestFailed) and "storage other cannot be written" in error.message
        assert house.states() == ["available", "available"]
        (house.directory / "unmounted").rename(house.directory / "other")

    def test_a_storage_that_is_full(self, house: House, monkeypatch):
        filled(house)
        monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(free=1000))
        error = house.job_refusal("migrate", partition=0, to_storage="other")
        assert error.message.startswith("storage 'other' is full; ")

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), StorageError("broken")])
    def test_a_copy_that_fails_is_undone(self, house: House, monkeypatch, error):
        filled(house)
        monkeypatch.setattr("querator.daemon.store.duck.copies.copy_file", _raising(error))
        job = house.job("migrate", partition=0, to_storage="other")
        assert (job.state, job.reason) == ("failed", str(error))
        assert [(s.state, s.storage) for s in house.statuses()] == [("available", "default")] * 2
        assert len(house.contents()) == 30
        assert [p.name for p in (house.directory / "other").iterdir() if p.suffix in (".duckdb", ".creating")] == []

    def test_a_copy_that_differs_is_not_used(self, house: House, monkeypatch):
        filled(house)
        monkeypatch.setattr("querator.daemon.store.duck.copies.file_hash", lambda path, check: "other bytes")
        job = house.job("migrate", partition=0, to_storage="other")
        assert job.state == "failed" and "gave back other bytes" in job.reason
        assert len(house.contents()) == 30

    def test_nobody_else_may_work_on_the_partition_meanwhile(self, house: House, monkeypatch):
        filled(house)
        copying, go_on = _held_copy(monkeypatch)
        job_id = house.begin_job("migrate", partition=0, to_storage="other")
        assert copying.wait(5)
        status = house.statuses()[0]
        assert (status.state, status.reason, status.job_id) == ("unavailable", "closed for a migration", job_id)
        for error in (
            house.job_refusal("migrate", partition=0, to_storage="other"),
            house.job_refusal("migrate", partition=1, to_partition=0),
            house.refused("offline", 0),
            house.refused("reload", 0),
            house.refused("pause", 0),
        ):
            assert isinstance(error, Conflict) and error.message.startswith("partition is busy; ")
        house.produce("meanwhile")
        assert [s.total for s in house.statuses()] == [30, 1]
        go_on.set()
        assert house.ended(job_id).state == "done"

    @pytest.mark.parametrize("partitions", [1, 2])
    def test_a_repeated_produce_waits_while_the_job_goes_on_after_a_restart(
        self, house: House, monkeypatch, partitions
    ):
        house.create(partitions=partitions)
        item = m.QueueProduceItem(utf8="a")
        request = m.QueueProduceRequest(queue_name="q", request_timeout="1m", items=[item], request_id="once")
        house.call("queue.produce", request)
        copying, go_on = _held_copy(monkeypatch)
        job_id = house.begin_job("migrate", partition=0, to_storage="other")
        assert copying.wait(5)
        go_on.set()
        house.run(house.service.stop())
        go_on.clear()
        copying.clear()
        house.start()
        assert copying.wait(5)
        repeated = house.begin("queue.produce", request)
        house.until(lambda: house.stats().produce_waiting == 1)
        go_on.set()
        repeated.result(5)
        assert house.ended(job_id).state == "done"
        assert house.contents() == ["a"]

    def test_it_can_be_cancelled(self, house: House, monkeypatch):
        filled(house)
        copying, go_on = _held_copy(monkeypatch)
        job_id = house.begin_job("migrate", partition=0, to_storage="other")
        assert copying.wait(5)
        cancelling = house.begin("jobs.cancel", m.JobRequest(job_id=job_id))
        go_on.set()
        assert cancelling.result(5).code == 200
        assert house.show_job(job_id).state == "cancelled"
        assert [(s.state, s.storage) for s in house.statuses()] == [("available", "default")] * 2
        assert len(house.contents()) == 30

    def test_a_job_that_has_ended_cannot_be_cancelled(self, house: House):
        filled(house)
        job = house.job("migrate", partition=0, to_storage="other")
        error = house.refusal("jobs.cancel", m.JobRequest(job_id=job.job_id))
        assert error.message == f"cannot cancel job; job '{job.job_id}' is done, it can no longer be cancelled"
        assert isinstance(house.refusal("jobs.show", m.JobRequest(job_id="nope")), NotFound)

    def test_jobs_are_remembered_for_a_while(self, house: House):
        filled(house)
        job = house.job("migrate", partition=0, to_storage="other")
        house.advance("1h")
        house.restart()
        assert house.call("jobs.list", m.JobsListRequest()).items == [job]
        house.advance("48h")
        house.job("migrate", partition=0, to_storage="default")
        assert job not in house.call("jobs.list", m.JobsListRequest()).items


class TestIntoPartition:
    def test_everything_goes_in_order(self, house: House):
        filled(house, items=5000)
        house.ask("pause", 1)
        for n in (3, 1, 2):
            house.produce(f"due {n}", at=house.clock.now_us() + n * 60 * SECOND)
        house.ask("resume", 1)
        job = house.job("migrate", partition=0, to_partition=1)
        assert (job.state, job.kind, job.done, job.total) == ("done", "migrate into partition", 5003, 5003)
        assert [(s.total, s.scheduled, s.state) for s in house.statuses()] == [
            (0, 0, "available"),
            (5000, 3, "available"),
        ]
        got = []
        for _ in range(5):
            items = house.lease(1000)
            got += [item.bytes_.decode() for item in items]
            house.complete(*(item.id for item in items)).result(5)
        assert got == [f"{n}" for n in range(5000)]
        house.advance("3m1s")
        assert [item.bytes_.decode() for item in house.lease(10)] == ["due 1", "due 2", "due 3"]

    def test_leased_items_follow_when_their_lease_ends(self, house: House):
        filled(house, items=10)
        first, second = house.lease(1), house.lease(1)
        job_id = house.begin_job("migrate", partition=0, to_partition=1)
        house.until(lambda: house.partition(1).counts.total == 8)
        assert house.show_job(job_id).state == "running"
        house.produce("new")
        assert [s.total for s in house.statuses()] == [2, 9]
        house.complete(first[0].id).result(5)
        house.advance("61s")
        assert house.ended(job_id).state == "done"
        assert [s.total for s in house.statuses()] == [0, 10]
        error = house.complete(second[0].id).exception(5)
        assert isinstance(error, InvalidRequest) and error.message.endswith("its lease was lost")
        house.produce("the source takes items again")
        assert house.statuses()[0].total == 1

    def test_between_storages_and_with_consumers_at_work(self, house: House):
        house.create(partitions=2)
        house.job("migrate", partition=1, to_storage="other")
        house.ask("pause", 1)
        for start in range(0, 8000, 1000):
            house.produce(*(f"{n}" for n in range(start, start + 1000)))
        house.ask("resume", 1)
        job_id = house.begin_job("migrate", partition=0, to_partition=1)
        got: list[str] = []
        while len(got) < 8000:
            items = house.lease(700)
            got += [item.bytes_.decode() for item in items]
            house.complete(*(item.id for item in items)).result(5)
        assert sorted(map(int, got)) == list(range(8000))
        assert house.ended(job_id).state == "done"
        assert house.contents() == []

    def test_it_can_be_cancelled_half_way(self, house: House):
        filled(house, items=10)
        house.lease(1)
        job_id = house.begin_job("migrate", partition=0, to_partition=1)
        house.until(lambda: house.partition(1).counts.total == 9)
        house.cancel(job_id)
        assert house.show_job(job_id).state == "cancelled"
        house.produce("x")
        assert [s.total for s in house.statuses()] == [2, 9]

    def test_into_a_partition_that_cannot_take_them(self, house: House):
        filled(house)
        house.ask("drain", 1)
        assert "'1' is draining, resume it first" in house.job_refusal("migrate", partition=0, to_partition=1).message
        house.ask("offline", 1)
        assert "reload it" in house.job_refusal("migrate", partition=0, to_partition=1).message

    @pytest.mark.parametrize("failing", ["default", "other"])
    def test_a_storage_that_fails_half_way_loses_and_doubles_nothing(self, house: House, failing):
        house.create(partitions=2)
        house.job("migrate", partition=1, to_storage="other")
        house.ask("pause", 1)
        texts = [f"{n}" for n in range(9000)]
        for start in range(0, 9000, 1000):
            house.produce(*texts[start : start + 1000])
        house.ask("resume", 1)
        storage = house.registry.storages[failing]
        write = storage.write
        calls = []

        def fail(taken, on_loop=False):
            calls.append(1)
            if len(calls) in (2, 5):
                for staged in taken:
                    staged.of.drop_staged(staged)
                raise StorageError("disk full", [staged.of.uuid for staged in taken])
            write(taken)

        storage.write = fail
        job = house.job("migrate", partition=0, to_partition=1)
        assert job.state == "done" and len(calls) > 4
        assert sorted(house.contents()) == sorted(texts)
        assert [s.total for s in house.statuses()] == [0, 9000]


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def _raising(error: Exception):
    def copy(*arguments):
        raise error

    return copy


def _held_copy(monkeypatch):
    copying, go_on = threading.Event(), threading.Event()
    copy_file = copies.copy_file

    def held(source: Path, target: Path, rate: int, check):
        copying.set()
        assert go_on.wait(10)
        return copy_file(source, target, rate, check)

    monkeypatch.setattr("querator.daemon.store.duck.copies.copy_file", held)
    return copying, go_on
