from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import Bucket
from tests.archive.looking import shipped
from tests.archive.object_stores import S3, FaultyProxy
from tests.maintenance.house import House


@pytest.fixture(autouse=True)
def indexes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes are written after so many log objects, however fast these come."""
    monkeypatch.setattr(limits, "ARCHIVE_INDEX_SECONDS_MIN", 0.0)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    server = S3()
    yield server
    server.stop()


@pytest.fixture
def proxy(s3: S3) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(s3.endpoint)
    yield proxy
    proxy.fault = None
    proxy.close()


@pytest.fixture(params=["directory", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    if request.param == "directory":
        return Bucket(f"file://{tmp_path / 'archive'}")
    return Bucket(*request.getfixturevalue("s3").archive())


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveConfig:
    """An archive in a directory. Everything is copied to it at once."""
    return ArchiveConfig(f"file://{tmp_path / 'archive'}", interval=0.01, heartbeat=0.5)


@pytest.fixture
def open_house(tmp_path: Path) -> Iterator[Callable[..., House]]:
    """Makes whole services, each in a directory of its own."""
    houses: list[House] = []

    def make(name: str, *storages: str, **settings: Any) -> House:
        (tmp_path / name).mkdir(exist_ok=True)
        house = House(tmp_path / name, storages or ("default", "other"), **settings)
        houses.append(house)
        return house

    yield make
    for house in houses:
        if house.is_open:
            house.close()


@pytest.fixture
def live(open_house: Callable[..., House], archive: ArchiveConfig) -> House:
    house = open_house("live", archive=archive)
    house.create(partitions=2)
    house.produce("1", "2")
    shipped(house)
    return house


@pytest.fixture
def standby(live: House, open_house: Callable[..., House], archive: ArchiveConfig) -> House:
    return open_house("standby", archive=archive, standby=True)
