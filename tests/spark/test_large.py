"""A million rows into a queue and out of it, and an executor that is killed while it writes. For `make test-slow`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from querator.client.bulk_client import BulkClient
from querator.client.clients import Client
from tests.daemons import Daemon
from tests.spark.seen import numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_a_million_items_there_and_back(
    spark: SparkSession, client: Client, queue: str, options: dict[str, str], tmp_path: Path
) -> None:
    from querator.spark.moving import read_queue, write_files, write_items

    given = spark.range(1_000_000).selectExpr(
        "concat('text ', id, repeat('x', cast(id % 200 as int))) as payload",
        "concat('k', id % 7) as kind",
        "cast(id as string) as reference",
    )
    given.write.parquet(str(tmp_path / "in"))
    rows = spark.read.parquet(str(tmp_path / "in"))
    assert write_items(rows, options, "a million") == 1_000_000
    items = read_queue(spark, options, splits="2")
    assert write_files(items, str(tmp_path / "out"), "parquet", "kind", "error") == 1_000_000
    digest = "bit_xor(xxhash64(cast(payload as string), kind, reference))"
    before = rows.selectExpr("count(*)", digest).collect()
    assert spark.read.parquet(str(tmp_path / "out")).selectExpr("count(*)", digest).collect() == before


def test_an_executor_that_is_killed_in_mid_write_loses_and_doubles_nothing(
    needs_spark: None, daemon: Daemon, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    """One of two executors kills itself while it writes."""
    script = Path(__file__).with_name("cluster_driver.py")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": sys.executable}
    arguments = json.dumps({"endpoint": daemon.endpoint, "queue": queue, "path": str(tmp_path)})
    subprocess.run([sys.executable, str(script), arguments], env=environment, timeout=280, check=True)
    assert "CoarseGrainedExecutorBackend" in (tmp_path / "killed").read_text()
    assert "Lost executor" in (tmp_path / "spark.log").read_text()
    assert numbers(bulk, queue) == list(range(200_000))
