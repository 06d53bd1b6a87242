"""A disk fills because the archive is away: serving goes on, and the archive starts over from fresh bases."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator.errors import QueratorError
from tests.archive.object_stores import S3, FaultyProxy
from tests.cli.test_full_disk import NO_SPACE, SmallDisk, disk, reason, state
from tests.daemons import Daemon, querator
from tests.waiting import until

__all__ = ["disk"]


@pytest.fixture
def config(disk: SmallDisk, tmp_path: Path, s3: S3, proxy: FaultyProxy) -> Path:
    """A storage on a small disk, and an archive behind the proxy."""
    url, options = s3.archive(proxy.endpoint)
    lines = [f'{name} = "{value}"' for name, value in options.items()]
    settings = [f'url = "{url}"', 'interval = "50ms"', "[archive.options]", *lines]
    storage = ["[[storages]]", 'name = "small"', f'directory = "{disk.directory}"']
    path = tmp_path / "config.toml"
    path.write_text("\n".join([*storage, "[archive]", *settings]))
    return path


@pytest.fixture
def daemon(config: Path, tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        yield daemon


def messages(daemon: Daemon) -> list[str]:
    return [record["message"] for record in daemon.log]


def test_segments_that_wait_for_the_archive_do_not_fill_the_disk(
    daemon: Daemon, config: Path, proxy: FaultyProxy, tmp_path: Path
) -> None:
    client = daemon.client
    client.create_queue("q")
    client.produce("q", "before")
    until(lambda: "nothing is copied yet" not in client.health()["archive"][0])
    proxy.fault = lambda handler, body: handler.refuse()
    payload = "x" * 500_000
    # 40 MB pass through a disk of 24 MB. Items are completed, so that only segments could fill the disk.
    for _ in range(80):
        client.produce("q", payload)
        found = client.lease("q", 1)
        client.complete("q", [found.items[0].id], partition=found.partition)
    assert any("segments are no longer kept for the archive" in text for text in messages(daemon))
    # The disk was never full, so no request had to wait.
    assert "storage failed" not in messages(daemon) and state(client) == "available"
    client.produce("q", "after")
    proxy.fault = None
    until(lambda: "archive starts over from fresh bases" in messages(daemon))
    until(lambda: "base was taken" in messages(daemon))
    there = [item.payload for item in client.list_items("q")]
    assert len(there) == 2 and there[1] == b"after"
    assert daemon.stop() == 0
    done = querator(tmp_path, "archive", "restore", "--to", str(tmp_path / "restored"), "--config", str(config))
    assert done.returncode == 0, done.stderr
    (tmp_path / "again").mkdir()
    restored = ["--config", str(tmp_path / "restored" / "config.toml"), "--archive", "off"]
    with Daemon(tmp_path / "again", *restored, data=str(tmp_path / "restored")) as again:
        assert [item.payload for item in again.client.list_items("q")] == there


def test_a_disk_that_is_full_before_the_bound_is_a_full_disk(
    daemon: Daemon, disk: SmallDisk, proxy: FaultyProxy
) -> None:
    client = daemon.client
    client.create_queue("q")
    client.produce("q", "a")
    until(lambda: "nothing is copied yet" not in client.health()["archive"][0])
    proxy.fault = lambda handler, body: handler.refuse()

    def is_full() -> bool:
        disk.leave(0)
        with contextlib.suppress(QueratorError):
            client.produce("q", "x" * 100_000, timeout=0.2)
        return state(client) == "error"

    until(is_full)
    assert NO_SPACE in reason(client)
    disk.empty()
    until(lambda: state(client) == "available")
    client.produce("q", "b")
    proxy.fault = None
    until(lambda: "archive" in client.health()["archive"][0] and client.health()["status"] == "pass")


def test_a_copy_for_the_archive_does_not_fill_the_disk(
    disk: SmallDisk, config: Path, tmp_path: Path, proxy: FaultyProxy
) -> None:
    archive = config.read_text().partition("[archive]")
    config.write_text("".join(archive[1:]))
    data = str(disk.directory / "data")
    with Daemon(tmp_path, "--archive", "off", data=data) as daemon:
        daemon.client.create_queue("q")
        for _ in range(8):
            daemon.client.produce("q", os.urandom(500_000))
        assert daemon.stop() == 0
    disk.leave(4_000_000)
    with Daemon(tmp_path, "--config", str(config), data=data) as daemon:
        until(lambda: "a base was not taken" in messages(daemon))
        (record, *more) = [record for record in daemon.log if record["message"] == "a base was not taken"]
        assert "has no room for a copy" in record["reason"] and not more
        assert state(daemon.client) == "available"
        disk.empty()
        until(lambda: "base was taken" in messages(daemon))
