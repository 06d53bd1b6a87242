"""Blocking work with the stores of partitions, in worker threads: one piece of work at a time per partition."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from querator.daemon import priority
from querator.daemon.engine.disks import Disk
from querator.daemon.queue import Partition, Read
from querator.daemon.store import StorageError
from querator.limits import WORKER_THREADS

log = logging.getLogger("querator.daemon.engine")


class PartitionThreads:
    def __init__(self, disks: Mapping[str, Disk], changed: Callable[[], None]) -> None:
        self._disks = disks
        self._changed = changed
        """Called on the loop's thread after each piece of work."""
        self._loop = asyncio.get_running_loop()
        self.pool = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="querator-worker", initializer=priority.lower)
        self.guard: AbstractContextManager[object] = contextlib.nullcontext()
        """Held while a piece of work runs. On a standby, reads take turns with the replay of the archive."""
        self._waiting: dict[Partition, deque[Read]] = {}
        """Every partition that has work under way, and the work that waits behind it."""

    def run(self, read: Read) -> None:
        """Runs the work now, or after the work that the partition has already."""
        waiting = self._waiting.get(read.partition)
        if waiting is None:
            self._waiting[read.partition] = deque()
            self._start(read)
        else:
            waiting.append(read)

    def is_busy(self, partition: Partition) -> bool:
        return partition in self._waiting

    def busy_partitions(self) -> int:
        return len(self._waiting)

    def _start(self, read: Read) -> None:
        def work() -> object:
            with self.guard:
                if read.flush is not None:
                    read.flush.flush()
                return read.work()

        pool = self._disks[read.partition.placement.storage].keeper if read.upkeep else self.pool
        future = self._loop.run_in_executor(pool, work)
        future.add_done_callback(lambda done: self._ended(read, done))

    def _ended(self, read: Read, future: asyncio.Future[object]) -> None:
        error = future.exception()
        if error is None:
            if read.flush is not None:
                read.partition.applied()
            read.done(future.result())
        else:
            if not isinstance(error, StorageError):
                log.error("reading failed", extra={"partition": read.partition.number}, exc_info=error)
            read.failed(error if isinstance(error, Exception) else RuntimeError(str(error)))
        waiting = self._waiting[read.partition]
        if waiting:
            self._start(waiting.popleft())
        else:
            del self._waiting[read.partition]
        self._changed()

    def close(self) -> None:
        self.pool.shutdown(wait=True)
