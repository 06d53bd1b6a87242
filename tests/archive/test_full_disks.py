"""The disk of a standby, or of a restore, fills up: nothing is lost, and the work goes on when there is room again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import Client
from tests.cli.test_full_disk import NO_SPACE, SmallDisk, disk
from tests.daemons import Daemon, querator
from tests.waiting import until

__all__ = ["disk"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(f'[archive]\nurl = "file://{tmp_path / "archive"}"\ninterval = "20ms"\nheartbeat = "200ms"\n')
    return path


@pytest.fixture
def owner(config: Path, tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "owner").mkdir()
    with Daemon(tmp_path / "owner", "--config", str(config)) as owner:
        owner.client.create_queue("q")
        owner.client.produce("q", "first")
        yield owner


def payloads(client: Client) -> list[bytes]:
    return sorted(item.payload for item in client.list_items("q", limit=1_000))


def test_a_standby_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(
    owner: Daemon, config: Path, disk: SmallDisk, tmp_path: Path
) -> None:
    data = disk.directory / "data"
    with Daemon(tmp_path, "--config", str(config), "--standby", data=str(data)) as standby:
        until(lambda: "compared" not in standby.client.health()["archive"][0])
        disk.leave(1_000_000)
        for _ in range(8):
            owner.client.produce("q", os.urandom(400_000))
        until(lambda: "cannot be followed" in str(standby.client.health()["checks"]))
        assert NO_SPACE in str(standby.client.health()["checks"])
        done = querator(tmp_path, "daemon", "promote", "--data", str(data), "--timeout", "30s")
        assert done.returncode == 1 and "not promoted" in done.stderr
        owner.client.produce("q", "still served")
        disk.empty()
        until(lambda: standby.client.health()["lag"]["objects"] == 0 and standby.client.health()["status"] == "pass")
        there = payloads(owner.client)
        done = querator(tmp_path, "daemon", "promote", "--data", str(data), "--timeout", "60s")
        assert done.returncode == 0, done.stderr + standby.output
        assert payloads(standby.client) == there


def test_a_restore_to_a_full_disk_goes_on_when_there_is_room(
    owner: Daemon, config: Path, disk: SmallDisk, tmp_path: Path
) -> None:
    for _ in range(12):
        owner.client.produce("q", os.urandom(400_000))
    there = payloads(owner.client)
    assert owner.stop() == 0
    disk.leave(3_000_000)
    words = ["archive", "restore", "--config", str(config), "--to", str(disk.directory / "restored")]
    done = querator(tmp_path, *words)
    assert done.returncode == 1 and NO_SPACE.lower() in done.stderr.lower() and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") and str(disk.directory) in done.stderr
    disk.empty()
    done = querator(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    with Daemon(tmp_path, "--archive", "off", data=str(disk.directory / "restored")) as again:
        assert payloads(again.client) == there
