"""The catalog on a disk that fails it for a while."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from querator.daemon.catalog import Catalog
from querator.items import Queue


@contextlib.contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def queue(name: str, reference: str = "") -> Queue:
    return Queue(name=name, lease_timeout_ns=1, expire_timeout_ns=1, requested_partitions=1, reference=reference)


def test_it_goes_on_after_a_checkpoint_had_no_room(tmp_path: Path) -> None:
    path = tmp_path / "catalog.duckdb"
    catalog = Catalog(path)
    catalog.add(queue("a"), [])
    with no_file_grows_beyond(path.stat().st_size):
        for number in range(10):
            catalog.save_queues([queue("a", f"{number}" * 2_000)])
    catalog.add(queue("b"), [])
    assert [one.name for one in catalog.queues()] == ["a", "b"]
    catalog.close()
    catalog = Catalog(path)
    assert [one.reference[:1] for one in catalog.queues()] == ["9", ""]
    catalog.close()


def test_a_change_that_finds_no_room_is_an_error_and_the_next_one_is_not(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog.duckdb")
    failures = 0
    with no_file_grows_beyond(0):
        try:
            catalog.add(queue("a"), [])
        except Exception:
            failures += 1
    catalog.add(queue("b"), [])
    assert failures == 1
    assert [one.name for one in catalog.queues()] == ["b"]
    catalog.close()
