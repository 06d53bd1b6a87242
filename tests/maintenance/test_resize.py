"""Growing and shrinking a queue that is in use."""

from __future__ import annotations

from typing import Any

import pytest

from querator.config_file import LimitsConfig
from querator.daemon.jobs import resize
from querator.daemon.queue import Logical, Partition
from querator.errors import Conflict, InvalidRequest, RetryRequest
from querator.limits import READY_WINDOW_READ_PERCENT
from querator.wire import messages as m
from tests.maintenance.house import SECOND, House


def update(house: House, partitions: int, **settings: Any) -> None:
    house.call("queues.update", m.QueueInfo(queue_name="q", requested_partitions=partitions, **settings))


def resize_job(house: House) -> m.Job:
    (job,) = [job for job in house.call("jobs.list", m.JobsListRequest()).items if job.kind == "resize"]
    return house.ended(job.job_id)


def test_growing_is_done_when_update_answers(house: House):
    house.create()
    house.produce("a")
    update(house, 3)
    assert house.states() == ["available"] * 3
    for n in range(4):
        house.produce(f"{n}")
    assert [s.total for s in house.statuses()] == [1, 2, 2]
    house.restart()
    assert [s.total for s in house.statuses()] == [1, 2, 2]
    assert house.call("queues.info", m.QueuesInfoRequest(queue_name="q")).requested_partitions == 3


def test_new_partitions_have_the_configured_limits(house: House):
    house.create()
    bounds = house.logical().files.bounds = LimitsConfig(ready_window_items=17)
    update(house, partitions=2)
    assert house.partition(1).bounds is bounds
    assert house.partition(1).contents.window.read_items_max == 17 * READY_WINDOW_READ_PERCENT // 100


def test_everything_waits_while_all_is_paused_and_goes_to_the_new_one(house: House):
    house.create()
    house.ask("pause")
    waiting = house.begin_produce("a")
    update(house, 2)
    assert waiting.result(5) is None
    assert [s.total for s in house.statuses()] == [0, 1]


def test_shrinking_lets_go_of_a_file_whose_keys_cannot_be_taken_over_yet(house: House, monkeypatch: pytest.MonkeyPatch):
    house.create(partitions=2)
    for name in ("a", "b"):
        items = [m.QueueProduceItem(bytes_=name.encode())]
        request = m.QueueProduceRequest(queue_name="q", request_timeout="1m", items=items, request_id=name)
        house.begin("queue.produce", request).result(10)
    assert [s.total for s in house.statuses()] == [1, 1]
    refused: list[RetryRequest] = []
    change = resize.change

    async def refuse_once(logical: Logical, partitions: list[Partition], run: Any) -> Any:
        if partitions and not refused:
            try:
                raise RetryRequest("the partition is being reloaded")
            except RetryRequest as error:
                refused.append(error)  # an error in a reference cycle stays as long
                raise
        return await change(logical, partitions, run)

    monkeypatch.setattr(resize, "change", refuse_once)
    update(house, 1)
    assert resize_job(house).state == "done"
    assert refused and sorted(house.contents()) == ["a", "b"]


def test_shrinking_moves_everything_and_removes_the_highest_numbers(house: House):
    house.create(partitions=4)
    texts = [f"{n}" for n in range(400)]
    for start in range(0, 400, 10):
        house.produce(*texts[start : start + 10])
    house.produce("later", at=house.clock.now_us() + 60 * SECOND)
    files = [house.file(n) for n in range(4)]
    update(house, 2)
    job = resize_job(house)
    assert (job.state, job.reason) == ("done", "")
    assert [s.state for s in house.statuses()] == ["available"] * 2
    assert sorted(house.contents()) == sorted([*texts, "later"])
    assert [file.exists() for file in files] == [True, True, False, False]
    house.restart()
    assert sorted(house.contents()) == sorted([*texts, "later"])
    assert isinstance(house.refused("pause", 2), InvalidRequest)


def test_a_partition_that_cannot_be_emptied_is_not_removed(house: House):
    house.create(partitions=3)
    house.produce("a")
    house.ask("offline", 2)
    refusal = house.refusal("queues.update", m.QueueInfo(queue_name="q", requested_partitions=1))
    assert refusal.message == "cannot remove partition; partition '2' is unavailable, reload it to bring it back"
    house.ask("reload", 2)
    house.ask("offline", 0)
    refusal = house.refusal("queues.update", m.QueueInfo(queue_name="q", requested_partitions=1))
    assert "no partition that stays is open" in refusal.message
    assert house.call("queues.info", m.QueuesInfoRequest(queue_name="q")).requested_partitions == 3
    house.ask("reload", 0)
    update(house, 1)
    assert resize_job(house).state == "done" and house.contents() == ["a"]


def test_leases_of_a_partition_that_goes_can_be_completed_until_they_end(house: House):
    house.create(partitions=2)
    house.ask("pause", 0)
    house.produce("a", "b", "c")
    items = house.lease(3)
    house.ask("resume", 0)
    update(house, 1)
    house.until(lambda: house.logical().queue.requested_partitions == 1)
    assert house.complete(items[0].id).result(5) is None
    house.advance("61s")
    assert resize_job(house).state == "done"
    assert sorted(house.contents()) == ["b", "c"]
    # The removed partition's completed items stay completed, and its lost leases stay lost, also after a restart.
    for _ in range(2):
        assert house.complete(items[0].id).result(5) is None
        error = house.complete(items[1].id).exception(5)
        assert isinstance(error, InvalidRequest) and error.message.endswith("its lease was lost")
        house.restart()


def test_request_ids_outlive_their_partition(house: House):
    house.create(partitions=2)
    house.ask("pause", 0)
    item = m.QueueProduceItem(utf8="once")
    request = m.QueueProduceRequest(queue_name="q", request_timeout="1m", items=[item], request_id="r")
    house.call("queue.produce", request)
    house.ask("resume", 0)
    update(house, 1)
    assert resize_job(house).state == "done"
    house.restart()
    house.call("queue.produce", request)
    assert house.contents() == ["once"]


def test_a_shrink_that_is_cancelled_leaves_what_is_left(house: House):
    house.create(partitions=3)
    house.ask("pause", 0, 1)
    house.produce("a", "b")
    house.lease(1)
    house.ask("resume", 0, 1)
    update(house, 1)
    (job,) = house.call("jobs.list", m.JobsListRequest()).items
    error = house.refusal("queues.update", m.QueueInfo(queue_name="q", requested_partitions=5))
    assert isinstance(error, Conflict) and "removes partitions" in error.message
    house.cancel(job.job_id)
    count = len(house.statuses())
    assert count >= 2
    assert house.call("queues.info", m.QueuesInfoRequest(queue_name="q")).requested_partitions == count
    assert sorted(house.contents()) == ["a", "b"]
    house.produce("x")
    house.restart()
    assert len(house.statuses()) == count


def test_a_shrink_is_taken_up_again_after_a_restart(house: House):
    house.create(partitions=2)
    house.ask("pause", 0)
    house.produce("a", "b")
    house.lease(1)
    house.ask("resume", 0)
    update(house, 1)
    house.restart()
    (job,) = house.call("jobs.list", m.JobsListRequest()).items
    assert job.state == "running"
    house.advance("61s")
    assert resize_job(house).state == "done"
    assert sorted(house.contents()) == ["a", "b"]


def test_deleting_the_queue_ends_its_jobs(house: House):
    house.create(partitions=2)
    house.ask("pause", 0)
    house.produce("a")
    house.lease(1)
    update(house, 1)
    house.call("queues.delete", m.QueuesDeleteRequest(queue_name="q"))
    (job,) = house.call("jobs.list", m.JobsListRequest()).items
    assert job.state == "cancelled"
    assert list((house.directory / "default").glob("*.duckdb")) == []


@pytest.mark.parametrize("count", [0, 3])
def test_the_same_number_or_none_changes_nothing(house: House, count):
    house.create(partitions=3)
    update(house, count, reference="r")
    assert len(house.statuses()) == 3 and house.call("jobs.list", m.JobsListRequest()).items == []
