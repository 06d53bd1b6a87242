"""`spark.readStream` and `writeStream` lose and repeat nothing, despite failures and restarts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from querator.client.bulk_client import BulkClient
from querator.client.clients import Client
from tests.daemons import Daemon
from tests.spark.seen import numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVER = Path(__file__).with_name("stream_driver.py")


def produce(client: Client, queue: str, first: int, last: int) -> None:
    for start in range(first, last, 1_000):
        client.produce(queue, [str(n) for n in range(start, min(last, start + 1_000))])


def held(client: Client, queue: str) -> int:
    return sum(p.total for logical in client.stats(queue).logical_queues for p in logical.partitions)


def source(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    return spark.readStream.format("querator").options(**options, **more).load()


def in_files(spark: SparkSession, path: Path) -> list[int]:
    return sorted(int(row.payload.decode()) for row in spark.read.parquet(str(path)).select("payload").collect())


def to_files(rows: DataFrame, path: Path) -> Any:
    writer = rows.writeStream.format("parquet").option("path", str(path / "out"))
    return writer.option("checkpointLocation", str(path / "checkpoint")).trigger(availableNow=True).start()


def test_a_queue_is_drained_into_files_once(
    spark: SparkSession, client: Client, queue: str, options: dict[str, str], tmp_path: Path
) -> None:
    produce(client, queue, 0, 5_000)
    to_files(source(spark, options, items_per_batch="2000"), tmp_path).awaitTermination()
    assert held(client, queue) == 0
    produce(client, queue, 5_000, 6_000)
    to_files(source(spark, options), tmp_path).awaitTermination()
    assert in_files(spark, tmp_path / "out") == list(range(6_000))
    assert held(client, queue) == 0


def test_a_batch_that_failed_is_read_again_item_by_item(
    spark: SparkSession, client: Client, queue: str, options: dict[str, str], tmp_path: Path
) -> None:
    """The sink fails after it has seen the second batch. Meanwhile other clients produce and consume."""
    produce(client, queue, 0, 3_000)
    seen: dict[int, list[list[int]]] = {}
    broken = True

    def sink(rows: DataFrame, batch: int) -> None:
        payloads = sorted(int(row.payload.decode()) for row in rows.collect())
        seen.setdefault(batch, []).append(payloads)
        if batch == 1 and broken:
            raise RuntimeError("the sink is gone")

    def start() -> Any:
        rows = source(spark, options, items_per_batch="1000").writeStream.foreachBatch(sink)
        return rows.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    with pytest.raises(Exception, match="the sink is gone"):
        start().awaitTermination()
    produce(client, queue, 3_000, 3_500)
    taken = client.lease(queue, 100).items
    client.complete(queue, [item.id for item in taken])
    broken = False
    start().awaitTermination()
    assert seen[1][0] == seen[1][1]
    delivered = sorted(n for batch, tries in seen.items() for n in tries[-1])
    assert len(delivered) == len(set(delivered)) == 3_400
    assert held(client, queue) == 0


def test_a_replayed_batch_adds_nothing_to_a_queue(
    spark: SparkSession, bulk: BulkClient, queue: str, options: dict[str, str], tmp_path: Path
) -> None:
    files, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def run() -> None:
        rows = spark.readStream.schema("payload string").json(str(files)).repartition(2)
        writer = rows.writeStream.format("querator").options(**options).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    spark.range(3_000).selectExpr("cast(id as string) as payload").write.json(str(files))
    run()
    assert numbers(bulk, queue) == list(range(3_000))
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    for path in commits:  # as if the driver had died before it recorded the end of the batch
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    run()
    assert numbers(bulk, queue) == list(range(3_000))


def test_leases_are_extended_while_a_batch_runs(
    spark: SparkSession, client: Client, options: dict[str, str], tmp_path: Path
) -> None:
    """The queue has a very short lease timeout. The batch runs for longer than that."""
    client.create_queue("hasty", lease_timeout="1s")
    produce(client, "hasty", 0, 100)
    counts: list[int] = []

    def sink(rows: DataFrame, batch: int) -> None:
        import time

        end = time.monotonic() + 2
        while time.monotonic() < end:
            client.stats("hasty")
        counts.append(rows.count())

    rows = source(spark, options | {"queue": "hasty"}, lease="60").writeStream.foreachBatch(sink)
    rows.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert counts == [100]
    assert held(client, "hasty") == 0


def test_offsets_are_small_and_exact(needs_spark: None) -> None:
    from querator import ids
    from querator.spark.streaming import Held

    seqs = [*range(1_000_000, 1_010_000), 2_000_000, *range(3_000_000, 3_000_005)]
    held = Held.of(ids.encode_many(7, seqs))
    assert len(str(held)) < 100
    assert Held.parse(str(held)).seqs == seqs


def run_driver(daemon: Daemon, queue: str, path: Path, kill: str) -> int:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": sys.executable}
    arguments = json.dumps({"endpoint": daemon.endpoint, "queue": queue, "path": str(path), "kill": kill})
    return subprocess.run([sys.executable, str(DRIVER), arguments], env=environment, timeout=240).returncode


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["inside", "between"])
def test_a_driver_that_is_killed_and_started_again_delivers_each_item_once(
    spark: SparkSession, daemon: Daemon, client: Client, queue: str, tmp_path: Path, kill: str
) -> None:
    produce(client, queue, 0, 6_000)
    assert run_driver(daemon, queue, tmp_path, kill) != 0
    assert held(client, queue) > 0
    assert run_driver(daemon, queue, tmp_path, "") == 0
    assert in_files(spark, tmp_path / "out") == list(range(6_000))
    assert held(client, queue) == 0
