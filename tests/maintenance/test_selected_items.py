"""items.redrive and items.delete: jobs on the ready items of a queue that meet a condition."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from querator.daemon.access import Caller, CallerKind
from querator.daemon.jobs.selected_items import redrive as redrive_call
from querator.errors import InvalidRequest, TimedOut, Unreachable
from querator.items import Role
from querator.wire import messages as m
from tests.daemons import Daemon
from tests.maintenance.house import House
from tests.maintenance.inspection import contents, jobs_ended


def let_die(house: House, *texts: str, queue: str = "q", kind: str = "") -> None:
    items = [m.QueueProduceItem(utf8=text, kind=kind) for text in texts]
    house.call("queue.produce", m.QueueProduceRequest(queue_name=queue, request_timeout="1m", items=items))
    leased = house.lease(len(texts), queue=queue)
    dead = [m.QueueRetryItem(id=item.id, dead=True, reason="no such address") for item in leased]
    house.call("queue.retry", m.QueueRetryRequest(queue_name=queue, partition=0, items=dead))


@pytest.fixture
def dead(house: House) -> House:
    house.create("dead", partitions=2)
    house.create("q", dead_queue="dead")
    return house


def redrive(house: House, **fields: Any) -> m.Job:
    reply = house.call("items.redrive", m.ItemsRedriveRequest(queue_name="dead", **fields))
    return house.ended(reply.job_id)


def test_dead_items_return_to_the_queue_in_which_they_died(dead: House) -> None:
    dead.create("other", dead_queue="dead")
    let_die(dead, "a", "b")
    let_die(dead, "c", queue="other")
    job = redrive(dead, expected=3)
    assert (job.state, job.done, job.total, job.kind) == ("done", 3, 3, "redrive")
    assert (dead.contents("q"), dead.contents("other"), dead.contents("dead")) == (["a", "b"], ["c"], [])


def test_a_redriven_item_keeps_its_history_and_names_its_source(dead: House) -> None:
    let_die(dead, "a", kind="welcome")
    redrive(dead)
    (stored,) = dead.call("storage/items.list", m.StorageItemsListRequest(queue_name="q")).items
    found = dead.call("items.inspect", m.ItemsInspectRequest(queue_name="q", id=stored.id))
    assert (found.item.kind, found.item.attempts) == ("welcome", 0) and found.item.source_id
    assert [one.reason for one in found.failed_attempts] == ["no such address"]
    assert [one.queue_name for one in found.history] == ["q"]


def test_only_items_that_meet_the_condition_are_taken(dead: House) -> None:
    let_die(dead, "a", "b", kind="x")
    let_die(dead, "c", kind="y")
    assert redrive(dead, where="kind = 'y'").done == 1
    assert (dead.contents("q"), sorted(dead.contents("dead"))) == (["c"], ["a", "b"])
    reply = dead.call("items.delete", m.ItemsDeleteRequest(queue_name="dead", where="text = 'a'"))
    assert dead.ended(reply.job_id).done == 1
    assert dead.contents("dead") == ["b"]


def test_a_leased_item_is_left_to_its_holder(dead: House) -> None:
    let_die(dead, "a", "b")
    dead.lease(1, queue="dead")
    assert redrive(dead).done == 1
    assert len(dead.contents("dead")) == 1


def test_items_that_die_after_the_start_are_not_part_of_the_job(dead: House) -> None:
    let_die(dead, "a")
    dead.ask("pause", 0)  # the redrive waits, because its target takes nothing
    reply = dead.call("items.redrive", m.ItemsRedriveRequest(queue_name="dead"))
    dead.produce("late", queue="dead")
    dead.ask("resume", 0)
    assert dead.ended(reply.job_id).done == 1
    assert dead.contents("dead") == ["late"]


def test_items_of_unknown_origin_stay_and_the_job_says_so(dead: House) -> None:
    let_die(dead, "a")
    dead.produce("b", queue="dead")
    job = redrive(dead)
    assert job.state == "failed" and job.reason == "redrove 1 items, these stayed: 1 (origin unknown)"
    assert dead.contents("dead") == ["b"]
    assert redrive(dead, to="q").done == 1
    assert sorted(dead.contents("q")) == ["a", "b"]


def test_a_redrive_sends_items_only_where_its_caller_may_operate(dead: House) -> None:
    dead.create("secret", dead_queue="dead")
    let_die(dead, "a")
    let_die(dead, "b", queue="secret")
    caller = Caller(CallerKind.TOKEN, "ann", Role.OPERATOR, ["q", "dead"])
    reply = dead.run(redrive_call(dead.registry, m.ItemsRedriveRequest(queue_name="dead"), caller))
    job = dead.ended(reply.job_id)
    assert job.state == "failed" and "may not send to their origin" in job.reason
    assert (dead.contents("q"), dead.contents("secret"), dead.contents("dead")) == (["a"], [], ["b"])


def test_a_job_goes_on_after_a_restart(dead: House) -> None:
    texts = [f"{number:04}" for number in range(300)]
    let_die(dead, *texts)
    dead.ask("pause", 0)
    reply = dead.call("items.redrive", m.ItemsRedriveRequest(queue_name="dead"))
    dead.restart()
    assert dead.show_job(reply.job_id).state == "running"
    dead.ask("resume", 0)
    assert dead.ended(reply.job_id).state == "done"
    assert sorted(dead.contents("q")) == texts and dead.contents("dead") == []


def test_a_job_that_waits_can_be_cancelled(dead: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("querator.daemon.bulk.selections._TIMEOUT_NS", 50_000_000)
    let_die(dead, "a")
    dead.ask("pause", 0)
    reply = dead.call("items.redrive", m.ItemsRedriveRequest(queue_name="dead"))
    dead.until(lambda: dead.show_job(reply.job_id).reason.startswith("waits: "))
    dead.cancel(reply.job_id)
    assert dead.show_job(reply.job_id).state == "cancelled"
    assert dead.contents("dead") == ["a"]


@pytest.mark.parametrize(
    ("call", "request_", "text"),
    [
        ("items.redrive", m.ItemsRedriveRequest(queue_name="dead", where="kind ="), "where is invalid"),
        ("items.redrive", m.ItemsRedriveRequest(queue_name="dead", to="dead"), "into itself"),
        ("items.redrive", m.ItemsRedriveRequest(queue_name="dead", to="nowhere"), "queue does not exist"),
        ("items.delete", m.ItemsDeleteRequest(queue_name="dead"), "where is invalid"),
    ],
)
def test_what_makes_no_sense_is_refused_and_starts_no_job(dead: House, call: str, request_: Any, text: str) -> None:
    error = dead.refusal(call, request_)
    assert isinstance(error, InvalidRequest) and text in error.message
    assert dead.call("jobs.list", m.JobsListRequest()).items == []


@pytest.mark.parametrize("step", ["redrive.imported", "redrive.imported:2"])
def test_a_redrive_that_is_killed_between_its_steps_moves_nothing_twice(tmp_path: Path, step: str) -> None:
    with Daemon(tmp_path, failpoint=step) as daemon:
        client = daemon.client
        client.create_queue("dead")
        client.create_queue("q", dead_queue="dead")
        texts = [f"{number:04}" for number in range(2_000)]
        for first in range(0, 2_000, 1_000):
            client.produce("q", texts[first : first + 1_000])
            client.retry("q", [item.id for item in client.lease("q", 1_000).items], dead=True)
        with contextlib.suppress(Unreachable, TimedOut):
            client.redrive_items("dead")
        daemon.until_killed()
        daemon.start()
        assert [(job.kind, job.state) for job in jobs_ended(daemon.client)] == [("redrive", "done")]
        assert sorted(contents(daemon.client, "q")) == texts and contents(daemon.client, "dead") == []
