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
