"""File formats and their options, malformed records, and the progress of a streaming query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from querator.client.bulk_client import BulkClient
from querator.client.catalogue import produce_item
from querator.client.clients import Client
from querator.errors import UsageError
from querator.spark import moving
from querator.spark.running import explained
from tests.spark.seen import payloads
from tests.spark.test_pipelines import Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["pipeline"]  # imported because it is a fixture


def test_options_go_to_the_reader(pipeline: Pipeline, bulk: BulkClient, queue: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('1;"two\nlines"\n2;one\n')
    options = ("--option", "delimiter=;", "--option", "multiLine=true", "--option", "Header=false")
    words = ("import", queue, str(tmp_path / "rows.csv"), "--format", "csv", "--payload", "_c1", *options)
    assert pipeline.json(*words)["items"] == 2
    assert payloads(bulk, queue) == ["one", "two\nlines"]
    refused = pipeline(*words, "--option", "delimiter")
    assert (refused.exit_code, "--option: 'delimiter' is not KEY=VALUE" in refused.output) == (2, True)


def test_options_go_to_the_writer_and_an_export_can_be_overwritten(
    pipeline: Pipeline, client: Client, queue: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    client.produce(queue, ["a", "b"])
    words = ("export", queue, "--to", str(out), "--option", "compression=gzip")
    assert pipeline.json(*words)["items"] == 2
    (part, *_) = out.glob("part-*.parquet")
    assert pq.ParquetFile(part).metadata.row_group(0).column(0).compression == "GZIP"
    client.produce(queue, ["c"])
    assert pipeline(*words).exit_code == 2
    assert pipeline.json(*words, "--overwrite")["items"] == 3
    assert sum(pq.ParquetFile(one).metadata.num_rows for one in out.glob("part-*.parquet")) == 3
    (out / "thesis.doc").write_text("years of work")
    refused = pipeline(*words, "--overwrite")
    assert (refused.exit_code, "holds 'thesis.doc'" in refused.output) == (2, True), refused.output
    assert (out / "thesis.doc").exists()
    assert pipeline(*words, "--overwrite", "--complete").exit_code == 2


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_format_without_its_jar_says_which_one_it_needs(
    pipeline: Pipeline, queue: str, tmp_path: Path, form: str
) -> None:
    result = pipeline("export", queue, "--to", str(tmp_path / "table"), "--format", form)
    assert (result.exit_code, f"no jar for --format {form}" in result.output) == (2, True), result.output
    assert "spark.jars.packages=" in result.output
    assert not (tmp_path / "table").exists()


def test_a_stream_into_an_iceberg_table_is_refused(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="a stream cannot create an Iceberg table"):
        moving.drain(spark, options, str(tmp_path / "table"), "iceberg", "", {})


def test_a_jar_for_another_spark_is_told_in_a_line(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    field = java.java.lang.Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
    field.setAccessible(True)
    broken = java.java.lang.IncompatibleClassChangeError("Found interface a.b.C, but class was expected")
    with pytest.raises(Exception, match="Found interface") as raised:
        field.get(None).throwException(broken)
    told = explained(raised.value)
    misfit = f"a jar was built for another version of Spark than {spark.version}"
    assert told.message == f"{misfit}: Found interface a.b.C, but class was expected"
    assert "--conf spark.jars.packages=" in told.hint


@pytest.mark.parametrize(
    ("form", "lines", "place"),
    [
        ("json", ['{"a": 1}'] * 2_500 + ['{"a": '] + ['{"a": 2}'], 'line 2501: {"a": '),
        ("csv", ["a,b", *["1,2"] * 700, "1,2,3", "4,5"], "line 702: 1,2,3"),
    ],
)
def test_a_malformed_record_is_named_by_file_and_line(
    pipeline: Pipeline, queue: str, tmp_path: Path, form: str, lines: list[str], place: str
) -> None:
    directory = tmp_path / "some files"
    directory.mkdir()
    (directory / "a good one").write_text("\n".join(lines[:10]) + "\n")
    (directory / "bad").write_text("\n".join(lines) + "\n")
    result = pipeline("import", queue, str(directory), "--format", form)
    assert result.exit_code == 1
    assert f"a record is malformed: {directory}/bad, {place}" in result.output, result.output


def test_progress_of_a_query_has_lag_leased_and_completed(
    spark: SparkSession, client: Client, queue: str, options: dict[str, str], tmp_path: Path
) -> None:
    client.produce(queue, [produce_item(str(n)) for n in range(250)])
    source = spark.readStream.format("querator").options(**options, items_per_batch="100").load()
    query = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        seen: list[dict[str, Any]] = []
        for progress in query.recentProgress:
            told = progress["sources"][0]["latestOffset"]
            seen.append(json.loads(told) if isinstance(told, str) else told)
    finally:
        query.stop()
    assert all(set(one) == {"lag", "leased", "completed"} for one in seen), seen
    assert (seen[0]["lag"], seen[0]["leased"], seen[0]["completed"]) == (150, 100, 0)
    assert seen[-1] == {"lag": 0, "leased": seen[-1]["leased"], "completed": 250 - seen[-1]["leased"]}
