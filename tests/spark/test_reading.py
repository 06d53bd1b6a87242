"""`spark.read.format("querator")`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from querator.client.catalogue import produce_item
from querator.client.clients import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_queue_is_a_data_frame(spark: SparkSession, client: Client, queue: str, options: dict[str, str]) -> None:
    for start in range(0, 6_000, 1_000):
        client.produce(queue, [produce_item(str(start + n), kind=f"k{n % 3}") for n in range(1_000)])
    client.produce(queue, [produce_item("later", enqueue_at="2999-01-01T00:00:00Z")])
    leased = client.lease(queue, 5).items
    items = spark.read.format("querator").options(**options, splits="2").load()
    assert items.rdd.getNumPartitions() == 5  # one scheduled item cannot be split
    assert items.count() == 6_001
    states = {row["state"]: row["count"] for row in items.groupBy("state").count().collect()}
    assert states == {"ready": 5_995, "leased": 5, "scheduled": 1}
    wanted = items.where("kind = 'k1' and state = 'ready' and attempts = 0 and created_at > timestamp'2020-01-01'")
    ours = sum(item.kind == "k1" for item in leased)
    assert wanted.count() == 1_998 - ours
    held = items.where("lease_deadline is not null").select("id", "attempts").collect()
    assert {row["id"] for row in held} == {item.id for item in leased}
    assert {"payload", "text"} <= set(items.columns)
    assert items.where("text = 'later'").count() == 1
    narrow = spark.read.format("querator").options(**options, columns="id,kind", state="ready").load()
    assert narrow.columns == ["id", "kind"]
    assert narrow.select("id").distinct().count() == 5_995


def test_where_leaves_items_out_in_the_daemon(
    spark: SparkSession, client: Client, queue: str, options: dict[str, str], tmp_path: Path
) -> None:
    client.produce(queue, [produce_item(str(n), kind="ab"[n % 2]) for n in range(1_000)])
    client.produce(queue, [produce_item("later", kind="a", enqueue_at="2999-01-01T00:00:00Z")])
    wanted = spark.read.format("querator").options(**options, where="kind = 'a'", columns="payload", splits="2").load()
    assert wanted.count() == 501
    assert wanted.where("payload = 'later'").count() == 1
    assert wanted.count() == 501
    with pytest.raises(Exception, match="cannot take the option 'where'"):
        stream = spark.readStream.format("querator").options(**options, where="kind = 'a'").load()
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start().processAllAvailable()


def test_an_empty_queue_is_an_empty_data_frame(spark: SparkSession, options: dict[str, str]) -> None:
    assert spark.read.format("querator").options(**options).load().count() == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"queue": ""}, "option 'queue' is missing"),
        ({"state": "odd"}, "option 'state' is 'odd'"),
        ({"columns": "nope"}, "column 'nope' is unknown"),
        ({"splits": "0"}, "option 'splits' is '0'"),
        ({"spilts": "2"}, "option 'spilts' is unknown"),
        ({"where": "nope = 1"}, "where is invalid; .*nope"),
        ({"queue": "no-such-queue"}, "no such queue named 'no-such-queue'"),
    ],
)
def test_options_that_make_no_sense_are_reported(
    spark: SparkSession, options: dict[str, str], more: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        spark.read.format("querator").options(**(options | more)).load().count()
