"""Blocking work with the stores of partitions, in worker threads: one piece of work at a time per partition.

Only the read of the next waiting items may run beside upkeep: consumers wait for it, and upkeep can take seconds.
"""

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
        self._running: dict[Partition, list[Read]] = {}
        """The work under way: one read per partition, or upkeep and a read."""
        self._waiting: dict[Partition, deque[Read]] = {}
        """The work that waits, for every partition that has work under way."""

    def run(self, read: Read) -> None:
        """Runs the work now, or after the work that the partition has already."""
        running = self._running.setdefault(read.partition, [])
        if not running:
            read.beside_upkeep = False
            self._start(read)
        elif read.beside_upkeep and len(running) == 1 and running[0].upkeep:
            self._start(read)
        else:
            self._waiting.setdefault(read.partition, deque()).append(read)

    def is_busy(self, partition: Partition) -> bool:
        return partition in self._running

    def busy_partitions(self) -> int:
        return len(self._running)

    def _start(self, read: Read) -> None:
        def work() -> object:
            with self.guard:
                if read.flush is not None:
                    read.flush.flush()
                return read.work()

        self._running[read.partition].append(read)
        pool = self._disks[read.partition.placement.storage].keeper if read.upkeep else self.pool
        future = self._loop.run_in_executor(pool, work)
        future.add_done_callback(lambda done: self._ended(read, done))

    def _ended(self, read: Read, future: asyncio.Future[object]) -> None:
        partition = read.partition
        running = self._running[partition]
        running.remove(read)
        error = future.exception()
        if error is None:
            if read.flush is not None:
                partition.applied()
            read.done(future.result())
        elif read.beside_upkeep:
            # Upkeep that fails may attach the file again, and a read beside it finds none. So read again, alone.
            read.beside_upkeep = False
            self.run(read)
        else:
            if not isinstance(error, StorageError):
                log.error("reading failed", extra={"partition": partition.number}, exc_info=error)
            read.failed(error if isinstance(error, Exception) else RuntimeError(str(error)))
        if not running:
            self._next(partition)
        self._changed()

    def _next(self, partition: Partition) -> None:
        waiting = self._waiting.get(partition)
        if waiting:
            self.run(waiting.popleft())
        else:
            self._waiting.pop(partition, None)
            del self._running[partition]

    def close(self) -> None:
        self.pool.shutdown(wait=True)
