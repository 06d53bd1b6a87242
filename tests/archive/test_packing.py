"""Large log objects are made in a process of their own. Whatever happens to it, the archive gets the same objects."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import care
from querator.daemon.archive.packing import Packer, PackingProcess, SealOrder, Unusable
from querator.daemon.store import Position
from querator.daemon.store.journal.records import SEGMENT_HEADER_BYTES
from tests.archive.looking import bucket_of, restored, shipped, shipper_of
from tests.daemons import Daemon
from tests.maintenance.house import House
from tests.waiting import until

OpenHouse = Callable[..., House]


@pytest.fixture
def small_objects_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_PACKING_BYTES_MIN", 1)


@pytest.fixture
def house(open_house: OpenHouse, archive: ArchiveConfig, small_objects_are_large: None) -> House:
    """A service whose packing process has started."""
    house = open_house("live", archive=archive)
    house.create()
    packers = shipper_of(house)._packers

    def has_started() -> bool:
        house.produce("warm up")
        shipped(house)
        return packers._process is not None and packers._process._is_ready

    until(has_started)
    return house


def process_of(house: House) -> PackingProcess:
    process = shipper_of(house)._packers._process
    assert process is not None
    return process


def check_restored(house: House, archive: ArchiveConfig, directory: Path) -> None:
    shipped(house)
    care.verify(bucket_of(archive))
    again = restored(archive, directory)
    assert sorted(again.contents()) == sorted(house.contents())
    again.close()


def test_the_process_makes_the_same_object_as_the_thread(open_house: OpenHouse) -> None:
    house = open_house("live")
    house.create()
    house.produce("1", "2" * 5_000)
    feed = house.registry.storages["default"].feed
    (chunk,) = feed.take(Position(feed.end().segment, SEGMENT_HEADER_BYTES)).chunks
    missing = chunk._replace(path=Path("/nowhere/1.seg"))
    order = SealOrder(msgspec.json.encode({"number": 7}), [0], b"the catalog")
    process = PackingProcess()
    try:
        until(process.is_ready)
        assert process.look([chunk, missing]) == Packer().look([chunk, missing])
        packer = Packer()
        packer.look([chunk, missing])
        assert process.seal(order) == packer.seal(order)
    finally:
        process.close()


def test_objects_of_the_process_are_restored(house: House, archive: ArchiveConfig, tmp_path: Path) -> None:
    used_at = process_of(house).used_at
    house.produce("1", "2")
    shipped(house)
    assert process_of(house).used_at > used_at
    check_restored(house, archive, tmp_path / "restored")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_too_slow_is_done_without(
    how: signal.Signals, house: House, archive: ArchiveConfig, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(limits, "ARCHIVE_PACKING_SECONDS_MAX", 0.1)
    pid = process_of(house).pid
    os.kill(pid, how)
    with caplog.at_level(logging.WARNING, "querator.archive"):
        house.produce("after")
        shipped(house)
    assert "the archive's packing process cannot be used" in caplog.messages
    assert shipper_of(house)._packers._process is None
    assert not Path(f"/proc/{pid}").exists()
    check_restored(house, archive, tmp_path / "restored")


def test_a_process_that_dies_between_its_two_answers_is_done_without(
    house: House, archive: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(process: PackingProcess, order: SealOrder) -> None:
        process._process.kill()
        process._process.wait()
        real_seal(process, order)
        raise AssertionError("a dead process has answered")

    real_seal = PackingProcess.seal
    monkeypatch.setattr(PackingProcess, "seal", die)
    house.produce("after")
    check_restored(house, archive, tmp_path / "restored")


def test_a_process_that_ends_at_its_start_is_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    process = PackingProcess()
    with pytest.raises(Unusable, match="has ended"):
        until(process.is_ready)
    process.close()


def test_an_idle_process_is_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_PACKING_IDLE_SECONDS", 0.0)
    monkeypatch.setattr(limits, "ARCHIVE_PACKING_BYTES_MIN", 1_000_000)
    pid = process_of(house).pid
    house.produce("a small object")
    shipped(house)
    assert not Path(f"/proc/{pid}").exists()


def test_the_process_ends_with_its_daemon(tmp_path: Path) -> None:
    config = tmp_path / "querator.toml"
    config.write_text(f'[archive]\nurl = "file://{tmp_path / "archive"}"\ninterval = "20ms"\n')
    (tmp_path / "data").mkdir()
    with Daemon(tmp_path / "data", "--config", str(config)) as daemon:
        daemon.client.create_queue("q")

        def packing() -> list[int]:
            daemon.client.produce("q", ["x" * 500_000] * 3)
            tasks = Path(f"/proc/{daemon.process.pid}/task").iterdir()
            return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]

        until(packing)
        (pid,) = packing()
        daemon.kill()
        until(lambda: not Path(f"/proc/{pid}").exists(), "the packing process outlives its daemon")
