"""Fixtures with a storage in memory and a storage on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from querator.daemon.store.base import Storage, Store
from querator.daemon.store.duck.storage import DuckStorage
from tests.memory_storage import MemoryStorage
from tests.store.store_making import UUID


@pytest.fixture(params=["memory", "duckdb"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage("memory")
        return
    duck = DuckStorage("disk", tmp_path)
    duck.recover()
    yield duck
    duck.close()


@pytest.fixture
def store(storage: Storage) -> Store:
    return storage.create(UUID, "orders")
