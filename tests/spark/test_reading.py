"""`spark.read.format("querator")`."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

from querator.calls import produce_item
from querator.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_filters_become_conditions_or_stay_with_spark(needs_spark: None) -> None:
    from pyspark.sql import datasource as ds

    from querator.spark.reading import as_condition
    from querator.wire.bulk import Condition

    moment = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
    assert as_condition(ds.EqualTo(("kind",), "x")) == Condition("kind", "=", "x")
    assert as_condition(ds.Not(ds.EqualTo(("kind",), "x"))) == Condition("kind", "<>", "x")
    assert as_condition(ds.In(("attempts",), (1, 2))) == Condition("attempts", "in", [1, 2])
    assert as_condition(ds.StringStartsWith(("reference",), "r")) == Condition("reference", "prefix", "r")
    assert as_condition(ds.GreaterThan(("created_at",), moment)) == Condition("created_at", ">", 1735689600000000)
    assert as_condition(ds.IsNull(("lease_deadline",))) == Condition("lease_deadline", "null")
    for stays in (
        ds.EqualTo(("id",), "x"),
        ds.EqualTo(("payload",), b"x"),
        ds.EqualTo(("kind", "inner"), "x"),
        ds.EqualTo(("attempts",), "many"),
        ds.StringEndsWith(("kind",), "x"),
        ds.Not(ds.EqualTo(("lease_deadline",), moment)),
        ds.In(("kind",), ("x", None)),
    ):
        assert as_condition(stays) is None


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
    plan = wanted._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert "Filter (" not in plan  # what Spark would have to test again itself
    ours = sum(item.kind == "k1" for item in leased)
    assert wanted.count() == 1_998 - ours
    held = items.where("lease_deadline is not null").select("id", "attempts").collect()
    assert {row["id"] for row in held} == {item.id for item in leased}
    narrow = spark.read.format("querator").options(**options, columns="id,kind", state="ready").load()
    assert narrow.columns == ["id", "kind"]
    assert narrow.select("id").distinct().count() == 5_995


def test_a_session_that_has_push_down_off_is_one_call_away_from_reading(
    spark: SparkSession, client: Client, queue: str, options: dict[str, str]
) -> None:
    from querator.spark import register

    client.produce(queue, [produce_item("x", kind=kind) for kind in ("a", "b")])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", False)
    register(spark)
    wanted = spark.read.format("querator").options(**options).load().where("kind = 'a'")
    assert "Filter (" not in wanted._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert [row["kind"] for row in wanted.collect()] == ["a"]


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
        ({"queue": "no-such-queue"}, "no such queue named 'no-such-queue'"),
    ],
)
def test_options_that_make_no_sense_are_told(
    spark: SparkSession, options: dict[str, str], more: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        spark.read.format("querator").options(**(options | more)).load().count()
