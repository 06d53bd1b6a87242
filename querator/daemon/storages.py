"""The storages of a daemon by name: opened at the start, or later when their directory becomes usable."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from querator.config import StorageConfig
from querator.daemon.store import Storage, StorageError, Store, open_storage
from querator.errors import RequestFailed
from querator.items import Placement

log = logging.getLogger("querator.service")


class Storages(dict[str, Storage]):
    """Holds the usable storages. Methods that block are called in worker threads."""

    def __init__(
        self, configs: Sequence[StorageConfig], added: Callable[[Storage], None], are_copied: bool = False
    ) -> None:
        """`are_copied` says whether an archive copies the journals."""
        super().__init__()
        self._configs = {config.name: config for config in configs}
        self._are_copied = are_copied
        self.withheld = ""
        """Why no partition may be opened at present; empty if they may."""
        self._added = added
        """Called on the loop's thread for a storage that is opened late."""
        self._loop = asyncio.get_running_loop()
        self._reopening = threading.Lock()
        self._opened_late: dict[str, Storage] = {}

    def open_all(self) -> None:
        """Blocking. Opens every storage that can be opened, and logs why the others cannot."""
        for config in self._configs.values():
            try:
                self[config.name] = open_storage(config.name, config.directory, self._are_copied)
            except (StorageError, OSError) as error:
                log.error("storage cannot be used", extra={"storage": config.name, "reason": str(error)})

    def unusable(self) -> list[str]:
        """The names of configured storages that could not be opened."""
        return [name for name in self._configs if name not in self]

    def opened(self, name: str) -> Storage:
        """Blocking. Returns the storage. Opens it if the start could not, and reopens it if it failed as a whole."""
        with self._reopening:
            storage = self.get(name) or self._opened_late.get(name)
            if storage is None:
                storage = self._open_late(name)
            elif storage.failure:
                storage.reopen()
        return storage

    def _open_late(self, name: str) -> Storage:
        config = self._configs.get(name)
        if config is None:
            raise StorageError(f"storage '{name}' is not configured")
        try:
            storage = self._opened_late[name] = open_storage(config.name, config.directory, self._are_copied)
        except (StorageError, OSError) as error:
            raise StorageError(f"storage '{name}' cannot be used: {error}") from error
        log.info("storage can be used now", extra={"storage": name})
        # The loop must know the storage before a store in it is opened.
        self._loop.call_soon_threadsafe(self._add, storage)
        return storage

    def _add(self, storage: Storage) -> None:
        self[storage.name] = storage
        self._added(storage)

    # -- stores

    def open_store(self, placement: Placement) -> Store:
        """Blocking."""
        if self.withheld:
            raise StorageError(self.withheld, [placement.uuid])
        return self.opened(placement.storage).open(placement.uuid, placement.queue)

    def release_store(self, placement: Placement) -> None:
        """Blocking. Drops the open file of a partition that failed."""
        storage = self.get(placement.storage)
        if storage is not None:
            storage.release(placement.uuid)

    def apply_journal(self, placement: Placement) -> None:
        """Blocking. Brings a closed partition's file up to date with the journal."""
        self.open_store(placement).close()

    def check_catalog(self, is_there: bool) -> None:
        """Blocking. Refuses to start if a catalog is not there, or lists nothing, although there are partition files:
        it must have been lost."""
        found = sorted(path for config in self._configs.values() for path in config.directory.glob("*.duckdb"))
        if found and not is_there:
            raise RequestFailed(
                f"the catalog is missing or empty, but there are partition files, such as {found[0]}",
                hint="put catalog.duckdb back from a backup, or move these files away to start empty",
            )

    def log_unknown_files(self, known: set[str]) -> None:
        """Logs partition files that the catalog does not list, and leaves them alone."""
        for storage in self.values():
            for path in sorted(path for path in storage.directory.glob("*.duckdb") if path.stem not in known):
                log.warning("partition file is in no queue", extra={"storage": storage.name, "file": path.name})
