"""`spark.read.format("querator")`: one Spark partition per queue partition, state and id range.

A read sees the items that were in the queue when it was planned. It does not see items that arrive later, and it misses
items that are completed, or get a new id by a retry, before their range is read.

The reader accepts no filters from Spark, because Spark would reuse the filters of the first use of a DataFrame for all
later uses (docs/adr/0044). Use the option `where` instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import datasource as ds

from querator.spark.options import Options


class Range(ds.InputPartition):
    """The items of one queue partition with after_id < id <= upto_id."""

    def __init__(self, partition: int, state: str, after_id: str, upto_id: str) -> None:
        super().__init__((partition, state, after_id, upto_id))
        self.partition, self.state, self.after_id, self.upto_id = partition, state, after_id, upto_id


class QueueReader(ds.DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[Range]:
        options = self._options
        states = ("stored", "scheduled") if options.state == "all" else (options.state,)
        ranges: list[Range] = []
        with options.bulk() as bulk:
            for state in states:
                for planned in bulk.plan(options.queue, state=state, splits=options.splits, where=options.where):
                    if not planned.items:
                        continue
                    after_id = ""
                    for upto_id in planned.upto_ids:
                        ranges.append(Range(planned.partition, state, after_id, upto_id))
                        after_id = upto_id
        # Spark needs at least one partition, so an empty queue gets a range without items.
        return ranges or [Range(-1, "", "", "")]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        if partition.partition < 0:
            return
        options = self._options
        with options.bulk() as bulk:
            yield from bulk.scan(
                options.queue,
                partition.partition,
                state=partition.state,
                columns=options.columns,
                where=options.where,
                after_id=partition.after_id,
                upto_id=partition.upto_id,
            )
