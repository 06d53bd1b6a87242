"""The Logical: what each request gets, in which order, and what is stored afterwards."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from querator import limits
from querator.config_file import LimitsConfig
from querator.daemon.queue import lifecycle
from querator.daemon.queue.requests import REPEATED, Arrival, LeaseItems, Produce, key_of
from querator.daemon.store.base import StorageError
from querator.items import Item, State
from querator.wire.leased import LeaseReply
from querator.wire.messages import QueueProduceItem
from tests.daemon.driver import FAR_NS, SECOND, Answer, Driver
from tests.memory_storage import MemoryStore


@pytest.fixture
def d():
    driver = Driver()
    yield driver
    driver.check_counters()


def spread(d: Driver, queue: str = "q") -> list[tuple[int, int]]:
    return [(p.counts.leased, p.contents.window.waiting) for p in d.logicals[queue].partitions]


def ids(answer) -> list[str]:
    return [lease.id for lease in answer.leases]


class TestDistribution:
    def test_two_produces_fill_two_partitions(self, d):
        d.create(partitions=2)
        d.produce(10)
        d.produce(11)
        assert spread(d) == [(0, 10), (0, 11)]
        assert len(d.lease(10).leases) == len(d.lease(10).leases) == 10
        assert sum(leased for leased, _ in spread(d)) == 20

    def test_a_lease_does_not_wait_for_a_read_while_another_partition_has_items(self):
        d = Driver(bounds=LimitsConfig(ready_window_items=4))
        d.create(partitions=2)
        d.produce(9)
        d.produce(2)
        d.restart()  # with four items of the first partition in memory
        d.hold_reads = True
        assert [len(d.lease(4).leases), spread(d)] == [4, [(4, 5), (0, 2)]]
        assert [len(d.lease(2).leases), spread(d)] == [2, [(4, 5), (2, 0)]]
        waits = d.lease(2)
        assert waits.waiting
        d.hold_reads = False
        d.run_reads()
        d.run()
        assert len(waits.leases) == 2

    def test_five_produces_and_three_leases_over_two_partitions(self, d):
        d.create(partitions=2)
        for _ in range(5):
            d.produce(10)
        assert spread(d) == [(0, 30), (0, 20)]
        answers = [d.lease(n, run=False) for n in (5, 10, 20)]
        d.run()
        assert [len(a.leases) for a in answers] == [5, 10, 20]
        assert spread(d) == [(15, 15), (20, 0)]

    def test_ten_produces_over_ten_partitions_and_ten_leases_empty_them(self, d):
        d.create(partitions=10)
        for _ in range(10):
            d.produce(5)
        assert spread(d) == [(0, 5)] * 10
        leased = [d.lease(5) for _ in range(10)]
        assert sorted(a.result.partition for a in leased) == list(range(10))
        assert spread(d) == [(5, 0)] * 10

    def test_one_produce_is_shared_by_all_parked_leases(self, d):
        d.create(partitions=5)
        parked = [d.lease(10) for _ in range(5)]
        assert all(a.waiting for a in parked)
        d.produce(10)
        assert [len(a.leases) for a in parked] == [2] * 5

    @pytest.mark.parametrize(("wants", "gets"), [((20, 6, 1), (16, 6, 1)), ((5, 10, 20), (5, 9, 9))])
    def test_items_are_dealt_in_rounds(self, d, wants, gets):
        d.create()
        d.produce(23)
        answers = [d.lease(n, run=False) for n in wants]
        d.run()
        assert tuple(len(a.leases) for a in answers) == gets

    def test_items_leave_in_the_order_in_which_they_came(self, d):
        d.create()
        for n in range(20):
            d.produce([f"{n}"])
        assert d.payloads(d.lease(20).leases) == [f"{n}" for n in range(20)]

    def test_scheduled_items_are_spread(self, d):
        logical = d.create(partitions=4)
        later = d.now_us + 60 * SECOND
        for _ in range(20):
            d.produce(10, at=later)
        assert [p.counts.scheduled for p in logical.partitions] == [50] * 4

    def test_scheduled_items_that_came_by_retry_or_from_elsewhere_count_too(self, d):
        logical = d.create(partitions=2)
        later = d.now_us + 60 * SECOND
        d.produce(10)
        assert d.retry(ids(d.lease(10)), at=later).result is None
        assert spread(d) == [(0, 0), (0, 0)] and logical.partitions[0].counts.scheduled == 10
        d.produce(9)
        assert spread(d) == [(0, 0), (0, 9)]
        item = Item(0, d.now_us, later + SECOND, b"x", enqueue_at=later)
        d._submit("q", lambda a: Arrival(a, FAR_NS, [item] * 5, [f"moved {n}" for n in range(5)], uncertain=False))
        assert [p.counts.scheduled for p in logical.partitions] == [10, 5]

    def test_scheduled_items_do_not_draw_leases_to_their_partition(self, d):
        d.create(partitions=2)
        d.produce(100, at=d.now_us + 60 * SECOND)
        d.produce(5)
        assert spread(d) == [(0, 0), (0, 5)]
        answers = [d.lease(1, run=False) for _ in range(5)]
        d.run()
        assert [answer.result.partition for answer in answers] == [1] * 5


class TestLease:
    def test_a_parked_client_cannot_lease_twice(self, d):
        d.create()
        d.lease(client="me")
        assert d.lease(client="me").error.startswith("duplicate client id;")

    def test_a_client_id_is_free_again_when_its_client_is_gone(self, d):
        logical = d.create()
        d.lease(client="me")
        logical.abandon(next(iter(d.passes[logical].parked.waiting.values())))
        again = d.lease(client="me")
        d.produce(1)
        assert len(again.leases) == 1

    def test_it_times_out_when_nothing_comes(self, d):
        d.create()
        lease = d.lease()
        d.elapse(9)
        assert lease.waiting
        d.elapse(2)
        assert lease.error == "request timeout; no items are in the queue, try again"

    def test_a_lease_that_ends_wakes_the_next_client(self, d):
        d.create(lease_s=60)
        d.produce(["x"])
        first = d.lease()
        second = d.lease()
        d.advance(60)
        assert second.waiting
        d.advance(0.001)
        assert d.payloads(second.leases) == ["x"]
        assert second.leases[0].attempts == 2 and second.leases[0].id != first.leases[0].id

    def test_complete_and_lease_in_one_request(self, d):
        d.create()
        d.produce(["a", "b"])
        first = d.lease()
        second = d.lease(completes=ids(first))
        assert d.payloads(second.leases) == ["b"]
        assert d.stored() == ["b"]

    def test_nothing_is_leased_when_an_id_cannot_be_completed(self, d):
        d.create()
        d.produce(["a", "b"])
        assert d.lease(completes=["nope"]).error.startswith("invalid storage id; 'nope'")
        assert spread(d) == [(0, 2)]

    def test_completed_although_there_is_nothing_to_lease(self, d):
        d.create()
        d.produce(["a"])
        first = d.lease()
        second = d.lease(completes=ids(first))
        d.elapse(11)
        assert second.error.startswith("request timeout;")
        assert d.stored() == []

    def test_leases_that_were_completed_do_not_pile_up(self, d):
        logical = d.create(lease_s=3600)
        for _ in range(30):
            d.produce(1000)
            d.complete(ids(d.lease(1000)))
        assert logical.partitions[0].contents.leases.ends_ids <= 6_000

    def test_attempts_stop_at_the_highest_number_that_the_wire_can_carry(self, d):
        logical = d.create()
        d.produce(1)
        logical.partitions[0].contents.window.ready[0].attempts = (1 << 31) - 1
        assert d.lease().leases[0].attempts == (1 << 31) - 1


def test_the_oldest_age_is_that_of_waiting_items_and_a_scrape_walks_no_leases(d, monkeypatch):
    """A scrape could look at only some of thousands of leases, and would miss an older one among the rest."""

    class Leases(dict):
        def values(self):
            raise AssertionError("a scrape walks leases")

    logical = d.create(lease_s=600)
    d.produce(1)
    d.advance(60)
    d.produce(1_000)
    assert len(d.lease(1_000).leases) == 1_000
    (partition,) = logical.partitions
    leases = partition.contents.leases
    monkeypatch.setattr(leases, "by_id", Leases(leases.by_id))
    assert logical.oldest_created_at() == d.now_us  # the item of a minute ago is leased
    monkeypatch.undo()
    d.lease()
    assert logical.oldest_created_at() is None


def test_an_empty_partition_is_opened_without_looking_for_its_items(d, monkeypatch):
    def not_asked(*_):
        raise AssertionError("a file that has no items is asked for them")

    d.create()
    for name in ("leased", "scheduled", "ready", "request_ids"):
        monkeypatch.setattr(MemoryStore, name, not_asked)
    d.restart()
    (partition,) = d.logicals["q"].partitions
    assert partition.store is not None and partition.counts.total == 0


class TestComplete:
    def test_twice_is_once(self, d):
        d.create()
        d.produce(1)
        leased = ids(d.lease())
        assert d.complete(leased).result is None
        assert d.complete(leased).result is None
        assert d.complete(leased * 2).result is None

    def test_ids_of_several_partitions(self, d):
        d.create(partitions=3)
        for _ in range(3):
            d.produce(2)
        everything = [i for _ in range(3) for i in ids(d.lease(2))]
        assert d.complete(everything).result is None
        assert spread(d) == [(0, 0)] * 3

    def test_stops_at_the_first_bad_id_and_keeps_what_was_before_it(self, d):
        d.create()
        d.produce(["a", "b", "c"])
        a, b, c = ids(d.lease(3))
        assert d.complete([a, "bad", b, c]).error.startswith("invalid storage id; 'bad'")
        assert d.stored() == ["b", "c"]

    def test_an_item_that_waits_cannot_be_completed(self, d):
        logical = d.create()
        d.produce(["a", "b"])
        (a,) = ids(d.lease(1))
        waiting = logical.partitions[0].contents.window.ready[0]
        from querator import ids as texts

        text = texts.encode(logical.partitions[0].prefix, waiting.seq)
        assert d.complete([text, a]).error == f"item(s) cannot be completed; '{text}' is not marked as leased"
        assert spread(d) == [(1, 1)]

    def test_a_lost_lease_is_reported(self, d):
        d.create()
        d.produce(["a"])
        (old,) = ids(d.lease())
        d.advance(61)
        assert d.complete([old]).error == f"invalid storage id; '{old}' does not exist, its lease was lost"
        d.restart()
        assert d.complete([old]).error == f"invalid storage id; '{old}' does not exist, its lease was lost"


class TestRetry:
    def test_goes_to_the_tail_under_a_new_id(self, d):
        d.create()
        d.produce(["a", "b"])
        (a,) = ids(d.lease())
        assert d.retry([a]).result is None
        leased = d.lease(2).leases
        assert d.payloads(leased) == ["b", "a"]
        assert [lease.attempts for lease in leased] == [1, 2]
        assert a not in [lease.id for lease in leased]

    def test_into_the_future_is_scheduled(self, d):
        d.create()
        d.produce(["a"])
        (a,) = ids(d.lease())
        d.retry([a], at=d.now_us + 10 * SECOND)
        assert d.logicals["q"].partitions[0].counts.scheduled == 1
        assert d.complete([a]).error.endswith("its lease was lost")
        lease = d.lease()
        d.advance(10.001)
        assert d.payloads(lease.leases) == ["a"]

    def test_dead_without_a_dead_queue_is_gone(self, d):
        d.create()
        d.produce(["a"])
        assert d.retry(ids(d.lease()), dead=True).result is None
        assert d.stored() == []
        assert [(death.reason, death.dead_queue) for death in d.deaths] == [("client", "")]

    def test_dead_goes_to_the_dead_queue(self, d):
        d.create("dead")
        d.create(dead_queue="dead")
        d.produce(["a"])
        (a,) = ids(d.lease())
        assert d.retry([a], dead=True).result is None
        (lease,) = d.lease(queue="dead").leases
        assert (lease.item.payload, lease.item.source_id, lease.attempts) == (b"a", a, 1)
        assert d.stored() == []

    def test_an_unknown_id_is_refused(self, d):
        d.create()
        d.produce(["a"])
        (a,) = ids(d.lease())
        d.complete([a])
        assert d.retry([a]).error == f"invalid storage id; '{a}' does not exist"

    def test_ids_stay_lost_while_the_item_stays_in_another_partition(self, d):
        q = d.create(partitions=2, lease_s=60, expire_s=100_000)
        d.produce(["a"])
        (first,) = ids(d.lease())
        d.retry([first])
        (second,) = ids(d.lease())
        here = q.partitions[0]
        here.change_placement(msgspec.structs.replace(here.placement, requested=State.DRAINING))
        d.retry([second])
        assert spread(d) == [(0, 0), (0, 1)]
        for hours, is_lost in ((10, True), (30, False)):
            d.advance(hours * 3600)
            here.store.flush()
            here.store.forget(d.now_us)
            for old in (first, second):
                answer = d.complete([old])
                assert answer.error.endswith("its lease was lost") if is_lost else answer.result is None


class TestUnused:
    """An item that comes back without having been worked on does not use up an attempt."""

    @pytest.mark.parametrize("later", [0, 60 * SECOND])
    def test_an_unused_retry_does_not_count_as_an_attempt(self, d, later):
        d.create(max_attempts=2)
        d.produce(1)
        for _ in range(5):
            (lease,) = d.lease().leases
            assert lease.attempts == 1
            assert d.retry([lease.id], unused=True, at=d.now_us + later).result is None
            d.advance(61)
        (lease,) = d.lease().leases
        d.retry([lease.id])
        assert d.lease().leases[0].attempts == 2

    def test_it_does_not_count_either_when_the_item_goes_to_another_partition(self, d):
        logical = d.create(partitions=2)
        d.produce(1)
        (lease,) = d.lease().leases
        placement = logical.partitions[0].placement
        logical.partitions[0].change_placement(msgspec.structs.replace(placement, requested=State.DRAINING))
        assert d.retry([lease.id], unused=True).result is None
        answer = d.lease()
        assert (answer.result.partition, answer.leases[0].attempts) == (1, 1)

    def test_a_consumer_that_is_gone_before_its_answer_used_nothing(self, d):
        logical = d.create(max_attempts=1)
        d.produce(2)
        answer = Answer()
        request = LeaseItems(answer, FAR_NS, "gone", 2)
        d.failing_writes = lambda: logical.abandon(request)  # while the lease is being written
        logical.submit(request)
        d.run()
        assert answer.waiting
        again = d.lease(2)
        assert d.payloads(again.leases) == ["item 0", "item 1"]
        assert [lease.attempts for lease in again.leases] == [1, 1]

    def test_that_holds_also_while_the_daemon_stops(self, d):
        logical = d.create()
        d.produce(1)
        request = LeaseItems(Answer(), FAR_NS, "gone", 1)

        def stop_while_writing() -> None:
            logical.abandon(request)
            logical.stop()

        d.failing_writes = stop_while_writing
        logical.submit(request)
        d.run()
        d.failing_writes = lambda: None
        d.restart()
        assert d.lease().leases[0].attempts == 1


class TestLargeRequests:
    """Items that came together and are leased together have no object each, which nobody may notice."""

    def test_all_items_of_a_lease_are_completed_at_once(self, d):
        logical = d.create(partitions=2)
        d.produce(20)
        answers = [d.lease(16, run=False), d.lease(16, run=False)]
        d.run()
        assert [len(answer.leases) for answer in answers] == [10, 10]
        assert [d.complete(ids(answer)).result for answer in answers] == [None, None]
        assert (d.stored(), logical.counters.completed) == ([], 20)

    def test_some_of_them_can_be_treated_differently(self, d):
        d.create(lease_s=60)
        d.produce(20)
        leased = ids(d.lease(20))
        d.advance(30)
        d.extend(leased[:2], seconds=100)
        d.retry(leased[2:4])
        d.complete([leased[5], leased[4]])
        d.advance(31)  # the others end
        again = d.lease(100)
        assert d.payloads(again.leases) == [f"item {n}" for n in (2, 3, *range(6, 20))]
        assert {lease.attempts for lease in again.leases} == {2}
        assert d.complete(leased[:2]).result is None
        assert "its lease was lost" in d.complete(leased[6:8]).error

    def test_they_are_leased_after_a_restart_and_end_then(self, d):
        d.create(lease_s=60)
        d.produce(20)
        kept = ids(d.lease(16))
        d.restart()
        assert d.complete(kept[:15]).result is None
        d.advance(61)
        assert d.payloads(d.lease(20).leases) == ["item 16", "item 17", "item 18", "item 19", "item 15"]

    def test_those_that_a_client_did_not_get_come_back(self, d):
        logical = d.create()
        d.produce(20)
        request = LeaseItems(Answer(), FAR_NS, "gone", 16)
        d.failing_writes = lambda: logical.abandon(request)
        logical.submit(request)
        d.run()
        d.failing_writes = lambda: None
        again = d.lease(20)
        assert sorted(d.payloads(again.leases)) == sorted(f"item {n}" for n in range(20))
        assert {lease.attempts for lease in again.leases} == {1}


class TestExtend:
    def test_keeps_the_item(self, d):
        d.create(lease_s=60)
        d.produce(["a"])
        (a,) = ids(d.lease())
        d.advance(50)
        assert d.extend([a], seconds=100).result[0].deadline == d.now_us + 100 * SECOND
        d.advance(60)
        assert d.complete([a]).result is None

    def test_all_or_none(self, d):
        d.create()
        d.produce(["a"])
        (a,) = ids(d.lease())
        before = d.logicals["q"].partitions[0].contents.leases.by_id[a].deadline
        d.advance(1)
        assert d.extend([a, "x" * 27]).error.startswith("invalid storage id;")
        assert d.logicals["q"].partitions[0].contents.leases.by_id[a].deadline == before


class TestLifecycle:
    def test_the_last_attempt_kills(self, d):
        d.create("dead")
        d.create(max_attempts=2, dead_queue="dead")
        d.produce(["a"])
        d.lease()
        d.advance(61)
        (second,) = ids(d.lease())
        assert d.stored("dead") == []
        d.advance(61)
        assert (d.stored(), d.stored("dead")) == ([], ["a"])
        assert [(death.reason, death.attempts, death.id) for death in d.deaths] == [("max_attempts", 2, second)]

    def test_an_item_that_expires_while_it_waits_is_moved_once(self, d):
        d.create("dead", expire_s=10**6)
        d.create(expire_s=100, dead_queue="dead")
        d.produce(["a", "b"])
        d.advance(100)
        assert d.stored("dead") == []
        d.advance(0.001)
        assert (d.stored(), sorted(d.stored("dead"))) == ([], ["a", "b"])
        d.advance(1000)
        assert len(d.stored("dead")) == 2

    def test_items_may_become_durable_only_after_the_read_that_looks_for_them(self):
        d = Driver(bounds=LimitsConfig(ready_window_bytes=20))
        (partition,) = d.create().partitions
        d.produce(["x" * 30])
        d.hold_reads = True
        d.produce(["y" * 50], run=False)
        assert d.payloads(d.lease().leases) == ["x" * 30]
        (read,) = d.reads
        d.reads = []
        read.done([])  # the read was over before the write
        assert partition.store is not None
        d.hold_reads = False
        d.run()
        assert d.payloads(d.lease().leases) == ["y" * 50]

    def test_items_that_cannot_leave_do_not_keep_others_from_expiring(self):
        """As many items expire as one search reads, and the dead queue takes no items."""
        d = Driver(bounds=LimitsConfig(ready_window_items=4))
        d.create("dead").partitions[0].health.set_congested(True)
        d.create(dead_queue="dead", expire_s=60)
        d.produce(["a", "b", "c", "d"])
        d.advance(59)
        d.produce(["e", "f"])
        d.restart()
        d.logicals["dead"].partitions[0].health.set_congested(True)
        d.advance(2)
        assert d.payloads(d.lease(2).leases) == ["e", "f"]

    def test_a_history_that_cannot_be_decoded(self, d):
        """An operator wrote the history into the file by hand."""
        d.create("dead")
        d.create(dead_queue="dead")
        d.produce(["a"])
        (lease,) = d.lease().leases
        lease.item.history = b"garbage"
        assert d.retry([lease.id], dead=True).result is None
        assert d.stored("dead") == ["a"]

    def test_nothing_is_taken_from_a_valid_lease(self, d):
        d.create(lease_s=100, expire_s=100)
        d.produce(["a"])
        d.advance(99)
        (a,) = ids(d.lease())
        d.advance(50)
        assert d.complete([a]).result is None
        assert d.deaths == []

    def test_an_update_of_max_attempts_counts_for_items_that_are_there(self, d):
        logical = d.create()
        d.produce(["a"])
        d.lease()
        logical.queue.max_attempts = 1
        d.advance(61)
        assert [death.reason for death in d.deaths] == ["max_attempts"]

    def test_scheduled_items_enter_in_the_order_of_their_times(self, d):
        d.create()
        d.produce(["late"], at=d.now_us + 3 * SECOND)
        d.produce(["soon"], at=d.now_us + SECOND)
        d.produce(["same time"], at=d.now_us + 3 * SECOND)
        d.restart()
        lease = d.lease(5)
        d.advance(1)
        assert lease.waiting
        d.advance(0.000001)
        assert d.payloads(lease.leases) == ["soon"]
        d.advance(2)
        assert d.payloads(d.lease(5).leases) == ["late", "same time"]

    def test_leases_and_schedules_survive_a_restart(self, d):
        d.create()
        d.produce(["a", "b"])
        (a,) = ids(d.lease())
        d.restart()
        assert spread(d) == [(1, 1)]
        assert d.complete([a]).result is None
        assert d.payloads(d.lease(5).leases) == ["b"]

    def test_a_dead_letter_move_that_fails_is_tried_again(self, d):
        d.create("dead")
        d.create(max_attempts=1, dead_queue="dead")
        d.produce(["a"])
        d.lease()
        dead = d.logicals.pop("dead")
        d.advance(61)
        assert d.stored() == ["a"]
        d.logicals["dead"] = dead
        d.elapse(31)
        assert (d.stored(), d.stored("dead")) == ([], ["a"])

    def test_a_move_that_is_repeated_after_a_crash_adds_nothing(self, d):
        d.create("dead")
        d.create(max_attempts=1, dead_queue="dead")
        d.produce(["a"])
        d.lease()
        arrived = []
        deliver = d._deliver
        d._deliver = lambda logical, move: (arrived.append(move), deliver(logical, move))
        # The copy arrives, and the process dies before the original is removed.
        d.now_us += 61 * SECOND
        while not d.logicals["dead"].partitions[0].counts.ready:
            d.step()
        d.restart()
        d.run()
        assert arrived and (d.stored(), d.stored("dead")) == ([], ["a"])

    @pytest.mark.parametrize("newest_max", [0, 20_000])
    def test_a_move_is_recognised_after_weeks_even_if_its_copy_is_gone(self, d, monkeypatch, newest_max):
        monkeypatch.setattr(limits, "REQUEST_IDS_NEWEST_MAX", newest_max)
        d.create("dead", expire_s=10**8)
        d.create(max_attempts=1, dead_queue="dead", expire_s=10**8)
        d.produce(["a"])
        d.lease()
        # The copy arrives, and the process dies before the original is removed.
        d.now_us += 61 * SECOND
        while not d.logicals["dead"].partitions[0].counts.ready:
            d.step()
        source = d.logicals.pop("q")
        d.complete(ids(d.lease(queue="dead")), queue="dead")
        d.produce(["b"], queue="dead")
        assert d.stored("dead") == ["b"]
        d.now_us += 29 * 86_400 * SECOND
        d.logicals["q"] = source
        d.restart()
        d.run()
        assert (d.stored(), d.stored("dead")) == ([], ["b"])

    def test_an_item_that_is_dying_is_not_leased_when_its_file_is_opened_again(self, d):
        d.create("dead", expire_s=10**9)
        d.create(dead_queue="dead", expire_s=1_000)
        d.produce(["a"])
        d.failing_writes = lambda: "disk full"
        d.advance(1_100)  # "a" cannot arrive in the dead queue
        d.produce(["b"])
        leased = d.lease()
        d.failing_writes = lambda: None
        d.elapse(1)  # both files are opened again
        assert d.payloads(leased.leases) == ["b"]
        assert d.stored("dead") == ["a"]
        assert d.stored() == ["b"]

    def test_a_client_s_dead_letter_is_finished_after_a_crash(self, d):
        d.create("dead")
        d.create(dead_queue="dead")
        d.produce(["a"])
        (a,) = ids(d.lease())
        # The copy arrives, and the process dies before the original is removed.
        from querator.daemon.queue.requests import Retry
        from querator.wire.messages import QueueRetryItem

        d.logicals["q"].submit(Retry(lambda result: None, 0, [QueueRetryItem(id=a, dead=True)]))
        while not d.logicals["dead"].partitions[0].counts.ready:
            d.step()
        d.restart()
        d.run()
        assert (d.stored(), d.stored("dead")) == ([], ["a"])
        assert [death.reason for death in d.deaths] == ["client"]
        assert d.complete([a]).error.endswith("its lease was lost")

    def test_what_a_clear_removes_does_not_come_back(self, d):
        logical = d.create()
        d.produce(["a", "b"])
        d.lease()
        d.now_us += 61 * SECOND  # the lease ends in the same pass as the clear
        d.change(lambda now: logical.partitions[0].contents.remove_all(ready=True, leased=False, scheduled=False))
        assert d.stored() == []


class TestRequestIds:
    def test_a_repeated_produce_adds_nothing(self, d):
        d.create(partitions=3)
        assert d.produce(["a"], request_id="r").result is None
        for _ in range(2):
            assert d.produce(["a"], request_id="r").result is REPEATED
        d.restart()
        assert d.produce(["other"], request_id="r").result is REPEATED
        assert d.stored() == ["a"]

    def test_within_one_pass_too(self, d):
        d.create()
        answers = [d.produce(["a"], request_id="r", run=False) for _ in range(3)]
        d.run()
        assert [a.result for a in answers] == [None, REPEATED, REPEATED]
        assert d.stored() == ["a"]

    def test_after_an_hour_it_is_forgotten(self, d):
        d.create()
        d.produce(["a"], request_id="r")
        d.advance(3601)
        d.produce(["b"], request_id="r")
        assert d.stored() == ["a", "b"]

    def test_a_clock_that_goes_back_does_not_make_them_pile_up(self, d):
        logical = d.create()
        d.produce(["a"], request_id="early")
        d.advance(-10 * 86_400)
        d.produce(["b"], request_id="late")
        assert d.produce(["c"], request_id="early").result is REPEATED
        d.advance(3601)
        d.produce(["d"])
        assert not logical.files.remembered.has("early", 0) and not logical.files.remembered.has("late", 0)
        assert d.stored() == ["a", "b", "d"]

    def test_two_chunks_with_one_id_and_different_items(self, d):
        """The second chunk must not be acknowledged."""
        d.create()
        first = d.take_in(["a"], "bulk r 0", digest="one", run=False)
        second = d.take_in(["b"], "bulk r 0", digest="two", run=False)
        third = d.take_in(["a"], "bulk r 0", digest="one", run=False)
        d.run()
        assert first.result == 1
        assert "used before for other items" in second.error
        assert third.result is None
        assert d.stored() == ["a"]

    def test_only_the_newest_are_kept_as_they_are_and_older_ones_are_found_in_the_files(self, d, monkeypatch):
        monkeypatch.setattr(limits, "REQUEST_IDS_NEWEST_MAX", 10)
        logical = d.create(partitions=3)
        for n in range(100):
            d.produce([f"{n}"], request_id=f"r{n}")
        clients = logical.files.remembered._clients
        assert list(clients.newest) == [f"r{n}" for n in range(90, 100)]
        assert sum(map(len, clients.older)) == 90
        for n in (0, 42, 89, 95):
            assert d.produce(["again"], request_id=f"r{n}").result is REPEATED
        assert d.produce(["new"], request_id="new").result is None
        assert sorted(d.stored()) == sorted(["new", *(f"{n}" for n in range(100))])
        d.restart()
        for n in range(100):
            assert d.produce(["again"], request_id=f"r{n}").result is REPEATED
        assert len(d.stored()) == 101
        d.advance(3601)
        d.produce(["b"], request_id="r0")
        assert len(d.stored()) == 102 and not d.logicals["q"].files.remembered.may_have(["r1"])

    def test_there_is_a_maximum_of_fingerprints_and_what_is_beyond_it_is_looked_up(self, d, monkeypatch):
        monkeypatch.setattr(limits, "REQUEST_IDS_NEWEST_MAX", 10)
        monkeypatch.setattr(limits, "FINGERPRINTS_MAX", 50)
        logical = d.create(partitions=3)

        def kept():
            ids = logical.files.remembered
            return sum(map(len, [*ids._in_files.values(), *ids._clients.older]))

        for n in range(200):
            d.produce([f"{n}"], request_id=f"r{n}")
            d.advance(10)  # so that fingerprints are in several generations
            assert kept() <= 50
        for n in (0, 42, 120, 199):
            assert d.produce(["again"], request_id=f"r{n}").result is REPEATED
        assert d.produce(["new"], request_id="new").result is None
        d.restart()
        logical = d.logicals["q"]
        assert kept() <= 50
        for n in range(200):
            assert d.produce(["again"], request_id=f"r{n}").result is REPEATED
        assert len(d.stored()) == 201
        d.advance(3601)
        d.produce(["later"], request_id="later")
        assert not logical.files.remembered.may_have(["r1"])

    def test_the_answer_of_a_look_up_goes_to_all_repetitions(self, d, monkeypatch):
        monkeypatch.setattr(limits, "REQUEST_IDS_NEWEST_MAX", 0)
        d.create()
        d.produce(["a"], request_id="r")
        d.produce(["b"])  # by then `r` is no longer among the newest
        answers = [d.produce(["again"], request_id="r", run=False) for _ in range(3)]
        d.run()
        assert [answer.result for answer in answers] == [REPEATED] * 3
        assert d.stored() == ["a", "b"]

    def test_a_chunk_that_is_looked_up_is_compared_with_what_it_was(self, d, monkeypatch):
        monkeypatch.setattr(limits, "REQUEST_IDS_NEWEST_MAX", 0)
        d.create()
        d.take_in(["a"], "bulk r 0", digest="one")
        d.produce(["b"])
        assert d.take_in(["a"], "bulk r 0", digest="one").result is None
        assert "used before for other items" in d.take_in(["c"], "bulk r 0", digest="two").error
        assert d.stored() == ["a", "b"]

    def test_a_dead_letter_whose_key_is_looked_up_arrives_once(self, d, monkeypatch):
        monkeypatch.setattr(limits, "REQUEST_IDS_NEWEST_MAX", 0)
        dead = d.create("dead")
        item = Item(0, 0, 0, b"a")
        for _ in range(3):
            d._submit("dead", lambda answer: Arrival(answer, FAR_NS, [item], ["dead key"], uncertain=False))
            d.produce(["b"], queue="dead")
        assert sorted(d.stored("dead")) == ["a", "b", "b", "b"]
        assert dead.files.remembered.may_have(["dead key"])

    def test_no_client_can_use_the_key_of_a_dead_letter(self, d):
        d.create("dead")
        d.create(dead_queue="dead")
        d.produce(["a"])
        (item_id,) = ids(d.lease())
        for request_id in (f"dead {item_id}", f"client dead {item_id}", f"moved {item_id}"):
            d.produce(["b"], queue="dead", request_id=key_of(request_id))
        d.retry([item_id], dead=True)
        assert sorted(d.stored("dead")) == ["a", "b", "b", "b"]


class TestUnread:
    """A partition that has not been read since the start may know any request id."""

    @pytest.fixture
    def lost(self, d, monkeypatch):
        """A queue of two partitions after a restart. The one that knows `r` cannot be opened until this is called."""
        logical = d.create(partitions=2)
        d.produce(["a"], request_id="r")
        (knowing,) = [p.placement.uuid for p in logical.partitions if p.counts.total]
        really_open = d.storage.open

        def open_(uuid: str, queue: str):
            if uuid == knowing and not found:
                raise StorageError("it is missing", [uuid])
            return really_open(uuid, queue)

        found: list[bool] = []
        monkeypatch.setattr(d.storage, "open", open_)
        d.restart()
        return lambda: (found.append(True), d.elapse(9))

    def test_a_repeated_produce_waits_until_that_partition_can_be_asked(self, d, lost):
        repeated, new = d.produce(["again"], request_id="r"), d.produce(["b"], request_id="new")
        assert repeated.waiting and new.waiting
        assert d.produce(["without an id"]).result is None
        lost()
        assert repeated.result is REPEATED and new.result is None
        assert sorted(d.stored()) == ["a", "b", "without an id"]

    def test_it_gets_454_when_its_time_is_over(self, d, lost):
        repeated = d.produce(["again"], request_id="r")
        d.elapse(11)
        assert repeated.error == (
            "request timeout; partition '0' cannot be read and may have taken a request with this request id, try again"
        )
        lost()
        assert d.produce(["again"], request_id="r").result is REPEATED
        assert d.stored() == ["a"]

    def test_a_first_attempt_does_not_wait_and_is_remembered(self, d, lost):
        def make(answer):
            request = Produce(answer, FAR_NS, [QueueProduceItem(utf8="b")], False, "new")
            request.is_first_attempt = True
            return request

        assert d._submit("q", make).result is None
        assert d.produce(["again"], request_id="new").result is REPEATED
        lost()
        assert sorted(d.stored()) == ["a", "b"]

    def test_a_chunk_of_a_stream_waits_too(self, d, lost):
        assert d.take_in(["again"], "bulk r 0").waiting
        lost()

    def test_after_an_hour_no_unread_partition_knows_a_request_id(self, d, lost):
        assert d.produce(["b"], request_id="new").waiting
        d.advance(3601)
        assert d.produce(["c"], request_id="newer").result is None
        lost()

    def test_a_partition_that_failed_after_it_was_read_holds_no_request_up(self, d, monkeypatch):
        logical = d.create(partitions=2)
        d.produce(["a"], request_id="r")
        monkeypatch.setattr(logical.files, "open_store", lambda placement: d.storage.open("gone", placement.queue))
        logical.files.fail(logical.partitions[0], "broken")
        assert d.produce(["b"], request_id="new").result is None
        assert d.produce(["again"], request_id="r").result is REPEATED
        assert logical.partitions[1].counts.total == 1

    def test_an_older_request_id_of_a_partition_in_error_waits(self, d, monkeypatch):
        monkeypatch.setattr(limits, "REQUEST_IDS_NEWEST_MAX", 0)
        logical = d.create(partitions=2)
        d.produce(["a"], request_id="r")
        d.produce(["b"])
        really_open = logical.files.open_store
        monkeypatch.setattr(logical.files, "open_store", lambda placement: d.storage.open("gone", placement.queue))
        logical.files.fail(logical.partitions[0], "broken")
        repeated = d.produce(["again"], request_id="r")
        assert repeated.waiting
        assert d.produce(["c"], request_id="new").result is None
        monkeypatch.setattr(logical.files, "open_store", really_open)
        d.elapse(9)
        assert repeated.result is REPEATED
        assert sorted(d.stored()) == ["a", "b", "c"]

    def test_what_was_moved_before_a_crash_is_not_moved_again_before_its_destination_is_read(self, d, lost):
        logical = d.logicals["q"]
        moved = d._submit("q", lambda a: Arrival(a, FAR_NS, [Item(0, 1, 1 << 60, b"x")], ["moved x"], uncertain=False))
        assert moved.error == "partition not available; partition '0' is failing, retry again"
        lost()
        assert not logical.files.remembered.unread


class TestStopping:
    """Every request that waits is answered, whatever it waits for."""

    def test_a_retry_whose_item_does_not_arrive(self, d):
        dead = d.create("dead")
        logical = d.create(dead_queue="dead")
        d.produce()
        (item_id,) = ids(d.lease())
        dead.partitions[0].health.set_congested(True)
        retry = d.retry([item_id], dead=True)
        assert retry.waiting
        logical.stop()
        assert retry.error == "queue is shutting down"
        dead.partitions[0].health.set_congested(False)
        d.run()

    def test_a_lease_that_waits_for_what_it_completes(self, d):
        logical = d.create()
        d.produce()
        (item_id,) = ids(d.lease())
        d.complete([item_id])
        d.hold_reads = True
        lease = d.lease(completes=[item_id])
        logical.stop()
        assert lease.waiting
        d.hold_reads = False
        d.run()
        assert lease.error == "queue is shutting down"

    def test_a_produce_whose_write_fails_meanwhile(self, d):
        logical = d.create()
        produce = d.produce(run=False)
        d.failing_writes = lambda: (logical.stop(), "disk on fire")[1]
        d.run()
        assert produce.error == "queue is shutting down"


class TestFailures:
    def test_a_failed_write_is_not_acknowledged_and_goes_to_another_partition(self, d):
        d.create(partitions=2)
        reasons = ["disk full"]
        d.failing_writes = lambda: reasons.pop() if reasons else None
        answer = d.produce(["a"])
        assert answer.result is None
        assert d.stored() == ["a"]

    @pytest.mark.parametrize("others", [[], ["b"]])
    def test_a_lease_is_refused_if_the_completes_that_it_carries_cannot_be_written(self, d, others):
        """Without another item the lease would wait. It must not forget meanwhile what the client asked for."""
        d.create()
        d.produce(["a", *others])
        (a,) = ids(d.lease())
        d.failing_writes = lambda: "disk full"
        lease = d.lease(client="me", completes=[a])
        assert "partition '0' is failing" in lease.error
        d.failing_writes = lambda: None
        d.elapse(1)
        assert d.stored() == ["a", *others]
        again = d.lease(client="me", completes=[a])
        assert d.payloads(again.leases) == others if others else again.waiting
        assert d.stored() == others

    def test_a_lease_is_refused_if_its_completes_fail_in_another_partition(self, d):
        d.create(partitions=2)
        d.produce(["a"])
        (a,) = ids(d.lease())
        d.produce(["b"])
        logical = d.logicals["q"]
        (there,) = [partition for partition in logical.partitions if partition.contents.leases.holds(a)]
        here = next(partition for partition in logical.partitions if partition.contents.window.waiting)
        assert here is not there
        answer = d.lease(completes=[a], run=False)
        this = logical.plan(d.now_us, d.now_ns)
        d.storage.drop(d.storage.take())
        logical.settle(this, {there: "disk full", here: "disk full"})
        assert "failing" in answer.error
        d.elapse(1)
        assert sorted(d.stored()) == ["a", "b"]

    def test_produce_waits_until_its_time_runs_out(self, d):
        d.create()
        d.failing_writes = lambda: "disk full"
        answer = d.produce(["a"])
        assert answer.waiting
        d.elapse(11)
        assert answer.error == "request timeout; no partition is available, try again"
        d.failing_writes = lambda: None
        d.elapse(60)
        assert d.produce(["b"]).result is None
        assert d.stored() == ["b"]

    def test_a_disk_that_can_be_read_and_not_written_is_tried_less_and_less_often(self, d):
        d.create()
        tries = []
        d.failing_writes = lambda: tries.append(d.now_ns) or "disk full"
        # The file can be opened each time. Then the waiting produce makes it fail again.
        assert d.produce(["a"]).waiting
        for _ in range(19):
            d.elapse(0.5)
        assert [(later - earlier) / 1e9 for earlier, later in pairwise(tries)] == [0.5, 1, 2, 4]
        d.failing_writes = lambda: None
        d.elapse(30)
        assert d.produce(["b"]).result is None
        tries.clear()
        d.failing_writes = lambda: tries.append(d.now_ns) or "disk full"
        d.produce(["c"])
        d.elapse(0.5)
        assert len(tries) == 2

    def test_complete_fails_at_once(self, d):
        d.create()
        d.produce(["a"])
        leased = ids(d.lease())
        d.failing_writes = lambda: "disk full"
        assert d.complete(leased).error == "partition not available; partition '0' is failing, retry again"
        d.failing_writes = lambda: None
        d.elapse(1)
        assert d.complete(leased).result is None
        assert d.stored() == []

    def test_a_lease_stays_parked(self, d):
        d.create()
        d.produce(["a"])
        reasons = ["disk full"]
        d.failing_writes = lambda: reasons.pop() if reasons else None
        lease = d.lease()
        assert lease.waiting
        d.elapse(1)
        assert d.payloads(lease.leases) == ["a"]

    def test_a_death_that_is_not_durable_does_not_happen(self, d):
        d.create("dead")
        d.create(dead_queue="dead")
        d.produce(["a"])
        leased = ids(d.lease())
        reasons = ["fsync failed"]
        d.failing_writes = lambda: reasons.pop() if reasons else None
        assert d.retry(leased, dead=True).error == "partition not available; partition '0' is failing, retry again"
        d.elapse(1)
        assert (d.stored(), d.stored("dead")) == (["a"], [])
        assert d.retry(leased, dead=True).result is None
        assert (d.stored(), d.stored("dead")) == ([], ["a"])

    def test_what_is_counted_while_it_fails_is_what_was_durable(self, d):
        logical = d.create()
        d.produce(5)
        d.failing_writes = lambda: "disk full"
        d.produce(3)
        assert logical.partitions[0].counts.total == 5
        d.failing_writes = lambda: None
        d.elapse(60)

    @pytest.mark.parametrize("reason", [None, "disk full"])
    def test_a_settled_pass_keeps_nothing_of_its_requests(self, d, reason):
        logical = d.create()
        d.produce()
        leased = d.lease().leases
        d.failing_writes = lambda: reason
        d.produce(2, run=False)
        d.complete([lease.id for lease in leased], run=False)
        d.step()
        this = logical.current_pass
        assert not (this.taken or this.produces or this.completes or this.answers or this.touched or this.deaths)

    @pytest.mark.parametrize("kind", [object(), "\ud800"], ids=["no text", "no UTF-8"])
    def test_a_plan_that_breaks_off_changes_nothing(self, d, kind):
        """The first one breaks off when an item is made, in compiled code, and the second one when it is encoded."""
        logical = d.create()
        d.produce(["a"])
        answer, refused = d.lease(run=False), d.produce(["b"], run=False)
        logical.current_pass.inbox[-1].drafts[0].kind = kind
        with pytest.raises((TypeError, UnicodeEncodeError)):
            logical.plan(d.now_us, d.now_ns)
        logical.settle(logical.give_up(), {})
        assert answer.error == refused.error == "Internal Error"
        d.elapse(1)
        assert d.payloads(d.lease().leases) == ["a"]

    def break_off(self, d: Driver) -> None:
        """A pass that breaks off when it completes items, after everything else."""
        logical = d.logicals["q"]
        answer = d.complete([[]], run=False)
        with pytest.raises(TypeError):
            logical.plan(d.now_us, d.now_ns)
        logical.settle(logical.give_up(), {})
        assert answer.error == "Internal Error"

    def test_a_plan_that_breaks_off_answers_leases_that_waited_since_an_earlier_one(self, d):
        d.create()
        overdue = d.lease()
        d.elapse(5)
        served = d.lease()
        d.now_ns += 6 * 10**9
        d.produce(["a"], run=False)
        self.break_off(d)
        assert served.error == overdue.error == "Internal Error"
        d.elapse(1)
        d.produce(["b"])
        assert (d.stored(), d.payloads(d.lease().leases)) == (["b"], ["b"])

    def test_a_plan_that_breaks_off_before_it_takes_requests_answers_them(self, d):
        logical = d.create()
        logical.current_pass.undelivered.append(LeaseReply("q", 7, []))
        logical.wake()
        answer = d.produce(run=False)
        with pytest.raises(IndexError):
            logical.plan(d.now_us, d.now_ns)
        logical.settle(logical.give_up(), {})
        assert answer.error == "Internal Error"

    def test_a_request_id_is_not_remembered_by_a_plan_that_breaks_off(self, d):
        d.create()
        d.produce(["a"], request_id="old")
        refused = d.produce(["b"], request_id="new", run=False)
        d.produce(["a"], request_id="old", run=False)
        self.break_off(d)
        assert refused.error == "Internal Error"
        d.elapse(1)
        assert d.produce(["b"], request_id="new").result is None
        assert d.produce(["a"], request_id="old").result is REPEATED
        assert d.stored() == ["a", "b"]

    def test_a_lease_whose_ids_are_looked_up_is_not_parked_after_a_plan_that_breaks_off(self, d):
        d.create()
        d.produce(["a"])
        (gone,) = ids(d.lease())
        d.complete([gone])
        answer = d.lease(client="x", completes=[gone], run=False)
        self.break_off(d)
        assert answer.error == "Internal Error"
        d.elapse(1)
        d.produce(["b"])
        assert d.payloads(d.lease(client="x").leases) == ["b"]


class TestHolders:
    def holders(self, d: Driver) -> list[tuple[str, str, int]]:
        leases = [
            lease for partition in d.logicals["q"].partitions for lease in partition.contents.leases.by_id.values()
        ]
        return sorted((lease.item.payload.decode(), lease.hold.client_id, lease.hold.leased_at) for lease in leases)

    @pytest.mark.parametrize("restarts", [False, True])
    def test_each_lease_knows_who_holds_it_and_since_when(self, d, restarts):
        d.create()
        first = d.lease(2, client="ann", run=False)
        second = d.lease(1, client="bob", run=False)
        d.produce(["a", "b", "c"])
        start = d.now_us
        d.advance(5)
        d.produce(["d"])
        d.lease(1, client="cid")
        assert [d.payloads(one.leases) for one in (first, second)] == [["a", "c"], ["b"]]
        if restarts:
            d.restart()
        assert self.holders(d) == [
            ("a", "ann", start),
            ("b", "bob", start),
            ("c", "ann", start),
            ("d", "cid", start + 5 * SECOND),
        ]

    def test_an_extended_lease_has_the_same_holder(self, d):
        d.create()
        d.produce(["a", "b"])
        start = d.now_us
        held = [*ids(d.lease(1, client="ann")), *ids(d.lease(1, client="bob"))]
        d.advance(5)
        d.extend(held, seconds=600)
        d.restart()
        assert self.holders(d) == [("a", "ann", start), ("b", "bob", start)]


class TestFailedAttempts:
    """(attempt, client, seconds held, reason) of each attempt, from the item's next lease."""

    def told(self, d: Driver, queue: str = "q") -> list[tuple[int, str, float, str]]:
        (lease,) = d.lease(queue=queue).leases
        events = [event for event in lifecycle.history(lease.item) if not event.queue_name]
        return [(event.attempts, event.client_id, event.held_us / SECOND, event.reason) for event in events]

    @pytest.mark.parametrize("is_later", [False, True])
    def test_a_retry_says_why(self, d, is_later):
        d.create()
        d.produce(1)
        held = ids(d.lease(client="ann"))
        d.advance(7)
        d.retry(held, reason="no route to host", at=d.now_us + SECOND if is_later else None)
        d.restart()
        d.advance(2)
        assert self.told(d) == [(1, "ann", 7, "no route to host")]

    def test_an_ended_lease_names_its_holder_even_if_it_ended_while_the_daemon_was_stopped(self, d):
        d.create(lease_s=60)
        d.produce(1)
        d.lease(client="ann")
        d.now_us += 3_600 * SECOND  # the daemon is stopped when the lease ends
        d.restart()
        assert self.told(d) == [(1, "ann", 60, "lease expired")]

    def test_what_was_handed_back_unused_was_no_attempt(self, d):
        d.create()
        d.produce(1)
        d.retry(ids(d.lease(client="ann")), unused=True)
        d.retry(ids(d.lease(client="bob")), reason="broken")
        assert self.told(d) == [(1, "bob", 0, "broken")]

    def test_the_dead_queue_keeps_them(self, d):
        d.create("dead")
        d.create(dead_queue="dead", max_attempts=3, lease_s=60)
        d.produce(1)
        d.retry(ids(d.lease(client="ann")), reason="first")
        d.retry(ids(d.lease(client="bob")), reason="second")
        d.lease(client="cid")
        d.advance(61)
        assert self.told(d, "dead") == [
            (1, "ann", 0, "first"),
            (2, "bob", 0, "second"),
            (3, "cid", 60, "lease expired"),
        ]

    def test_a_crash_before_the_dead_item_has_arrived_keeps_the_reason(self, d):
        d.create("dead")
        d.create(dead_queue="dead")
        d.produce(1)
        held = ids(d.lease(client="ann"))
        d.advance(7)
        deliver, d._deliver = d._deliver, lambda source, move: None
        d.retry(held, dead=True, reason="poison")
        d.now_us += 600 * SECOND
        d._deliver = deliver
        d.restart()
        assert self.told(d, "dead") == [(1, "ann", 7, "poison")]

    def test_a_retry_out_of_a_draining_partition_keeps_the_reason(self, d):
        logical = d.create(partitions=2)
        d.produce(1)
        answer = d.lease(client="ann")
        source = logical.partitions[answer.result.partition]
        source.change_placement(msgspec.structs.replace(source.placement, requested=State.DRAINING))
        d.retry(ids(answer), reason="elsewhere")
        assert source.is_empty
        assert self.told(d) == [(1, "ann", 0, "elsewhere")]

    def test_a_retry_whose_move_failed_and_is_repeated_is_one_attempt(self, d):
        d.create(dead_queue="dead")
        d.produce(1)
        held = ids(d.lease(client="ann"))
        assert "retry again" in d.retry(held, dead=True, reason="poison").error  # the dead queue does not exist
        d.create("dead")
        d.retry(held, dead=True, reason="poison")
        assert self.told(d, "dead") == [(1, "ann", 0, "poison")]
