"""A DuckDB instance in memory, to which partition files are attached."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb

from querator import limits
from querator.daemon import priority
from querator.daemon.store.duck.database import with_room
from querator.daemon.store.duck.partition_file import PartitionFile

_log = logging.getLogger(__name__)

ROW_GROUP_ROWS: Final = 2_048
"""The smallest size that DuckDB takes. A checkpoint writes the last row group of a table again from its first row, and
a transaction that adds whole row groups writes them to the file at once, without writing them to the log first."""

_THREADS: Final = max(1, (os.cpu_count() or 1) - 1)
"""DuckDB would use every processor, also the one on which the event loop runs."""


class Instance:
    """A DuckDB instance that can reach the files of one directory and nothing else."""

    def __init__(self, directory: Path, trust_torn_logs: bool = False, is_brief: bool = False) -> None:
        """`is_brief` is for an instance that one job uses and then closes. It may use more memory from the start."""
        config: dict[str, Any] = {} if is_brief else {"threads": _THREADS}
        self._database = priority.at_low_priority(lambda: duckdb.connect(":memory:", config=config))
        self._cursors = threading.local()
        self.memory_bytes = limits.DUCKDB_MEMORY_BYTES
        if is_brief:
            self.memory_bytes = min(limits.DUCKDB_JOB_MEMORY_BYTES, _memory_bytes_max())
        if trust_torn_logs:
            # Otherwise closing the instance would merge a damaged log into its file, and remove the log.
            self._database.execute("PRAGMA disable_checkpoint_on_shutdown")
        self._raising = threading.Lock()
        """Held while the memory limit changes."""
        self._changes = 0
        self.forgotten = 0
        """How often `forget_blocks` has lowered the limit for a moment."""
        place = str(directory).replace("'", "''")
        for setting in (
            f"memory_limit = '{self.memory_bytes} B'",
            f"temp_directory = '{place}/tmp'",
            # A commit that starts a checkpoint waits for it. So only `checkpoint` starts one.
            "checkpoint_threshold = '1TB'",
            # A damaged log is an error, instead of a silent loss of commits.
            f"debug_abort_on_wal_failure = {not trust_torn_logs}",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            f"allowed_directories = ['{place}']",
            "enable_external_access = false",
            "allowed_configs = ['memory_limit']",
            "lock_configuration = true",
        ):
            self._database.execute(f"SET {setting}")

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """The calling thread's own cursor."""
        cursor: duckdb.DuckDBPyConnection | None = getattr(self._cursors, "cursor", None)
        if cursor is None:
            cursor = self._cursors.cursor = self._database.cursor()
        return cursor

    def new_cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor for a transaction that outlives a call."""
        return self._database.cursor()

    def attach(self, name: str, path: Path, *options: str) -> PartitionFile:
        place = str(path).replace("'", "''")
        listed = ", ".join((f"ROW_GROUP_SIZE {ROW_GROUP_ROWS:d}", *options))
        with_room(self, lambda: self.cursor().execute(f"ATTACH '{place}' AS {name} ({listed})"))
        return PartitionFile(name, self)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Keeps `forget_blocks` away. A transaction or checkpoint that runs out of memory cannot always be undone."""
        with self._raising:
            self._changes += 1
        try:
            yield
        finally:
            with self._raising:
                self._changes -= 1

    def make_room(self, had_bytes: int, forgotten: int) -> bool:
        """Doubles the memory that DuckDB may use, up to its share of the machine. False if it has its share already.
        The arguments are `memory_bytes` and `forgotten` as they were when the work began that ran out of memory.

        DuckDB unpacks the payloads of 2,048 neighbouring rows at once, however large they are. Most payloads are small,
        and with a high limit from the start DuckDB would fill its memory with blocks that it does not need.
        """
        with self._raising:
            if self.memory_bytes > had_bytes or self.forgotten != forgotten:
                return True  # another thread has raised the limit meanwhile, or had lowered it for a moment
            wanted = min(2 * had_bytes, _memory_bytes_max())
            if wanted <= had_bytes:
                return False
            self.cursor().execute(f"SET memory_limit = '{wanted} B'")
            self.memory_bytes = wanted
        _log.warning("DuckDB needs more memory for large payloads; it may use %d MB now", wanted // 1_000_000)
        return True

    def forget_blocks(self) -> None:
        """Makes DuckDB free the blocks that it keeps in memory in case it needs them again."""
        with self._raising:
            if self._changes:
                return
            self.forgotten += 1
            for allowed in (limits.DUCKDB_RESTING_BYTES, self.memory_bytes):
                # A statement that runs meanwhile keeps the blocks that it needs.
                with contextlib.suppress(duckdb.Error):
                    self.cursor().execute(f"SET memory_limit = '{allowed} B'")

    def detach(self, name: str) -> None:
        self.cursor().execute(f"DETACH DATABASE IF EXISTS {name}")

    def is_alive(self) -> bool:
        try:
            self.cursor().execute("SELECT 1").fetchall()
        except duckdb.Error:
            return False
        return True

    def close(self) -> None:
        self._cursors = threading.local()
        self._database.close()


def _memory_bytes_max() -> int:
    there: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return there * limits.DUCKDB_MEMORY_PERCENT_MAX // 100
