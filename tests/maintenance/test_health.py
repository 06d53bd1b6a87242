"""What `/health` reports when partitions fail."""

from __future__ import annotations

import pytest

from querator.daemon import health
from querator.daemon.queue.partition import Partition
from querator.items import Placement, Room
from tests.maintenance.house import OPERATOR, House


def fail(house: House, number: int) -> None:
    """Removes a partition's file and reloads the partition, which then fails."""
    house.ask("offline", number)
    house.file(number).unlink()
    house.refused("reload", number)


class TestHealth:
    def test_without_queues_all_is_well(self, house: House):
        assert house.service.health(OPERATOR) == (True, "")

    def test_a_daemon_that_stops_is_not_healthy(self, house: House):
        house.registry.refuse_calls()
        assert house.service.health(OPERATOR) == (False, "service is shutting down")

    def test_one_partition_of_two_in_error_is_a_warning(self, house: House):
        house.create(partitions=2)
        assert house.service.health(OPERATOR) == (True, "")
        fail(house, 1)
        is_healthy, told = house.service.health(OPERATOR)
        assert is_healthy and told.startswith("q/1: ") and told.endswith("is missing")

    def test_every_partition_in_error_is_a_failure(self, house: House):
        house.create()
        fail(house, 0)
        is_healthy, told = house.service.health(OPERATOR)
        assert not is_healthy and told.startswith("q/0: ")

    def test_what_an_operator_closed_is_no_failure(self, house: House):
        house.create(partitions=2)
        house.ask("offline")
        assert house.service.health(OPERATOR) == (True, "")

    def test_a_storage_that_could_not_be_opened_is_a_warning(self, house: House):
        del house.registry.storages["other"]
        assert house.service.health(OPERATOR) == (True, "storage 'other' cannot be used")

    def test_a_file_that_cannot_follow_is_a_warning_and_then_an_error(self, house: House):
        house.create(partitions=2)
        partition = house.partition()
        partition.health.apply_failed("No space left on device", 0.0)
        assert house.states() == ["available"] * 2
        assert house.statuses()[0].reason == "No space left on device"
        assert house.service.health(OPERATOR) == (True, "q/0: No space left on device")
        partition.health.set_congested(True)
        status = house.statuses()[0]
        assert (status.state, status.reason) == ("error", "No space left on device")

    def test_congestion_alone_shows_why_nothing_is_taken(self, house: House):
        house.create()
        house.run(until_upkeep_ends(house))  # its next round would end the congestion
        house.partition().health.set_congested(True)
        status = house.statuses()[0]
        assert status.state == "available" and status.reason.startswith("takes no new items until")


async def until_upkeep_ends(house: House) -> None:
    house.registry.upkeep.close()
    await house.registry.turns.until_idle()


def test_many_reasons_are_cut_short():
    def broken(queue: str, number: int, reason: str) -> Partition:
        partition = Partition(Placement(queue=queue, number=number, uuid="0" * 32, storage="s"))
        partition.fail(reason, 0, 0)
        return partition

    same = [broken("a", number, "no room") for number in range(8)]
    others = [broken("b", number, f"reason {number}") for number in range(8)]
    is_healthy, told = health.judge(same + others, [], lambda queue: True)
    assert not is_healthy
    assert told.startswith("a/0, a/1, a/2, a/3, a/4 and 3 more: no room; b/0: reason 0; ")
    assert told.endswith("; b/3: reason 3; and 4 more")


@pytest.mark.parametrize(
    ("free", "size", "is_low"),
    [(99, 1_000, True), (100, 1_000, False), (10**9 - 1, 10**12, True), (10**9, 10**12, False)],
)
def test_when_a_storage_is_nearly_full(free: int, size: int, is_low: bool):
    assert Room(free, size).is_low is is_low


def test_a_queue_that_is_not_shown_is_not_named() -> None:
    partition = Partition(Placement(queue="secret", number=0, uuid="0" * 32, storage="s"))
    partition.fail("/var/lib/querator is gone", 0, 0)
    is_healthy, told = health.judge([partition], [], lambda queue: False)
    assert (is_healthy, told) == (False, "a partition: does not work")
