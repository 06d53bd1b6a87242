"""A storage as the engine sees it: when it counts as idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from querator import limits
from querator.daemon.engine.disks import Disk
from tests.memory_storage import MemoryStorage


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk(MemoryStorage("default"))
    yield disk
    disk.close()


def test_a_disk_is_idle_after_some_rounds_without_a_write(disk: Disk) -> None:
    assert not disk.is_idle
    for _ in range(limits.APPLY_IDLE_ROUNDS):
        disk.begin_round()
    assert disk.is_idle


def test_the_first_write_ends_idleness_before_the_next_round(disk: Disk) -> None:
    """Otherwise the first megabyte after a pause would have every file of the storage written."""
    for _ in range(limits.APPLY_IDLE_ROUNDS):
        disk.begin_round()
    disk.write([])
    assert not disk.is_idle
    disk.begin_round()
    assert not disk.is_idle
