"""A pass looks at all partitions only if something happened that is no request, or if something is due."""

from __future__ import annotations

from querator.daemon.queue import NEVER, Logical
from tests.daemon.driver import Driver

MARK = NEVER - 1


def looks_at_all(d: Driver, logical: Logical) -> bool:
    """Runs a pass. A look at all partitions ends with a new time of the next event."""
    agenda = logical.current_pass.agenda
    if agenda.event_us >= d.now_us:
        agenda.event_us = MARK
    d._turn(logical)
    return agenda.event_us != MARK


def queue_with_items(d: Driver) -> Logical:
    """Its partitions know when their items expire. Later items expire later, so they change nothing."""
    logical = d.create(partitions=3, lease_s=60)
    for _ in range(3):
        d.produce(["a"])
    return logical


def test_a_pass_with_requests_does_not_look_at_all_partitions():
    d = Driver()
    logical = queue_with_items(d)
    answer = d.produce(["b"], run=False)
    assert not looks_at_all(d, logical)
    assert answer.result is None


def test_a_pass_after_a_wake_looks_at_all_partitions():
    d = Driver()
    logical = queue_with_items(d)
    logical.wake()
    assert looks_at_all(d, logical)
    d.produce(["b"], run=False)
    assert not looks_at_all(d, logical)


def test_a_pass_after_a_deadline_looks_at_all_partitions():
    d = Driver()
    logical = queue_with_items(d)
    d.lease(1)
    d.now_us += 61_000_000
    d.produce(["b"], run=False)
    assert looks_at_all(d, logical)
    assert [partition.counts.leased for partition in logical.partitions] == [0, 0, 0]


def test_passes_look_at_all_partitions_while_items_are_scheduled():
    d = Driver()
    logical = queue_with_items(d)
    d.produce(["later"], at=d.now_us + 3_600_000_000)
    for _ in range(2):
        d.produce(["b"], run=False)
        assert looks_at_all(d, logical)


def test_passes_look_at_all_partitions_while_one_is_closed():
    d = Driver()
    logical = queue_with_items(d)
    logical.files.fail(logical.partitions[1], "a test")
    for _ in range(2):
        d.produce(["b"], run=False)
        assert looks_at_all(d, logical)


def test_the_agenda_knows_that_requests_wait_and_when_they_time_out():
    d = Driver()
    logical = d.create(lease_s=60)
    agenda = logical.current_pass.agenda
    assert (agenda.has_parked, agenda.timeout_ns) == (False, NEVER)
    served, timed_out = d.lease(client="ann"), d.lease(client="bob")
    first_deadline = d.now_ns + 10**10
    assert (agenda.has_parked, agenda.timeout_ns) == (True, first_deadline)
    d.produce(["a"])
    assert d.payloads(served.leases) == ["a"]
    assert agenda.has_parked
    d.elapse(11)
    assert "timeout" in timed_out.error
    assert (agenda.has_parked, agenda.timeout_ns) == (False, NEVER)


def test_a_single_lease_is_served_without_being_parked():
    d = Driver()
    logical = d.create(lease_s=60)
    d.produce(["a", "b"])
    agenda = logical.current_pass.agenda
    answer = d.lease(client="ann", run=False)
    d._turn(logical)
    assert d.payloads(answer.leases) == ["a"]
    assert (agenda.has_parked, agenda.timeout_ns) == (False, NEVER)
    assert d.payloads(d.lease(client="ann").leases) == ["b"]


def test_a_single_lease_whose_write_fails_is_parked_and_served_after_the_recovery():
    d = Driver()
    logical = d.create(lease_s=60)
    d.produce(["a"])
    d.failing_writes = lambda: "disk full"
    answer = d.lease(client="ann", run=False)
    d._turn(logical)
    agenda = logical.current_pass.agenda
    assert answer.waiting and agenda.has_parked
    d.failing_writes = lambda: None
    d.elapse(1)
    assert d.payloads(answer.leases) == ["a"]
    assert not agenda.has_parked


def test_a_second_lease_of_a_client_whose_lease_waits_is_refused():
    d = Driver()
    d.create(lease_s=60)
    first = d.lease(client="ann")
    assert "duplicate client id" in d.lease(client="ann").error
    assert first.waiting
    d.produce(["a"])
    assert d.payloads(first.leases) == ["a"]


def test_the_agenda_says_when_the_driver_has_something_to_do():
    d = Driver()
    logical = d.create(lease_s=60)
    agenda = logical.current_pass.agenda
    d.produce(["a"])
    assert not agenda.asks_driver
    logical.files.block(logical.partitions[0], lambda: None, lambda result: None, lambda error: None)
    assert agenda.asks_driver
    logical.wake()
    d.run()
    assert (agenda.asks_driver, logical.is_at_rest()) == (False, True)
