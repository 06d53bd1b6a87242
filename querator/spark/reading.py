"""`spark.read.format("querator")`: one Spark partition per queue partition, state and id range.

The view is what was in the queue when the read was planned: items that come later are not seen, items that are
completed before their range is read are missing, and so are those that come back under a new id meanwhile.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as ds

from querator.spark.options import Options
from querator.wire import arrow
from querator.wire.bulk import Condition

_COMPARISONS: Final[dict[type[ds.Filter], str]] = {
    ds.EqualTo: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
    ds.StringStartsWith: "prefix",
}
_FILTERED: Final = frozenset(arrow.ITEM.names) - {"id", "payload", "history"}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class Range(ds.InputPartition):
    """Items of one queue partition with after_id < id <= upto_id."""

    def __init__(self, partition: int, state: str, after_id: str, upto_id: str) -> None:
        super().__init__((partition, state, after_id, upto_id))
        self.partition, self.state, self.after_id, self.upto_id = partition, state, after_id, upto_id


class QueueReader(ds.DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:
        for one in filters:
            condition = as_condition(one)
            if condition is None:
                yield one
            else:
                self._conditions.append(condition)

    def partitions(self) -> Sequence[Range]:
        options = self._options
        states = ("stored", "scheduled") if options.state == "all" else (options.state,)
        ranges: list[Range] = []
        with options.bulk() as bulk:
            for state in states:
                for planned in bulk.plan(options.queue, state=state, splits=options.splits):
                    if not planned.items or not self._may_hold(planned.partition, state):
                        continue
                    after_id = ""
                    for upto_id in planned.upto_ids:
                        ranges.append(Range(planned.partition, state, after_id, upto_id))
                        after_id = upto_id
        # Spark wants at least one; an empty queue is a range that holds nothing.
        return ranges or [Range(-1, "", "", "")]

    def _may_hold(self, partition: int, state: str) -> bool:
        """Whether a range is worth a task, as far as the filters say."""
        for condition in self._conditions:
            values = condition.value if isinstance(condition.value, list) else [condition.value]
            if condition.op in ("=", "in"):
                if condition.column == "partition" and partition not in values:
                    return False
                if condition.column == "state" and (state == "scheduled") != ("scheduled" in values):
                    return "scheduled" in values and len(values) > 1
        return True

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
                filter=self._conditions,
                after_id=partition.after_id,
                upto_id=partition.upto_id,
            )


def as_condition(one: ds.Filter) -> Condition | None:
    """A filter in the daemon's words; None when Spark has to evaluate it itself."""
    if isinstance(one, ds.Not):
        inner = as_condition(one.child)
        nullable = inner is not None and arrow.ITEM.field(inner.column).nullable
        if inner is None or inner.op != "=" or nullable:
            return None
        return Condition(inner.column, "<>", inner.value)
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in _FILTERED:
        return None
    column = attribute[0]
    if isinstance(one, ds.IsNull | ds.IsNotNull):
        return Condition(column, "null" if isinstance(one, ds.IsNull) else "not null")
    if isinstance(one, ds.In):
        values = [_value(column, value) for value in one.value]
        known = [value for value in values if value is not None]
        return Condition(column, "in", known) if len(known) == len(values) else None
    op = _COMPARISONS.get(type(one))
    value = _value(column, getattr(one, "value", None))
    return None if op is None or value is None else Condition(column, op, value)


def _value(column: str, value: Any) -> str | int | None:
    type_ = arrow.ITEM.field(column).type
    if pa.types.is_string(type_):
        return value if isinstance(value, str) else None
    if pa.types.is_timestamp(type_):
        if not isinstance(value, datetime.datetime):
            return None
        # A time without a zone is Spark's way to say it in the machine's.
        return int((value.astimezone(datetime.UTC) - _EPOCH) / _MICROSECOND)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
