"""The daemon is killed at every step of every job. After the next start the job is finished or undone, without loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from querator.errors import TimedOut, Unreachable
from querator.wire import messages as m
from tests.daemons import Daemon, two_storages
from tests.maintenance.inspection import contents, jobs_ended

Trigger = Callable[[Daemon, Path], None]


def migrate_to_storage(daemon: Daemon, to: Path) -> None:
    daemon.client.migrate_partition("q", 1, to_storage="other")


def migrate_into_partition(daemon: Daemon, to: Path) -> None:
    daemon.client.migrate_partition("q", 1, to_partition=0)


def grow(daemon: Daemon, to: Path) -> None:
    # The daemon dies before it answers, and the client repeats the call until its timeout.
    with daemon.connect(timeout=5) as client:
        client.update_queue(m.QueueInfo(queue_name="q", requested_partitions=5))


def shrink(daemon: Daemon, to: Path) -> None:
    daemon.client.update_queue(m.QueueInfo(queue_name="q", requested_partitions=1))


def compact(daemon: Daemon, to: Path) -> None:
    daemon.client.compact_partitions("q")


def backup(daemon: Daemon, to: Path) -> None:
    daemon.client.backup_partitions("q", str(to / "again"))


def restore(daemon: Daemon, to: Path) -> None:
    daemon.client.restore_partitions("q", str(to / "backup"))


STEPS: dict[str, Trigger] = {
    "migrate.closed": migrate_to_storage,
    "migrate.copied": migrate_to_storage,
    "migrate.verified": migrate_to_storage,
    "migrate.placed": migrate_to_storage,
    "migrate.switched": migrate_to_storage,
    "migrate.deleted": migrate_to_storage,
    "transfer.arrived": migrate_into_partition,
    "transfer.arrived:2": migrate_into_partition,
    "transfer.removed": migrate_into_partition,
    "transfer.removed:2": migrate_into_partition,
    "transfer.arrived:3": shrink,
    "transfer.removed:3": shrink,
    "resize.created": grow,
    "resize.recorded": grow,
    "resize.emptied": shrink,
    "resize.remembered": shrink,
    "resize.removed": shrink,
    "resize.removed:2": shrink,
    "compact.copied": compact,
    "compact.switched": compact,
    "compact.switched:2": compact,
    "backup.written": backup,
    "backup.placed": backup,
    "backup.published": backup,
    "restore.staged": restore,
    "restore.closed": restore,
    "restore.placed": restore,
    "restore.recorded": restore,
    "restore.placed:2": restore,
}


@pytest.mark.parametrize("step", STEPS)
def test_killed_at(step: str, tmp_path: Path):
    with Daemon(tmp_path, *two_storages(tmp_path), failpoint=step) as daemon:
        client = daemon.client
        client.create_queue("q", partitions=3, lease_timeout="10m", expire_timeout="24h")
        texts = [f"{n}" for n in range(9000)]
        for start in range(0, 9000, 500):
            client.produce("q", texts[start : start + 500])
        if STEPS[step] is restore:
            client.backup_partitions("q", str(tmp_path / "backup"))
            jobs_ended(daemon.client)
        # These two jobs wait until no item is leased.
        held = [] if STEPS[step] in (shrink, migrate_into_partition) else client.lease("q", 1).items
        with contextlib.suppress(Unreachable, TimedOut):
            STEPS[step](daemon, tmp_path)
        daemon.until_killed()
        daemon.start()
        jobs = jobs_ended(daemon.client)
        assert {job.state for job in jobs} <= {"done"}, jobs
        client = daemon.client
        assert sorted(contents(daemon.client), key=int) == texts
        statuses = client.list_partitions("q")
        assert {status.state for status in statuses} == {"available"}, statuses
        if held and STEPS[step] is not restore:
            client.complete("q", [item.id for item in held])
            texts = [text for text in texts if text not in {item.payload.decode() for item in held}]
        _check_result(daemon, STEPS[step], statuses)
        client.produce("q", ["new"])
        client.verify_partitions("q")
        assert {job.state for job in jobs_ended(daemon.client)} <= {"done"}
        daemon.kill()
        daemon.start()
        assert sorted(contents(daemon.client)) == sorted([*texts, "new"])
        files = {path.stem for storage in ("default", "other") for path in (tmp_path / storage).glob("*.duckdb")}
        assert files == {status.file.removesuffix(".duckdb") for status in statuses}
        assert not [path for storage in ("default", "other") for path in (tmp_path / storage).glob("*.creating")]


def _check_result(daemon: Daemon, trigger: Trigger, statuses: list[m.PartitionStatus]) -> None:
    """Checks that the job has had its effect."""
    if trigger is migrate_to_storage:
        assert [status.storage for status in statuses] == ["default", "other", "default"]
    elif trigger is migrate_into_partition:
        assert statuses[1].total == 0
    elif trigger is shrink:
        assert len(statuses) == 1
    elif trigger is grow:
        # The client got no answer, so the queue may have grown or not.
        assert len(statuses) in (3, 5)
    elif trigger is backup:
        assert len(list((daemon.directory / "again").iterdir())) == 1 + len(statuses)
        daemon.client.restore_partitions("q", str(daemon.directory / "again"), dry_run=True)


@pytest.mark.parametrize("step", ["restore.staged", "restore.closed:2", "restore.placed", "restore.recorded:2"])
def test_killed_while_a_queue_is_made_from_a_backup(step: str, tmp_path: Path):
    with Daemon(tmp_path, *two_storages(tmp_path), failpoint=step) as daemon:
        client = daemon.client
        client.create_queue("q", partitions=3, lease_timeout="10m", expire_timeout="24h", reference="ours")
        texts = [f"{n}" for n in range(900)]
        for start in range(0, 900, 50):
            client.produce("q", texts[start : start + 50])
        client.pause_partitions("q", [1])
        client.backup_partitions("q", str(tmp_path / "backup"))
        jobs_ended(daemon.client)
        with contextlib.suppress(Unreachable, TimedOut):
            client.restore_partitions("copy", str(tmp_path / "backup"))
        daemon.until_killed()
        daemon.start()
        assert {job.state for job in jobs_ended(daemon.client)} == {"done"}
        assert daemon.client.queue_info("copy").reference == "ours"
        for name in ("q", "copy"):
            statuses = daemon.client.list_partitions(name)
            assert [(status.state, status.total) for status in statuses] == [
                ("available", 300), ("paused", 300), ("available", 300),
            ]  # fmt: skip
