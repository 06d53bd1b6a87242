"""Operators move, replace and delete the files of a daemon. The daemon reports whatever is lost."""

from __future__ import annotations

import shutil
import signal

import pytest

from querator.daemon.catalog import Catalog
from tests.waiting import until


def partition_file(daemon):
    (path,) = (daemon.data / "partitions").glob("*.duckdb")
    return path


def test_a_file_that_is_replaced_under_the_daemon_loses_nothing_silently(fresh):
    daemon = fresh()
    q = daemon.create()
    daemon.produce(q, "a", "b")
    daemon.items(q)  # makes the daemon apply the items to the file
    path = partition_file(daemon)
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)
    daemon.produce(q, "c")
    status, reply = daemon.post("storage/items.list", queue_name=q)
    # 200 if upkeep was faster: it noticed the other file, and the partition has read it and the journal since.
    assert status == 454 or len(reply["items"]) == 3
    until(lambda: any(line.get("message") == "partition is in error" for line in daemon.log))
    daemon.restart()
    status, reply = daemon.post("storage/items.list", queue_name=q)
    assert status == 454 or len(reply["items"]) == 3


def test_a_file_that_is_taken_away_under_the_daemon_is_in_error_until_it_is_back(fresh):
    daemon = fresh()
    q = daemon.create()
    daemon.produce(q, "a")
    daemon.items(q)  # makes the daemon apply the items to the file
    path = partition_file(daemon)
    path.rename(path.with_suffix(".away"))
    daemon.produce(q, "b")  # upkeep applies the item to the file when the daemon is idle, and finds the file missing
    until(lambda: "error" in str(daemon.ok("partitions.list", queue_name=q)))
    path.with_suffix(".away").rename(path)
    until(lambda: daemon.post("storage/items.list", queue_name=q)[0] == 200)
    assert len(daemon.items(q)) == 2


def test_a_partition_that_cannot_be_opened_is_logged_and_recovers(fresh):
    daemon = fresh()
    q = daemon.create()
    daemon.produce(q, "a")
    daemon.stop()
    path = partition_file(daemon)
    path.rename(path.with_suffix(".away"))
    daemon.start()
    (line,) = [line for line in daemon.log if line.get("message") == "partition is in error"]
    assert (line["queue"], line["partition"]) == (q, 0) and "is missing" in line["reason"]
    path.with_suffix(".away").rename(path)
    until(lambda: daemon.post("storage/items.list", queue_name=q)[0] == 200)
    assert len(daemon.items(q)) == 1


@pytest.mark.parametrize("is_there", [False, True], ids=["gone", "empty"])
def test_a_catalog_that_was_lost_is_not_an_empty_daemon(fresh, is_there: bool):
    daemon = fresh()
    daemon.create()
    daemon.stop()
    path = daemon.data / "catalog.duckdb"
    kept = path.rename(path.with_suffix(".kept"))
    if is_there:
        Catalog(path).close()
    for _ in range(2):  # a service manager starts it again
        with pytest.raises(
            AssertionError, match=r"the daemon did not start:\n(?s:.*)error: the catalog is missing or empty"
        ):
            daemon.start()
    assert path.exists() == is_there and not path.with_name("catalog.duckdb.wal").exists()
    kept.rename(path)
    daemon.start()
    assert len(daemon.ok("queues.list")["items"]) == 1


def test_a_log_of_a_catalog_that_is_gone_stays_until_the_catalog_is_put_back(fresh):
    daemon = fresh()
    q = daemon.create()
    daemon.stop(signal.SIGKILL)
    path = daemon.data / "catalog.duckdb"
    kept = path.rename(path.with_suffix(".kept"))
    with pytest.raises(AssertionError, match="the catalog is missing"):
        daemon.start()
    kept.rename(path)
    daemon.start()
    assert daemon.ok("queues.info", queue_name=q)["queue_name"] == q


def test_after_a_while_a_catalog_has_everything_in_its_file(fresh):
    daemon = fresh()
    q = daemon.create()
    log = daemon.data / "catalog.duckdb.wal"
    until(lambda: not log.exists() or not log.stat().st_size)
    daemon.stop(signal.SIGKILL)
    log.unlink(missing_ok=True)
    daemon.start()
    assert daemon.ok("queues.info", queue_name=q)["queue_name"] == q


def test_far_clocks(fresh):
    daemon = fresh()
    q = daemon.create()
    daemon.ok("clock.set", now="9999-12-31T23:59:59.999Z")
    daemon.produce(q, "a", "b")
    items = daemon.items(q)
    assert len(items) == 2
    assert [i["id"] for i in daemon.items(q, pivot=items[1]["id"])] == [items[1]["id"]]
    assert daemon.take(q)[0]["lease_deadline"].startswith("9999-12-31")
