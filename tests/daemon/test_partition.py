"""A partition's state: what it allows after each change, and which counts and faults it reports."""

from __future__ import annotations

import msgspec
import pytest

from querator.daemon.queue.loading import empty_snapshot
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.states import ALLOWS, HELD, LEAVING, restricted
from querator.items import Counts, Item, Placement, State
from tests.memory_storage import MemoryStorage

UUID = "0" * 8 + "-0000-0000-0000-" + "0" * 12
AVAILABLE, CLOSED = ALLOWS[State.AVAILABLE], ALLOWS[State.UNAVAILABLE]


@pytest.fixture
def partition() -> Partition:
    return Partition(Placement(queue="q", number=0, uuid=UUID, storage="s"))


def open_(partition: Partition, now_us: int = 1) -> None:
    partition.opened(MemoryStorage("s").create(UUID, "q"), empty_snapshot(), now_us)


def ask_for(partition: Partition, state: State) -> None:
    partition.change_placement(msgspec.structs.replace(partition.placement, requested=state))


def test_a_closed_partition_allows_nothing(partition: Partition) -> None:
    assert partition.allows == CLOSED
    open_(partition)
    assert partition.allows == AVAILABLE
    partition.close()
    assert (partition.allows, partition.state) == (CLOSED, State.UNAVAILABLE)


@pytest.mark.parametrize("state", [State.PAUSED, State.DRAINING, State.UNAVAILABLE])
def test_an_open_partition_allows_what_the_requested_state_allows(partition: Partition, state: State) -> None:
    open_(partition)
    ask_for(partition, state)
    assert (partition.allows, partition.state) == (ALLOWS[state], state)


def test_a_job_that_moves_items_away_restricts_every_state(partition: Partition) -> None:
    open_(partition)
    partition.begin_leaving()
    assert partition.allows == LEAVING
    ask_for(partition, State.PAUSED)
    assert partition.allows == restricted(ALLOWS[State.PAUSED], LEAVING)
    partition.hold()
    assert partition.is_held and partition.allows == restricted(ALLOWS[State.PAUSED], HELD)
    partition.release()
    ask_for(partition, State.AVAILABLE)
    assert partition.allows == LEAVING
    partition.end_leaving()
    assert partition.allows == AVAILABLE


def test_a_partition_that_opens_while_a_job_moves_its_items_is_held(partition: Partition) -> None:
    partition.begin_leaving()
    open_(partition)
    assert partition.is_held and partition.allows == HELD


def test_a_failure_closes_the_partition_until_it_is_opened_again(partition: Partition) -> None:
    open_(partition)
    partition.fail("bad block", 10, 0)
    partition.fail("bad block again", 20, 0)
    assert (partition.allows, partition.state, partition.trouble) == (CLOSED, State.ERROR, "bad block again")
    assert (partition.failures, partition.health.error_since) == (2, 10)
    open_(partition, 30)
    assert (partition.allows, partition.state, partition.trouble) == (AVAILABLE, State.AVAILABLE, "")
    assert (partition.failures, partition.health.recovered_at) == (0, 30)


def test_only_a_durable_write_ends_a_series_of_failures(partition: Partition) -> None:
    partition.fail("full", 10, 0)
    open_(partition)
    assert partition.relapses == 1
    partition.settled()
    assert partition.relapses == 0


def test_a_full_storage_is_reported_as_an_error_while_the_partition_is_open(partition: Partition) -> None:
    partition.health.set_room("no space left", 5, "")
    assert (partition.blocked, partition.reported_state) == ("", State.UNAVAILABLE)
    open_(partition)
    assert (partition.blocked, partition.reported_state) == ("no space left", State.ERROR)
    assert partition.state is State.AVAILABLE


def test_a_file_that_falls_behind_blocks_its_partition_only_when_congested(partition: Partition) -> None:
    open_(partition)
    partition.health.apply_failed("slow disk", 0.0)
    assert (partition.blocked, partition.trouble) == ("", "slow disk")
    partition.health.set_congested(True)
    assert partition.blocked == "slow disk"
    partition.applied()
    assert partition.trouble == ""


def test_a_closed_partition_reports_the_counts_of_its_last_durable_write(partition: Partition) -> None:
    open_(partition)
    partition.contents.enter([Item(seq=1, created_at=7, expire_deadline=99, payload=b"a")])
    partition.settled()
    partition.contents.enter([Item(seq=2, created_at=8, expire_deadline=99, payload=b"b")])
    assert partition.counts == Counts(2, 0, 0, 15)
    partition.close()
    assert partition.counts == Counts(1, 0, 0, 7) and not partition.is_empty
    partition.settled()  # of the pass that closed it
    assert partition.counts == Counts(1, 0, 0, 7)
