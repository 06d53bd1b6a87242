"""A DataFrame of a queue gives the same answers as its rows in Parquet, however often it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from querator.client.catalogue import produce_item
from querator.client.clients import Client
from tests.daemons import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ITEMS = 3_000
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"

QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all": lambda d: d,
    "one kind": lambda d: d.where("kind = 'a'"),
    "not that kind": lambda d: d.where("kind <> 'a'"),
    "some kinds": lambda d: d.where("kind in ('a', 'c')"),
    "two conditions": lambda d: d.where("kind = 'b' and reference like 'r1%'"),
    "a condition Spark evaluates": lambda d: d.where("cast(cast(payload as string) as int) % 7 = 0"),
    "never": lambda d: d.where("attempts > 100"),
    "null": lambda d: d.where("lease_deadline is null"),
    "one partition": lambda d: d.where("partition = 1"),
    "one state": lambda d: d.where("state = 'scheduled'"),
    "since": lambda d: d.where("created_at > timestamp'2020-01-01'"),
    "a union of two filters": lambda d: d.where("kind = 'a'").union(d.where("kind = 'b'")),
    "a union with itself": lambda d: d.union(d),
    "joined with itself": lambda d: d.where("kind = 'a'").alias("x").join(d.alias("y"), "id").select("x.id", "y.kind"),
    "what one side lacks": lambda d: d.join(d.where("kind = 'a'"), "id", "left_anti").select("id"),
    "except": lambda d: d.select("id").exceptAll(d.where("kind = 'c'").select("id")),
    "grouped": lambda d: d.groupBy("kind").count(),
    "grouped after a filter": lambda d: d.where("reference = 'r1'").groupBy("kind", "state").count(),
    "distinct": lambda d: d.select("kind", "reference").distinct(),
    "filtered twice": lambda d: d.where("kind in ('a', 'b')").where("kind in ('b', 'c')"),
    "sorted and cut": lambda d: d.where("kind = 'b'").orderBy("id").limit(17).select("id", "payload"),
}


@pytest.fixture(scope="module")
def filled(spark: SparkSession, daemon: Daemon, client: Client) -> dict[str, str]:
    client.create_queue("queries", partitions=3)
    for start in range(0, ITEMS, 1_000):
        numbers = range(start, start + 1_000)
        client.produce(
            "queries",
            [produce_item(str(n), kind="abc"[n % 3], reference=f"r{n % 40}", encoding="text") for n in numbers],
        )
    later = [produce_item(str(n), kind="a", enqueue_at="2999-01-01T00:00:00Z") for n in range(50)]
    client.produce("queries", later)
    return {"endpoint": daemon.endpoint, "queue": "queries"}


@pytest.fixture(scope="module")
def parquet(spark: SparkSession, filled: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = str(tmp_path_factory.mktemp("parquet") / "rows")
    spark.read.format("querator").options(**filled).load().write.parquet(path)
    return spark.read.parquet(path)


@pytest.fixture
def items(spark: SparkSession, filled: dict[str, str]) -> DataFrame:
    return spark.read.format("querator").options(**filled, splits="2").load()


def rows(frame: DataFrame) -> list[Any]:
    return sorted(map(repr, frame.collect()))


@pytest.fixture(scope="module")
def expected(parquet: DataFrame) -> dict[str, list[Any]]:
    return {name: rows(query(parquet)) for name, query in QUERIES.items()}


def test_the_rows_in_parquet_are_all_there_are(expected: dict[str, list[Any]]) -> None:
    assert (len(expected["all"]), len(expected["one kind"])) == (ITEMS + 50, ITEMS // 3 + 50)


@pytest.mark.parametrize("push_down", [False, True], ids=["", "in a session with push-down"])
def test_one_data_frame_answers_every_query(
    spark: SparkSession, filled: dict[str, str], expected: dict[str, list[Any]], push_down: bool
) -> None:
    spark.conf.set(PUSH_DOWN, push_down)  # a user may have set this for other data sources
    try:
        items = spark.read.format("querator").options(**filled, splits="2").load()
        for name in list(QUERIES)[:: -1 if push_down else 1]:
            assert rows(QUERIES[name](items)) == expected[name], name
        assert items.count() == ITEMS + 50
    finally:
        spark.conf.unset(PUSH_DOWN)


def test_a_plan_that_was_only_looked_at_changes_nothing(items: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    items.where("kind = 'a'").explain()
    assert items.count() == ITEMS + 50


def test_a_view_answers_as_a_table_would(spark: SparkSession, items: DataFrame, parquet: DataFrame) -> None:
    queries = (
        "select count(*) from {0} where kind = 'a'",
        "select count(*) from {0}",
        "select (select count(*) from {0} where kind = 'b'), (select count(*) from {0})",
        "with a as (select id from {0} where kind = 'a') select count(*) from {0} where id not in (select id from a)",
        "select x.kind, count(*) from {0} x join {0} y using (id) where y.reference = 'r3' group by 1 order by 1",
    )
    items.createOrReplaceTempView("queue_items")
    parquet.createOrReplaceTempView("parquet_items")
    for query in queries:
        found, wanted = (spark.sql(query.format(name)).collect() for name in ("queue_items", "parquet_items"))
        assert found == wanted, query


def test_a_filter_that_is_cached_leaves_the_others_alone(items: DataFrame, expected: dict[str, list[Any]]) -> None:
    some = items.where("kind = 'a'").cache()
    try:
        assert some.count() == len(expected["one kind"])
        assert rows(items.where("kind in ('a', 'c')")) == expected["some kinds"]
        assert items.count() == ITEMS + 50
        assert some.where("reference = 'r1'").count() == sum(n % 40 == 1 for n in range(0, ITEMS, 3))
    finally:
        some.unpersist()
