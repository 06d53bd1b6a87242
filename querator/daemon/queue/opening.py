"""Opens, reads and closes the files of a queue's partitions, and handles their failures.

Nothing here blocks. Blocking work becomes a Read, which the driver runs in a worker thread between passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from querator.config_file import LimitsConfig
from querator.daemon.queue.agenda import NEVER, Agenda
from querator.daemon.queue.contents import add_loaded
from querator.daemon.queue.loading import Snapshot, read_snapshot
from querator.daemon.queue.partition import Partition
from querator.daemon.queue.remembered import Remembered
from querator.daemon.queue.requests import Read
from querator.daemon.store import ItemColumns, Store
from querator.items import Item, Placement
from querator.limits import RECOVERY_BACKOFF_MAX_NS, RECOVERY_BACKOFF_MIN_NS, US_PER_SECOND

log = logging.getLogger("querator.partitions")

T = TypeVar("T")


class PartitionFiles:
    def __init__(
        self,
        queue_name: str,
        placements: Iterable[Placement],
        bounds: LimitsConfig,
        wake: Callable[[], None],
        open_store: Callable[[Placement], Store],
        release_store: Callable[[Placement], None],
        noted_keys: Callable[[Placement, list[str]], Iterable[str]],
    ) -> None:
        self.agenda = Agenda()
        self.partitions = [Partition(placement, bounds, self.agenda) for placement in placements]
        self.by_prefix = {partition.prefix: partition for partition in self.partitions}
        self.remembered = Remembered(self.partitions, self.agenda)
        self.bounds = bounds
        self.open_store = open_store
        """Blocking. Opens a partition's store, or raises."""
        self.noted_keys = noted_keys
        """Blocking. Says which of these keys the catalog has for a partition that is offline."""
        self.reads: list[Read] = []
        """Work for the driver."""
        self.open_reads = 0
        """The number of reads that were asked for and have not ended."""
        self._queue_name = queue_name
        self._wake = wake
        self._release_store = release_store
        """Blocking. Closes the file of a partition that failed, without writing to it."""
        self._opening: set[Partition] = set()
        self._unwanted: dict[Partition, Store] = {}
        """Stores that finished opening after their partition was closed. Closing the partition closes them."""

    def add(self, placement: Placement) -> Partition:
        """Adds a partition, which is closed at first."""
        partition = Partition(placement, self.bounds, self.agenda)
        self.partitions.append(partition)
        self.by_prefix[partition.prefix] = partition
        return partition

    def remove_last(self, partition: Partition) -> None:
        """A partition's number is its place in the list, so only the last partition can be removed."""
        assert self.partitions[-1] is partition
        self.partitions.pop()
        del self.by_prefix[partition.prefix]

    # -- work for the driver

    def take_reads(self) -> list[Read]:
        reads, self.reads = self.reads, []
        return reads

    def block(
        self,
        partition: Partition,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        flush: Store | None = None,
        beside_upkeep: bool = False,
    ) -> None:
        """Asks the driver to run blocking work for a partition. Outside of a pass, `wake` must follow."""
        self.open_reads += 1

        def on_success(result: Any) -> None:
            self.open_reads -= 1
            done(result)

        def on_failure(error: Exception) -> None:
            self.open_reads -= 1
            failed(error)

        read = Read(partition, flush, work, on_success, on_failure, beside_upkeep=beside_upkeep)
        self.reads.append(read)
        self.agenda.asks_driver = True

    def read(
        self,
        partition: Partition,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        *,
        flush: bool = False,
        failed: Callable[[Exception], None] | None = None,
        fails_partition: Callable[[Exception], bool] = lambda error: True,
        beside_upkeep: bool = False,
    ) -> None:
        """`block` for work with the partition's open store. With `flush`, its file gets everything first.

        If the work fails, the partition goes into error, unless `fails_partition` returns False for the exception.
        """
        store = partition.store

        def on_failure(error: Exception) -> None:
            if partition.store is store and fails_partition(error):
                self.fail(partition, str(error))
            if failed is not None:
                failed(error)
            self._wake()

        self.block(partition, work, done, on_failure, store if flush else None, beside_upkeep)

    def ask(
        self,
        questions: Mapping[Partition, Callable[[], T]],
        ended: Callable[[dict[Partition, T], list[Exception]], None],
    ) -> None:
        """Asks several partitions, each with its own blocking work, and passes all answers and errors to `ended`.

        The file of an open partition gets everything first.
        """
        answers: dict[Partition, T] = {}
        errors: list[Exception] = []

        def count() -> None:
            if len(answers) + len(errors) == len(questions):
                ended(answers, errors)
                self._wake()

        def answered(partition: Partition, answer: T) -> None:
            answers[partition] = answer
            count()

        def failed(error: Exception) -> None:
            errors.append(error)
            count()

        for partition, question in questions.items():
            if partition.store is None:
                self.block(partition, question, partial(answered, partition), failed)
            else:
                self.read(partition, question, partial(answered, partition), flush=True, failed=failed)

    def load_window(self, partition: Partition) -> None:
        """Reads the next waiting items of a partition whose window has room.

        An apply of many items takes longer than the window lasts, so this read does not wait for one. An apply only
        adds items after the range that is read here, and `Contents.loaded` knows which items it removes.
        """
        store = partition.store
        assert store is not None
        window = partition.contents.window
        window.loading = True
        after, before = window.disk_range()
        # Items that are not durable yet are counted, and a read does not find them.
        may_come = store.unapplied_bytes or store.has_staged or partition.contents.has_changes

        def work() -> list[Item] | ItemColumns:
            return store.ready_ahead(after, before, window.read_items_max, self.bounds.ready_window_bytes)

        def done(found: list[Item] | ItemColumns) -> None:
            if partition.store is not store:
                return
            window.loading = False
            add_loaded(partition.contents, found)
            if (
                not (found or may_come)
                and window.on_disk > 0
                and before is None
                and window.disk_range() == (after, None)
            ):
                self.fail(partition, "storage holds fewer items than were counted")
            self._wake()

        self.read(partition, work, done, beside_upkeep=True)

    # -- partitions fail and recover

    def fail(self, partition: Partition, reason: str) -> None:
        """Puts the partition into error, and opens it again after a back-off, which doubles with each failure."""
        if not partition.health.error:
            extra = {"queue": self._queue_name, "partition": partition.number, "reason": reason}
            log.error("partition is in error", extra=extra)
        backoff = min(RECOVERY_BACKOFF_MAX_NS, RECOVERY_BACKOFF_MIN_NS << min(partition.relapses, 16))
        partition.fail(reason, self.agenda.now_us, self.agenda.now_ns + backoff)
        self._wake()

    def open_due(self, now_ns: int) -> None:
        """Opens partitions that should be open: at the start, and after a failure when its back-off is over."""
        for partition in self.partitions:
            if partition.contents.store is None:
                self.agenda.look_at_all = True
                if (
                    partition not in self._opening
                    and partition.should_be_open
                    and partition.health.retry_at_ns <= now_ns
                ):
                    self.open(partition)

    def next_try_ns(self) -> int:
        """When, on the monotonic clock, the next partition in error is opened again."""
        times = [p.health.retry_at_ns for p in self.partitions if p.health.error and p not in self._opening]
        return min(times, default=NEVER)

    def open(self, partition: Partition, then: Callable[[Exception | None], None] = lambda error: None) -> None:
        """Opens a closed partition and reads all of it."""
        self._opening.add(partition)
        now_us = self.agenda.now_us

        def work() -> tuple[Store, Snapshot]:
            store = self.open_store(partition.placement)
            return store, read_snapshot(store, self.bounds, now_us)

        def done(result: tuple[Store, Snapshot]) -> None:
            store, snapshot = result
            self._opening.discard(partition)
            self.remembered.read(partition, snapshot.newest_keys, snapshot.keys)
            if not partition.should_be_open:
                self._unwanted[partition] = store
                return
            failed_at = partition.health.error_since
            partition.opened(store, snapshot, self.agenda.now_us)
            if failed_at and not partition.health.shortage:
                self._log_recovery(partition, (self.agenda.now_us - failed_at) // US_PER_SECOND)
            then(None)
            self._wake()

        def failed(error: Exception) -> None:
            self._opening.discard(partition)
            self.fail(partition, str(error))
            then(error)

        self.block(partition, work, done, failed)

    def _log_recovery(self, partition: Partition, seconds: int) -> None:
        log.info(
            "partition recovered",
            extra={
                "queue": self._queue_name,
                "partition": partition.number,
                "state": str(partition.state),
                "seconds_in_error": seconds,
                "items": partition.counts.total,
                "scheduled": partition.counts.scheduled,
            },
        )

    def has_file(self, partition: Partition) -> bool:
        """Whether the partition's file is open or being opened, or has failed, so that it must be closed."""
        is_opened = partition.store is not None or partition in self._opening or partition in self._unwanted
        return is_opened or bool(partition.health.error)

    def close(self, partition: Partition, then: Callable[[Exception | None], None]) -> None:
        """Closes a partition's file, so that another process may open it."""
        open_store = partition.store
        partition.close()
        partition.health.clear_error()

        def work() -> None:
            store = open_store or self._unwanted.get(partition)
            if store is not None:
                store.close()
            else:
                self._release_store(partition.placement)

        def done(result: None) -> None:
            self._unwanted.pop(partition, None)
            # A write of the pass that closed the partition may have failed since. The file has all that is durable.
            partition.health.clear_error()
            then(None)

        def failed(error: Exception) -> None:
            self.fail(partition, str(error))
            then(error)

        self.block(partition, work, done, failed)
