"""`df.write.format("querator")` and the streaming sink: items into a queue, each once, whatever Spark repeats.

A task cuts its rows into requests; which row goes into which request follows from the rows alone. A request's id is
made of the write, the task's partition and its number, never of the attempt, so that a task that is repeated, run twice
at once, or lost with its executor repeats the very same requests. If its rows come in another order the second time,
after a shuffle say, the daemon notices that a request id stands for other items and the write fails: nothing is lost or
doubled without a word. Sorting within partitions before writing makes such a plan repeatable.
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
"""What a task has written: its rows, the items that the daemon has acknowledged, and those that were new to it."""


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
        """The same as a function for `mapInArrow`, which can return what it has written."""
        done = self.write(batches)
        yield pa.record_batch({"rows": [done.rows], "items": [done.items], "added": [done.added]})

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        check_counts(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What is in the queue stays: a queue cannot take back what may have been leased. Repeating adds the rest."""


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """A batch that is replayed, by this query or after a restart from its checkpoint, adds nothing."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _task()
        partition = context.partitionId()
        query = self._options.request_id or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        # A replay may bring the rows in another order; a batch is small enough to be put into one here.
        fitted = [arrow.fitted(rows, self._schema) for rows in iterator]
        name = f"stream {query} {batch} {partition}"
        return write_requests(self._options, self._schema, name, requests(_in_order(fitted)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        check_counts(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch is replayed, and then adds what is missing."""


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
            # By source, whatever brings the same items again repeats the same request, from another job as well.
            by_source = options.request_id == BY_SOURCE
            answer = send(options.queue, [part], source_name(part) if by_source else f"{name} {number}")
            written.rows += part.num_rows
            written.items += answer.items
            written.added += answer.added
    return written


def source_name(part: pa.RecordBatch) -> str:
    """A request id that follows from where the items come from."""
    digest = hashlib.blake2b(digest_size=16)
    for source in part.column("source_id").to_pylist():
        digest.update(f"{source}\n".encode())
    return f"source {digest.hexdigest()}"


def requests(batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of bounded size whose bounds depend on the rows, not on how they came in batches."""
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
                taken = 1  # a row that is larger than a request should be; the daemon has the last word
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
    """Every task has said what it wrote, and the daemon has acknowledged as much."""
    done = [message for message in messages if message is not None]
    rows, items = sum(one.rows for one in done), sum(one.items for one in done)
    if len(done) != len(messages) or rows != items:
        raise QueratorError(
            f"the write is not whole: {rows:,} rows, {items:,} items acknowledged, "
            f"{len(messages) - len(done)} tasks without an answer"
        )
    return Totals(items, sum(one.added for one in done))
