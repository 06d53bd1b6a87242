"""`spark.readStream.format("querator")`: the source leases items, and completes them when Spark has finished a batch.

An offset lists the items of a batch: for each queue partition, the runs of sequence numbers that the query has leased.
Spark saves offsets in its checkpoint before it runs a batch. After a crash, it reads the same batch again, while the
leases of the crashed query still hold. Items that are leased but not in a checkpoint yet are held for only a minute.

Items stay leased for `lease` seconds after the query was last alive. If a query is gone for longer, its items get new
ids. Nothing is lost then, but items of the last batch that the sink had already written are delivered again.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from querator import ids
from querator.client import Client
from querator.errors import InvalidRequest, QueratorError, RetryRequest
from querator.limits import BATCH_ITEMS_MAX
from querator.spark.options import Options
from querator.wire import arrow

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
"""A lease waits this long for items if the queue is empty."""
NOTED_SECONDS: Final = 60
"""Items are held this long until Spark has saved their offset. If Spark dies before, the leases expire."""

Runs = list[tuple[int, int]]
"""Pairs of first sequence number and item count, ascending."""


class Held:
    """Leased items of one queue partition."""

    def __init__(self, prefix: int, runs: Runs) -> None:
        self.prefix, self.runs = prefix, runs

    @classmethod
    def of(cls, texts: Sequence[str]) -> Held:
        decoded = [ids.decode(text) for text in texts]
        return cls(decoded[0].prefix, runs_of(sorted(one.seq for one in decoded)))

    @classmethod
    def parse(cls, text: str) -> Held:
        prefix, *runs = text.split(" ")
        return cls(int(prefix, 16), [(int(first), int(count)) for first, count in (run.split("+") for run in runs)])

    def __str__(self) -> str:
        return " ".join([f"{self.prefix:016x}", *(f"{first}+{count}" for first, count in self.runs)])

    @property
    def seqs(self) -> list[int]:
        return [seq for first, count in self.runs for seq in range(first, first + count)]

    @property
    def ids(self) -> list[str]:
        return ids.encode_many(self.prefix, self.seqs)


def runs_of(seqs: Sequence[int]) -> Runs:
    """Group ascending sequence numbers into runs. Items that were produced together are one run."""
    groups = itertools.groupby(enumerate(seqs), key=lambda pair: pair[1] - pair[0])
    return [(group[0][1], len(group)) for _, members in groups for group in [list(members)]]


class Batch(InputPartition):
    """The held items of one queue partition in one batch."""

    def __init__(self, partition: int, held: str) -> None:
        super().__init__((partition, held))
        self.partition, self.held = partition, held


def held_in(offset: dict[str, Any]) -> dict[int, Held]:
    return {int(number): Held.parse(text) for number, text in offset.get("held", {}).items()}


def ready(client: Client, queue: str, timeout: float | None = None) -> int:
    """The number of ready items in a queue."""
    stats = client.stats(queue, timeout=timeout)
    return sum(p.total - p.total_leased for q in stats.logical_queues for p in q.partitions)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._columns = options.columns
        self._keeper: Keeper | None = None
        self._left: int | None = None

    # On the driver

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0, "held": {}}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.items_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read the items that are ready now. Later items are left for the next run."""
        with self._options.client() as client:
            self._left = ready(client, self._options.queue)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Lease the next batch. Spark calls this only after it has finished the batch that ends at `start`."""
        keeper = self._started()
        keeper.complete(held_in(start))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.items_per_batch
        if self._left is not None:
            most = min(most, self._left)
        leased = keeper.lease(most)
        count = sum(len(texts) for texts in leased.values())
        if not count:
            return start
        if self._left is not None:
            self._left -= count
        held = {str(number): str(Held.of(texts)) for number, texts in sorted(leased.items())}
        return {"batch": start["batch"] + 1, "held": held}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Batch]:
        if start == end:
            return []
        held = held_in(end)
        self._started().hold(held)
        return [Batch(number, str(one)) for number, one in held.items()]

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The progress of the query, which Spark shows as `latestOffset` of the source."""
        keeper = self._started()
        try:
            return {"lag": keeper.ready(), "leased": keeper.leased, "completed": keeper.completed}
        except QueratorError:
            return None  # do not wait for a missing daemon just to show progress

    def commit(self, end: dict[str, Any]) -> None:
        self._started().complete(held_in(end))

    def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()

    def _started(self) -> Keeper:
        # Created on use, because the reader is also sent to executors, which lease nothing.
        if self._keeper is None:
            self._keeper = Keeper(self._options)
        return self._keeper

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keeper": None}

    # On executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Batch)
        held = Held.parse(partition.held)
        wanted = arrow.id_column(held.prefix, pa.array(held.seqs, pa.int64()))
        options = self._options
        columns = arrow.chosen(arrow.ITEM, options.columns).names
        found = 0
        with options.bulk() as bulk:
            first, last = held.runs[0], held.runs[-1]
            for batch in bulk.scan(
                options.queue,
                partition.partition,
                state="leased",
                columns=[*columns, "id"],
                after_id=ids.encode(held.prefix, first[0] - 1),
                upto_id=ids.encode(held.prefix, last[0] + last[1] - 1),
            ):
                ours = batch.filter(pc.is_in(batch.column("id"), wanted))
                found += ours.num_rows
                if ours.num_rows:
                    yield ours.select(columns)
        if found < len(wanted):
            log.warning("%d items of the batch are no longer leased; a later batch will have them", len(wanted) - found)


class Keeper:
    """Holds the leases of a query. Its own thread extends them until they are completed."""

    def __init__(self, options: Options) -> None:
        self._queue = options.queue
        self._lease_seconds = options.lease_seconds
        self._client: Client = options.client()
        self._held: set[str] = set()
        self._leased: set[str] = set()
        """The held items, and items of a batch whose offset Spark has not saved yet."""
        self.completed = 0
        """Items that this query has completed since its start."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._extend_periodically, args=(options.lease_seconds / 3,), daemon=True
        )
        self._thread.start()

    def lease(self, most: int) -> dict[int, list[str]]:
        leased: dict[int, list[str]] = {}
        while most > 0:
            try:
                answer = self._client.lease(self._queue, min(most, BATCH_ITEMS_MAX), timeout=LOOK_SECONDS)
            except RetryRequest:
                break
            texts = [item.id for item in answer.items]
            self._extend(texts, min(NOTED_SECONDS, self._lease_seconds))
            leased.setdefault(answer.partition, []).extend(texts)
            self._leased.update(texts)
            most -= len(texts)
        return leased

    def hold(self, held: dict[int, Held]) -> None:
        """Hold the items of a batch whose offset Spark has saved. This query or its predecessor has leased them."""
        for one in held.values():
            texts = [text for text in one.ids if text not in self._held]
            for first in range(0, len(texts), BATCH_ITEMS_MAX):
                some = texts[first : first + BATCH_ITEMS_MAX]
                self._extend(some, self._lease_seconds)
                with self._lock:
                    self._held.update(some)
                    self._leased.update(some)

    def complete(self, held: dict[int, Held]) -> None:
        """Complete items that Spark does not need any more. Items that are completed already are ignored."""
        for number, one in held.items():
            texts = one.ids
            for first in range(0, len(texts), BATCH_ITEMS_MAX):
                some = texts[first : first + BATCH_ITEMS_MAX]
                self._split_if_refused(
                    some, lambda part, number=number: self._client.complete(self._queue, part, partition=number)
                )
                with self._lock:
                    self.completed += len(self._leased.intersection(some))
                    self._held.difference_update(some)
                    self._leased.difference_update(some)

    @property
    def leased(self) -> int:
        return len(self._leased)

    def ready(self) -> int:
        """The number of ready items. Raises at once if the daemon does not answer."""
        return ready(self._client, self._queue, timeout=LOOK_SECONDS)

    def _extend(self, texts: list[str], seconds: int) -> None:
        self._split_if_refused(texts, lambda part: self._client.extend(self._queue, part, lease_timeout=f"{seconds}s"))

    def _split_if_refused(self, texts: list[str], call: Any) -> None:
        """Call for all items, and for halves of them if the daemon refuses: a lost lease must not affect others."""
        try:
            call(texts)
        except InvalidRequest as error:
            if len(texts) == 1:
                log.warning("the lease of an item was lost: %s", error.message)
                return
            middle = len(texts) // 2
            self._split_if_refused(texts[:middle], call)
            self._split_if_refused(texts[middle:], call)

    def _extend_periodically(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            with self._lock:
                texts = list(self._held)
            for first in range(0, len(texts), BATCH_ITEMS_MAX):
                try:
                    self._extend(texts[first : first + BATCH_ITEMS_MAX], self._lease_seconds)
                except QueratorError as error:
                    log.warning("leases could not be extended: %s", error.message)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(1)
        self._client.close()
