"""Redrive with Spark: repairs dead items with SQL, and returns them to the queues in which they died.

Each task takes an id range of the dead queue. For a few thousand items at a time, it imports them into their origin
queue, and then deletes them from the dead queue. Every item keeps its dead id as its source id, and the origin queue
remembers source ids for a month. So a repeated task adds nothing, even if it forms other batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from querator.errors import QueratorError
from querator.limits import BATCH_ITEMS_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTCOME: Final = "origin string, items long, failed long, reason string"
_HISTORY: Final = "array<struct<queue_name: string, source_id: string, reason: string, attempts: int, at: bigint>>"
CHUNK_ITEMS: Final = 2_000


def dead_items(spark: SparkSession, options: Mapping[str, str], **more: str) -> DataFrame:
    """The items of a dead queue, with columns about their last death: `reason`, `origin`, `died_at` and `tried`.

    `failure` is the first line of the reason why the last attempt failed.
    """
    from pyspark.sql import functions as f

    items = spark.read.format("querator").options(**options, **more).load()
    events = f.from_json(f.col("history"), _HISTORY)
    deaths = f.filter(events, lambda event: event["queue_name"].isNotNull())
    attempts = f.filter(events, lambda event: event["queue_name"].isNull())
    return (
        items.withColumn("_death", f.try_element_at(deaths, f.lit(-1)))
        .withColumn("failure", f.substring_index(f.try_element_at(attempts, f.lit(-1))["reason"], "\n", 1))
        .withColumn("reason", f.coalesce("_death.reason", f.lit("unknown")))
        .withColumn("origin", f.coalesce("_death.queue_name", f.lit("")))
        .withColumn("died_at", f.timestamp_micros("_death.at"))
        .withColumn("tried", f.coalesce("_death.attempts", f.lit(0)))
        .drop("_death")
    )


def repaired(dead: DataFrame, transform: str, to: str) -> DataFrame:
    """Add the column `repaired`, the result of the transform, which is null if it fails, and the column `target`."""
    from pyspark.sql import functions as f

    rows = dead.withColumn("repaired", f.expr(transform or "payload").cast("binary"))
    return rows.withColumn("target", f.lit(to) if to else f.col("origin"))


def redrive(rows: DataFrame, options: Mapping[str, str]) -> list[Any]:
    """Redrive the rows. Returns per target queue how many items were moved, how many stayed, and why."""
    from pyspark.sql import functions as f

    chosen = rows.select("partition", "id", "target", "repaired", "kind", "reference", "encoding", "history")
    outcomes = chosen.mapInArrow(_Redrive(dict(options)), OUTCOME)
    totals = outcomes.groupBy("origin").agg(
        f.sum("items").alias("items"), f.sum("failed").alias("failed"), f.max("reason").alias("reason")
    )
    # Sorted here, because Spark would compute its input twice to sort it.
    return sorted(totals.collect(), key=lambda row: str(row["origin"]))


class _Redrive:
    """The work of one task."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from querator.spark.options import Options

        options = Options.of(self._options)
        with options.bulk() as bulk, options.client() as client:
            for batch in batches:
                for first in range(0, batch.num_rows, CHUNK_ITEMS):
                    yield from self._chunk(bulk, client, options.queue, batch.slice(first, CHUNK_ITEMS))

    def _chunk(self, bulk: Any, client: Any, queue: str, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        whole = pc.and_(pc.is_valid(rows.column("repaired")), pc.not_equal(rows.column("target"), ""))
        staying = rows.filter(pc.invert(whole))
        for target in pc.unique(staying.column("target")).to_pylist():
            count = pc.sum(pc.equal(staying.column("target"), target)).as_py()
            yield _outcome(target, 0, count, "the transform failed" if target else "its origin is not known")
        going = rows.filter(whole)
        for target in pc.unique(going.column("target")).to_pylist():
            some = going.filter(pc.equal(going.column("target"), target))
            try:
                self._send(bulk, target, some)
                self._delete(client, queue, some, f"redrive to {target}")
            except QueratorError as error:
                yield _outcome(target, 0, some.num_rows, error.message)
            else:
                yield _outcome(target, some.num_rows, 0, "")

    def _send(self, bulk: Any, target: str, rows: pa.RecordBatch) -> None:
        from querator.spark.writing import source_name
        from querator.wire import arrow

        items = arrow.fitted(
            pa.record_batch(
                {
                    "payload": rows.column("repaired"),
                    "kind": rows.column("kind"),
                    "reference": rows.column("reference"),
                    "encoding": rows.column("encoding"),
                    "source_id": rows.column("id"),
                    "history": rows.column("history"),
                }
            ),
            arrow.IMPORTED,
        )
        bulk.import_(target, [items], f"redrive {source_name(items)}", remember_sources=True)

    def _delete(self, client: Any, queue: str, rows: pa.RecordBatch, purpose: str) -> None:
        by_partition: dict[int, list[str]] = {}
        for number, text in zip(rows.column("partition").to_pylist(), rows.column("id").to_pylist(), strict=True):
            by_partition.setdefault(number, []).append(text)
        for number, texts in by_partition.items():
            for first in range(0, len(texts), BATCH_ITEMS_MAX):
                some = texts[first : first + BATCH_ITEMS_MAX]
                client.delete_items(queue, some, partition=number, purpose=purpose)


def _outcome(origin: str, items: int, failed: int, reason: str) -> pa.RecordBatch:
    return pa.record_batch(
        {"origin": pa.array([origin]), "items": pa.array([items]), "failed": pa.array([failed]), "reason": [reason]}
    )
