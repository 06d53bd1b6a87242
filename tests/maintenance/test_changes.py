"""The daemon logs every change that an operator makes in one line, with its target and the number of items."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from querator.daemon import logs
from querator.daemon.store.base import StorageError
from querator.errors import InvalidRequest
from querator.wire import messages as m
from tests.maintenance.house import SECOND, House


@pytest.fixture
def told(house: House, caplog: pytest.LogCaptureFixture) -> Any:
    """The messages and fields that were logged since the last call."""
    caplog.set_level(logging.INFO)

    def told() -> list[tuple[str, dict[str, Any]]]:
        found = [
            (record.getMessage(), {**logs.fields(record)})
            for record in caplog.records
            if record.name in ("querator.changes", "querator.partitions")
        ]
        caplog.clear()
        return found

    return told


class TestQueues:
    def test_create_update_and_delete(self, house: House, told: Any):
        house.create(partitions=2)
        assert told() == [("queue created", {"queue": "q", "partitions": "0,1"})]
        house.produce("a", "b")
        house.call("queues.update", m.QueueInfo(queue_name="q", lease_timeout="2m", max_attempts=3))
        assert told() == [("queue updated", {"queue": "q", "lease_timeout": "1m0s to 2m0s", "max_attempts": "- to 3"})]
        house.call("queues.delete", m.QueuesDeleteRequest(queue_name="q"))
        assert told() == [("queue deleted", {"queue": "q", "ready": 2, "leased": 0, "scheduled": 0})]

    def test_resize(self, house: House, told: Any):
        house.create(max_attempts=1)
        told()
        for count in (3, 1):
            house.call("queues.update", m.QueueInfo(queue_name="q", max_attempts=1, requested_partitions=count))
        (job,) = house.call("jobs.list", m.JobsListRequest()).items
        house.ended(job.job_id)
        lines = told()
        assert lines[0] == ("queue updated", {"queue": "q", "requested_partitions": "1 to 3"})
        assert [message for message, _ in lines[1:]] == [
            "job started",
            "queue updated",
            "partition removed",
            "partition removed",
            "job done",
        ]
        assert [fields["partitions"] for message, fields in lines if message == "partition removed"] == ["2", "1"]


class TestItems:
    def test_a_clear_tells_how_many_of_which_state(self, house: House, told: Any):
        house.create(partitions=2)
        house.produce(*"abcde")
        house.produce("later", at=house.clock.now_us() + 60 * SECOND)
        house.lease(2)
        told()
        house.call("queue.clear", m.QueueClearRequest(queue_name="q", queue=True))
        assert told() == [("queue cleared", {"queue": "q", "ready": 3, "leased": 0, "scheduled": 0})]
        reply = house.call(
            "queue.clear", m.QueueClearRequest(queue_name="q", queue=True, destructive=True, counts=True)
        )
        assert told() == [("queue cleared", {"queue": "q", "ready": 0, "leased": 2, "scheduled": 1})]
        assert reply.details == {"ready": "0", "leased": "2", "scheduled": "1"}

    def test_a_clear_by_an_old_client_is_answered_as_ever(self, house: House):
        house.create()
        assert house.call("queue.clear", m.QueueClearRequest(queue_name="q", queue=True)) == m.Reply(code=200)

    def test_deletes_and_redrives(self, house: House, told: Any):
        house.create()
        house.produce("a", "b", "c")
        told()
        first, second, third = house.call("storage/items.list", m.StorageItemsListRequest(queue_name="q")).items
        house.call("storage/items.delete", m.StorageItemsDeleteRequest(queue_name="q", ids=[first.id, second.id]))
        assert told() == [("items deleted", {"queue": "q", "partitions": "0", "items": 2})]
        redrive = m.StorageItemsDeleteRequest(queue_name="q", ids=[third.id], purpose="redrive to mail")
        house.call("storage/items.delete", redrive)
        expected = {"queue": "q", "partitions": "0", "items": 1, "purpose": "redrive to mail"}
        assert told() == [("items deleted", expected)]
        house.call("storage/items.delete", redrive)
        assert told() == []  # the call deleted nothing

    def test_items_taken_from_a_client(self, house: House, told: Any):
        house.create()
        house.produce("a", "b", "c")
        first, second, third = house.lease(3)
        told()

        def retry(*ids: str, purpose: str) -> Any:
            items = [m.QueueRetryItem(id=id, unused=True) for id in ids]
            return house.begin("queue.retry", m.QueueRetryRequest(queue_name="q", items=items, purpose=purpose))

        retry(first.id, purpose="").result(5)
        assert told() == []  # a consumer retries its own item
        with pytest.raises(InvalidRequest):
            retry(second.id, first.id, third.id, purpose="release of me").result(5)
        assert told() == [("items handed back", {"queue": "q", "items": 1, "purpose": "release of me"})]
        retry(third.id, purpose="release of me").result(5)
        assert told() == [("items handed back", {"queue": "q", "items": 1, "purpose": "release of me"})]

    def test_imports(self, house: House, told: Any):
        house.create()
        told()
        items = [m.StorageItem(payload=b"x", source_id="s"), m.StorageItem(payload=b"y", source_id="s")]
        house.call("storage/items.import", m.StorageItemsImportRequest(queue_name="q", items=items))
        assert told() == [("items imported", {"queue": "q", "partitions": "0", "items": 1})]


class TestPartitions:
    def test_states(self, house: House, told: Any):
        house.create(partitions=3)
        told()
        house.ask("pause", 0, 1)
        house.ask("pause", 0, 1)  # this update changes nothing
        house.ask("pause", 2, for_="1m")
        house.ask("resume", 0)
        house.ask("drain", 1)
        house.ask("offline", 0)
        (pause, pause_for, resume, drain, offline) = told()
        assert pause == ("partitions paused", {"queue": "q", "partitions": "0,1"})
        assert pause_for[1]["resume_at"].endswith("Z")
        assert resume == ("partitions resumed", {"queue": "q", "partitions": "0"})
        assert drain == ("partitions are draining", {"queue": "q", "partitions": "1"})
        assert offline == ("partitions taken offline", {"queue": "q", "partitions": "0"})

    def test_reloads(self, house: House, told: Any):
        house.create(partitions=2)
        house.produce("a")
        told()
        house.ask("reload")
        expected = {"queue": "q", "partitions": "0,1", "ready": 1, "leased": 0, "scheduled": 0}
        assert told() == [("partitions reloaded", expected)]

    def test_jobs(self, house: House, told: Any, tmp_path: Path):
        house.create()
        house.produce("a", "b")
        told()
        job = house.job("backup", to=str(tmp_path / "backup"))
        started, done = told()
        assert started[0] == "job started" and done[0] == "job done"
        about = {"queue": "q", "partitions": "0", "job": job.job_id, "kind": "backup"}
        assert {**about, "to": str(tmp_path / "backup")}.items() <= started[1].items()
        assert done[1] == {**about, "done": job.done, "total": job.total}

    def test_a_recovery_is_told_and_since_follows_it(self, house: House, told: Any, monkeypatch: pytest.MonkeyPatch):
        house.create()
        house.produce("a")
        created = house.statuses()[0].since
        storage = house.registry.storages["default"]
        told()

        def fails(*_: Any) -> None:
            raise StorageError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(type(storage), "write", fails)
            patch.setattr(type(storage), "open", fails)
            waiting = house.begin_produce("b")
            house.until(lambda: house.states() == ["error"])
            failed = house.statuses()[0].since
        house.advance("10s")
        waiting.result(20)
        recovered = house.statuses()[0]
        assert created == failed and recovered.since is not None and failed is not None
        assert recovered.state == "available" and recovered.since == failed + 10 * SECOND
        (error, recovery) = told()
        assert error[0] == "partition is in error" and error[1]["reason"] == "the disk is gone"
        assert recovery == (
            "partition recovered",
            {"queue": "q", "partition": 0, "state": "available", "seconds_in_error": 10, "items": 1, "scheduled": 0},
        )
        house.ask("pause")
        assert house.statuses()[0].since == house.clock.now_us()
