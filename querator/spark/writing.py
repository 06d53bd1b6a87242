"""`df.write.format("querator")` and the streaming sink: write each item to a queue once, even if Spark repeats tasks.

A task cuts its rows into requests. The cuts depend only on the rows. A request id is made from the write, the partition
of the task and a number, but not from the attempt. So a task that is repeated, or runs twice at once, sends the same
requests again. If the rows have another order the second time, such as after a shuffle, the daemon refuses a request
id that had other items before, and the write fails with an error. Sort within partitions before writing to avoid that.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from querator.errors import QueratorError
from querator.spark.options import BY_SOURCE, Options
from querator.wire import arrow

REQUEST_ROWS_MAX: Final = 10_000
REQUEST_BYTES_MAX: Final = 4_000_000


WRITTEN: Final = "rows long, items long, added long"
"""The result of a task: its rows, the items that the daemon acknowledged, and how many of them were new."""


class Written(WriterCommitMessage):
    def __init__(self, rows: int, items: int, added: int) -> None:
        self.rows, self.items, self.added = rows, items, added


class Totals(NamedTuple):
    items: int
    added: int


class QueueWriter(DataSourceArrowWriter):
    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._write_id = options.request_id or f"spark {uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        partition = _task().partitionId()
        fitted = (arrow.fitted(batch, self._schema) for batch in iterator)
        return write_requests(self._options, self._schema, f"{self._write_id} {partition}", requests(fitted))

    def write_as_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same as `write`, as a function for `mapInArrow`, which can return the result."""
        done = self.write(batches)
        yield pa.record_batch({"rows": [done.rows], "items": [done.items], "added": [done.added]})

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        check_counts(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Written items stay in the queue: consumers may have leased them. Repeating the write adds the rest."""


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """The streaming sink. A repeated batch adds nothing, even after a restart from the checkpoint."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _task()
        partition = context.partitionId()
        query = self._options.request_id or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        # A repeated batch may have another order, so sort it here. A batch is small enough for that.
        fitted = [arrow.fitted(rows, self._schema) for rows in iterator]
        name = f"stream {query} {batch} {partition}"
        return write_requests(self._options, self._schema, name, requests(_in_order(fitted)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        check_counts(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Spark repeats the batch, which then adds the missing items."""


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # Spark calls `write` in tasks only
    return context


def _in_order(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    ordered: list[pa.RecordBatch] = table.sort_by([(name, "ascending") for name in table.column_names]).to_batches()
    return ordered


def write_requests(options: Options, schema: pa.Schema, name: str, parts: Iterator[pa.RecordBatch]) -> Written:
    written = Written(0, 0, 0)
    with options.bulk() as bulk:
        send = bulk.produce if schema is arrow.PRODUCED or schema == arrow.PRODUCED else bulk.import_
        for number, part in enumerate(parts):
            # An id made from source ids also recognises the same items in another job.
            by_source = options.request_id == BY_SOURCE
            answer = send(options.queue, [part], source_name(part) if by_source else f"{name} {number}")
            written.rows += part.num_rows
            written.items += answer.items
            written.added += answer.added
    return written


def source_name(part: pa.RecordBatch) -> str:
    """A request id made from the source ids of the items."""
    digest = hashlib.blake2b(digest_size=16)
    for source in part.column("source_id").to_pylist():
        digest.update(f"{source}\n".encode())
    return f"source {digest.hexdigest()}"


def requests(batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut the rows into requests of limited size. The cuts depend on the rows, and not on their batches."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        ends = pc.cumulative_sum(pc.cast(pc.binary_length(batch.column("payload")), pa.int64())).to_numpy()
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            fitting = int(ends.searchsorted(before + REQUEST_BYTES_MAX - size, side="right")) - start
            taken = min(fitting, REQUEST_ROWS_MAX - rows, batch.num_rows - start)
            if taken == 0 and rows == 0:
                taken = 1  # a row that is larger than the limit; the daemon may still refuse it
            if taken:
                pending.append(batch.slice(start, taken))
                rows += taken
                size += int(ends[start + taken - 1]) - before
                start += taken
            if start < batch.num_rows or rows == REQUEST_ROWS_MAX:
                yield _joined(pending)
                pending, rows, size = [], 0, 0
    if pending:
        yield _joined(pending)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def check_counts(messages: Sequence[Any]) -> Totals:
    """The totals of all tasks. Raises if a task gave no result, or if the daemon acknowledged fewer items than rows."""
    done = [message for message in messages if message is not None]
    rows, items = sum(one.rows for one in done), sum(one.items for one in done)
    if len(done) != len(messages) or rows != items:
        raise QueratorError(
            f"the write is incomplete: {rows:,} rows, {items:,} items acknowledged, "
            f"{len(messages) - len(done)} tasks without an answer"
        )
    return Totals(items, sum(one.added for one in done))
