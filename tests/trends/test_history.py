"""The history of queues, sampled by a whole service with a test clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import limits
from querator.daemon.trends import sampling, trend_calls
from querator.wire import messages as m
from tests.maintenance.house import House


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(sampling, "LOOK_SECONDS", 3600.0)  # tests take the samples themselves
    house = House(tmp_path)
    step(house)
    yield house
    house.close()


def step(house: House, by: str = "10s") -> None:
    trends = house.registry.trends
    house.until(lambda: trends.is_open)
    house.advance(by)
    house.run(trends.look(house.registry))


def history(house: House, last: str = "", queue: str = "q") -> list[m.HistorySample]:
    reply = house.call("queues.history", m.QueuesHistoryRequest(queue_name=queue, last=last))
    assert isinstance(reply, m.QueuesHistoryResponse)
    return list(reply.samples)


def overview(house: House, **request: object) -> m.QueuesOverviewResponse:
    reply = house.call("queues.overview", m.QueuesOverviewRequest(**request))  # type: ignore[arg-type]
    assert isinstance(reply, m.QueuesOverviewResponse)
    return reply


def test_a_sample_says_what_a_queue_holds_and_did(house: House) -> None:
    house.create()
    step(house)
    house.produce(*"abcdef")
    leased = house.lease(4)
    house.complete(leased[0].id, leased[1].id).result(10)
    step(house)
    before, sample = history(house)
    assert (before.ready, before.produced) == (0, 0)
    assert (sample.ready, sample.leased, sample.produced, sample.leases, sample.completed) == (2, 2, 6, 4, 2)
    assert sample.seconds == 10 and sample.oldest_age_ms == 10_000
    assert sample.wait_ms == 2 * 10_000 // 4 and sample.held_ms == 2 * 10_000 // 2


def test_nothing_is_known_of_a_wait_while_nothing_is_leased(house: House) -> None:
    house.create()
    step(house)
    house.produce("a")
    step(house)
    assert history(house)[1].wait_ms is None and history(house)[1].held_ms == 0


def test_the_history_survives_a_restart(house: House) -> None:
    house.create()
    step(house)
    house.produce("a", "b")
    step(house)
    before = history(house)
    house.restart()
    step(house)
    house.produce("c")
    step(house)
    after = history(house)
    assert after[: len(before)] == before
    assert after[-1].ready == 3 and after[-1].produced == 1


def test_a_queue_of_the_same_name_begins_a_history_of_its_own(house: House) -> None:
    house.create()
    step(house)
    house.produce("a")
    step(house)
    house.call("queues.delete", m.QueuesDeleteRequest(queue_name="q"))
    house.advance("1s")
    house.create()
    step(house)
    step(house)
    assert [sample.ready for sample in history(house)] == [0, 0]


def test_a_day_and_a_week_are_kept_in_coarser_steps(house: House) -> None:
    house.create()
    for _ in range(200):
        house.produce("a")
        step(house)
    steps = history(house, "24h")
    assert len(steps) in (6, 7) and sum(one.produced for one in steps) <= 200
    assert {one.seconds for one in steps[1:]} == {300} and {one.produced for one in steps[1:]} == {30}
    assert [one.ready for one in steps] == sorted(one.ready for one in steps)
    assert len(history(house)) in (90, 91)
    assert len(history(house, "168h")) in (1, 2)


def test_more_than_a_week_is_refused(house: House) -> None:
    house.create()
    error = house.refusal("queues.history", m.QueuesHistoryRequest(queue_name="q", last="169h"))
    assert error.message == "last is invalid; the history covers 7d"
    error = house.refusal("queues.history", m.QueuesHistoryRequest(queue_name="q", last="soon"))
    assert error.message.startswith("last is invalid")


def test_the_overview_puts_trouble_first_and_pages_through_the_rest(house: House) -> None:
    for name in ("a", "b", "c", "dead"):
        house.create(name)
    house.create("e", dead_queue="dead")
    house.produce("x", queue="c")
    house.ask("pause", 0, queue="b")
    step(house)
    page = overview(house, limit=2)
    assert [one.queue_name for one in page.items] == ["b", "c"]
    assert (page.queues, page.matching, page.troubled, page.ready) == (5, 5, 1, 1)
    assert page.items[0].state == "paused"
    assert [one.queue_name for one in overview(house, sort="name", offset=3).items] == ["dead", "e"]
    assert [one.queue_name for one in overview(house, contains="DE").items] == ["dead"]
    assert overview(house, contains="dead").items[0].is_dead_queue


def test_the_overview_is_the_same_however_often_it_pauses(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        house.create(f"q{number}")
        if number % 3:
            house.produce(*("x" * (number % 3)), queue=f"q{number}")
    step(house)
    whole = overview(house)
    assert [one.queue_name for one in whole.items] == ["q2", "q5", "q1", "q4", "q0", "q3", "q6"]
    monkeypatch.setattr(trend_calls, "SLICE_QUEUES", 2)
    assert overview(house) == whole
    page = overview(house, offset=3, limit=2)
    assert [one.queue_name for one in page.items] == ["q4", "q0"]
    assert (page.queues, page.matching, page.ready) == (7, 7, 6)


def test_queues_in_which_items_died_lately_come_before_others(house: House) -> None:
    for name in ("calm", "dying"):
        house.create(name)
        house.produce(*"abc", queue=name)
    step(house)
    (item,) = house.lease(1, queue="dying")
    house.call("queue.retry", m.QueueRetryRequest(queue_name="dying", items=[m.QueueRetryItem(id=item.id, dead=True)]))
    step(house)
    page = overview(house)
    assert [one.queue_name for one in page.items] == ["dying", "calm"] and page.died == 1
    assert [one.died for one in page.items] == [1, 0]
    for _ in range(3):
        step(house, "5m")
    page = overview(house)
    assert [one.queue_name for one in page.items] == ["calm", "dying"] and page.died == 0


def die(house: House, queue: str) -> None:
    (item,) = house.lease(1, queue=queue)
    house.call("queue.retry", m.QueueRetryRequest(queue_name=queue, items=[m.QueueRetryItem(id=item.id, dead=True)]))


def test_the_deaths_of_each_queue_add_up_to_their_sum_also_after_a_restart(house: House) -> None:
    for name in ("calm", "dying"):
        house.create(name)
        house.produce(*"abcd", queue=name)
    step(house)
    die(house, "dying")
    step(house)
    house.restart()
    die(house, "dying")
    for _ in range(2):
        step(house)
        page = overview(house)
        assert [(one.queue_name, one.died) for one in page.items] == [("dying", 2), ("calm", 0)] and page.died == 2
    for _ in range(3):
        step(house, "5m")
    assert overview(house).died == 0


def test_deaths_before_the_first_sample_count_in_the_row_as_in_the_sum(house: House) -> None:
    house.create()
    house.produce("a")
    die(house, "q")
    for _ in range(2):
        step(house)
        page = overview(house)
        assert page.died == 1 and [one.died for one in page.items] == [1]


def test_what_happens_before_the_first_sample_is_in_the_history(house: House) -> None:
    house.create()
    house.produce("a", "b")
    die(house, "q")
    assert overview(house).items  # somebody who looks takes nothing out of it
    step(house)
    (sample,) = history(house)
    assert (sample.produced, sample.dead, sample.seconds) == (2, 1, 10)


def test_the_overview_shows_the_present_and_depths_of_the_past(house: House) -> None:
    house.create()
    step(house)
    for _ in range(6):
        house.produce("a")
        step(house)
    house.produce("a")
    (row,) = overview(house).items
    assert row.ready == 7 and row.produced_last_minute == 7
    assert row.depths and row.depths == sorted(row.depths) and row.depths[-1] == 6


def test_a_round_that_takes_too_long_goes_on_with_the_queues_it_left_out(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        house.create(f"q{number}")
    step(house)
    monkeypatch.setattr(sampling, "SLICE_SECONDS", -1.0)
    monkeypatch.setattr(limits, "TREND_ROUND_SECONDS_MAX", -1.0)  # each round ends after one queue
    for _ in range(8):
        step(house)
    assert [len(history(house, queue=f"q{number}")) for number in range(8)] == [2] * 8
