"""A storage fills up. Every command that an operator may look at reports it, before and after the disk is full."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import Client
from querator.cli.lookups import metrics
from querator.errors import QueratorError
from tests.cli.command_line import CommandLine
from tests.daemons import Daemon
from tests.waiting import until

STORAGE_BYTES = 24_000_000
NO_SPACE = "No space left on device"


class SmallDisk:
    """A small file system for a storage, and a ballast file that fills it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ballast = directory / "ballast"
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={STORAGE_BYTES}", "tmpfs", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted: {done.stderr.strip()}")

    def leave(self, free_bytes: int) -> None:
        """Grows the ballast until only `free_bytes` are left. 0 fills the disk to its last byte."""
        with open(self._ballast, "ab", buffering=0) as file:
            try:
                # Looks again after each write, because a daemon may write meanwhile.
                while (size := self._free_bytes() - free_bytes) > 0:
                    file.write(bytes(min(size, 4_096)))
            except OSError:
                assert free_bytes == 0

    def _free_bytes(self) -> int:
        there = os.statvfs(self.directory)
        return there.f_bavail * there.f_frsize

    def empty(self) -> None:
        self._ballast.unlink()

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.directory)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    disk = SmallDisk(tmp_path / "small")
    yield disk
    disk.close()


@pytest.fixture
def daemon(disk: SmallDisk, tmp_path: Path) -> Iterator[Daemon]:
    config = tmp_path / "config.toml"
    config.write_text(f'[[storages]]\nname = "small"\ndirectory = "{disk.directory}"\n')
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        yield daemon


@pytest.fixture
def cli(daemon: Daemon, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, daemon.socket)


def state(client: Client, queue: str = "q") -> str:
    return client.list_partitions(queue)[0].state


def reason(client: Client, queue: str = "q") -> str:
    return client.list_partitions(queue)[0].reason


def is_full(disk: SmallDisk, client: Client, *queues: str) -> bool:
    """Fills the disk, and returns whether the daemon reports it for all queues."""
    disk.leave(0)
    return all(state(client, queue) == "error" for queue in queues)


def test_a_full_disk_shows_everywhere(cli: CommandLine, daemon: Daemon, disk: SmallDisk) -> None:
    client = daemon.client
    for queue in ("q", "idle"):
        client.create_queue(queue)
        client.produce(queue, "a")
    assert cli.ok("check", "partitions") and cli.ok("check", "daemon") and client.health()["status"] == "pass"
    # No client writes. The daemon must still notice the full disk, for every queue in the storage.
    until(lambda: not list((disk.directory / "journal").glob("*.seg")))  # the journal has deleted its spare files
    until(lambda: is_full(disk, client, "q", "idle"))
    before = client.list_partitions("q")[0]
    assert NO_SPACE in before.reason
    with pytest.raises(QueratorError):
        client.produce("q", "b" * 100_000, timeout=1)
    # The daemon opens the file again, which works. That must not look like a recovery.
    for _ in range(20):
        assert state(client) == "error"
    after = client.list_partitions("q")[0]
    assert NO_SPACE in after.reason and after.since == before.since
    assert NO_SPACE in cli.json("partitions", "show", "q", "0")["reason"]
    (partition,) = cli.json("queue", "stats", "q")["partitions"]
    assert partition["state"] == "error" and NO_SPACE in partition["reason"]
    (idle, q) = [json.loads(line) for line in cli.ok("top", "--once", "-o", "ndjson").splitlines()]
    assert q["state"] == idle["state"] == "error" and NO_SPACE in q["reason"]
    checked = cli("check", "partitions")
    assert checked.exit_code == 2 and "q/0 error: " in checked.stdout and NO_SPACE in checked.stdout
    checked = cli("check", "queue", "idle")
    assert checked.exit_code == 2 and "; error: " in checked.stdout and NO_SPACE in checked.stdout
    checked = cli("check", "daemon")
    assert checked.exit_code == 2 and NO_SPACE in checked.stdout
    health = client.health()
    assert health["status"] == "fail" and NO_SPACE in health["checks"]["queues:storage"][0]["output"]
    assert NO_SPACE in metrics.queues(client.metrics())["q"].partitions[0].trouble
    assert 'querator_partition_state{partition="0",queue="q",state="error"} 1.0' in client.metrics()
    (storage,) = cli.json("storages", "list")
    assert (
        storage["reason"]
        and storage["partition_bytes"] < STORAGE_BYTES / 2 < (disk.directory / "ballast").stat().st_size
    )
    # Stored items can still be read until a client tries to write.
    assert [item.payload for item in client.list_items("idle")] == [b"a"]
    disk.empty()
    until(lambda: state(client) == state(client, "idle") == "available")
    assert not reason(client)
    assert cli.ok("check", "partitions") and cli.ok("check", "daemon") and client.health()["status"] == "pass"
    client.produce("q", "b")
    messages = [record["message"] for record in daemon.log]
    assert messages.index("storage is full") < messages.index("storage has room again")


def test_a_disk_that_is_nearly_full_is_a_warning(cli: CommandLine, daemon: Daemon, disk: SmallDisk) -> None:
    client = daemon.client
    client.create_queue("q")
    disk.leave(2_000_000)
    until(lambda: "storage 'small' is nearly full" in reason(client))
    assert state(client) == "available"
    client.produce("q", "it still takes items")
    checked = cli("check", "partitions")
    assert checked.exit_code == 1 and "1 of 1 available; q/0 available: storage 'small' is nearly" in checked.stdout
    assert cli("check", "queue", "q").exit_code == 1
    assert cli("check", "daemon").exit_code == 1
    (storage,) = cli.json("storages", "list")
    assert storage["reason"].startswith("its disk is nearly full: 2.0 MB of")
    health = client.health()
    assert health["status"] == "warn" and "nearly full" in health["checks"]["queues:storage"][0]["output"]
    (row,) = [json.loads(line) for line in cli.ok("top", "--once", "-o", "ndjson").splitlines()]
    assert row["state"] == "available" and "nearly full" in row["reason"]
    findings = {one["check"]: one["status"] for one in json.loads(cli("doctor", "-o", "json").stdout)}
    assert findings["daemon"] == "warn"
    sizes = [one for one in metrics.parse(client.metrics()) if one.name == "querator_storage_free_bytes"]
    assert [(one.labels, one.value < 0.1 * STORAGE_BYTES) for one in sizes] == [({"storage": "small"}, True)]
    disk.empty()
    until(lambda: not reason(client))
    assert client.health()["status"] == "pass"
