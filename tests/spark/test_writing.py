"""`df.write.format("querator")` writes each row once, even if Spark repeats tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from querator.client.bulk_client import BulkClient
from tests.spark.seen import numbers, payloads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write(rows: Any, options: dict[str, str]) -> None:
    rows.write.format("querator").options(**options).mode("append").save()


def test_rows_become_items(spark: SparkSession, bulk: BulkClient, queue: str, options: dict[str, str]) -> None:
    rows = spark.range(25_000).selectExpr("cast(id as string) as payload", "concat('k', id % 3) as kind")
    write(rows, options)
    assert numbers(bulk, queue) == list(range(25_000))
    later = spark.sql("select 'x' as payload, timestamp'2999-01-01 00:00:00' as enqueue_at")
    write(later, options)
    assert payloads(bulk, queue, "scheduled") == ["x"]


def test_a_write_that_is_repeated_adds_nothing(
    spark: SparkSession, bulk: BulkClient, queue: str, options: dict[str, str]
) -> None:
    rows = spark.range(12_000).selectExpr("cast(id as string) as payload")
    for _ in range(2):
        write(rows, options | {"request_id": "one write"})
    assert numbers(bulk, queue) == list(range(12_000))


def test_tasks_that_fail_half_way_and_are_repeated_write_each_row_once(
    spark: SparkSession, bulk: BulkClient, queue: str, options: dict[str, str], tmp_path: Path
) -> None:
    """The first attempt of every task fails after it has written thousands of rows."""
    marks = str(tmp_path)

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = Path(marks, str(context.partitionId()))
        for number, batch in enumerate(batches):
            if number == 3 and not mark.exists():
                mark.touch()
                raise RuntimeError("this executor is gone")
            yield batch

    rows = spark.range(0, 80_000, 1, 2).selectExpr("cast(id as string) as payload")
    write(rows.mapInArrow(die_once, "payload string"), options)
    assert len(list(tmp_path.iterdir())) == 2
    assert numbers(bulk, queue) == list(range(80_000))


def test_a_task_whose_rows_change_when_it_is_repeated_fails_and_says_so(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    rows = spark.range(0, 30_000, 1, 1).selectExpr("cast(id as string) as payload")
    write(rows, options | {"request_id": "changing"})
    others = spark.range(0, 30_000, 1, 1).selectExpr("cast(30000 - id as string) as payload")
    with pytest.raises(Exception, match="used before for other items"):
        write(others, options | {"request_id": "changing"})


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select 'k' as kind", "column 'payload' is missing"),
        ("select 1 as payload", "column 'payload' is int"),
        ("select 'x' as payload, 1 as kind", "column 'kind' is int"),
        ("select 'x' as payload, 'y' as odd", "column 'odd' cannot be written"),
        ("select 'x' as payload, 'now' as enqueue_at", "column 'enqueue_at' is string"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_before_the_job_starts(
    spark: SparkSession, bulk: BulkClient, queue: str, options: dict[str, str], query: str, reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        write(spark.sql(query), options)
    assert payloads(bulk, queue) == []


def test_a_queue_is_not_overwritten(spark: SparkSession, options: dict[str, str]) -> None:
    with pytest.raises(Exception, match="cannot be overwritten"):
        spark.sql("select 'x' as payload").write.format("querator").options(**options).mode("overwrite").save()


def test_requests_are_cut_the_same_way_however_the_rows_come(needs_spark: None) -> None:
    from querator.spark.writing import REQUEST_BYTES_MAX, REQUEST_ROWS_MAX, requests

    sizes = [10] * 15_000 + [900_000] * 12 + [5_000_000, 1, 1] + [10] * 11_000
    rows = pa.record_batch({"payload": pa.array([bytes(size) for size in sizes], pa.binary())})
    cuts = []
    for step in (997, 10_000, 100_000):
        parts = list(requests([rows.slice(at, step) for at in range(0, rows.num_rows, step)]))
        assert pa.Table.from_batches(parts).column("payload").to_pylist() == rows.column("payload").to_pylist()
        cuts.append([part.num_rows for part in parts])
    assert cuts[0] == cuts[1] == cuts[2]
    assert max(cuts[0]) == REQUEST_ROWS_MAX
    assert all(p.num_rows == 1 or p.nbytes < REQUEST_BYTES_MAX + 200_000 for p in parts)
