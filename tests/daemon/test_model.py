"""The random model of `model.py` on both storages."""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import settings

from querator.config_file import LimitsConfig
from querator.daemon.store.duck.storage import DuckStorage
from tests.daemon.driver import Driver
from tests.daemon.model import QueueMachine


class BreakableDuckStorage(DuckStorage):
    """Writes can be refused, as on a full disk."""

    def drop(self, taken: object) -> None:
        self._staged.drop(taken)


class DuckQueueMachine(QueueMachine):
    def make_driver(self, bounds: LimitsConfig) -> Driver:
        self.directory = tempfile.mkdtemp(prefix="querator-model-")
        storage = BreakableDuckStorage("default", self.directory)
        storage.recover()
        return Driver(storage, bounds)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "d"):
            self.d.storage.close()
            shutil.rmtree(self.directory)


TestOnMemory = QueueMachine.TestCase
TestOnMemory.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestOnDuckDb = DuckQueueMachine.TestCase
TestOnDuckDb.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)
