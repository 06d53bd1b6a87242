"""Import, export, copy and stream: moves DataFrames between files and queues. Nothing here prints."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from querator.client import Client
from querator.config import SYSTEM_TLS, ClientTls
from querator.errors import UsageError
from querator.spark.options import BY_SOURCE
from querator.spark.running import Standing
from querator.wire import arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from querator.spark.writing import Totals

_FORMAT_OPTIONS: Final = {
    # CSV as most programs write it: quotes inside a value are doubled, and spaces belong to the value.
    "csv": {"header": "true", "escape": '"', "ignoreleadingwhitespace": "false", "ignoretrailingwhitespace": "false"},
}
TABLE_FORMATS: Final = {
    "delta": "io.delta:delta-spark_2.13:VERSION",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-SPARK_2.13:VERSION",
}
"""Formats that need a jar, and the Maven package of the jar."""
_ICEBERG_CATALOG: Final = "spark.sql.catalog.default_iceberg"
_TABLE_CONF: Final = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    # Without these, Iceberg looks for a Hive metastore. A write sets the warehouse to the directory above its table.
    "iceberg": {
        _ICEBERG_CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        f"{_ICEBERG_CATALOG}.type": "hadoop",
        f"{_ICEBERG_CATALOG}.warehouse": "spark-warehouse",
    },
}
STORED_COLUMNS: Final = ",".join(arrow.chosen(arrow.ITEM, ()).names)
"""All columns of an item except `text`, which would write every payload twice."""
CHECKPOINT: Final = "_querator_checkpoint"
LOOK_SECONDS: Final = 0.5
_COPIED: Final = (
    "payload", "kind", "reference", "encoding", "enqueue_at", "attempts", "max_attempts", "created_at",
    "expire_deadline", "history",
)  # fmt: skip


def format_options(form: str, given: Mapping[str, str]) -> dict[str, str]:
    """The options of a reader or writer. Spark ignores upper and lower case in their names."""
    return _FORMAT_OPTIONS.get(form, {}) | {name.lower(): value for name, value in given.items()}


def format_conf(form: str) -> dict[str, str]:
    """The settings that Spark needs at start for a format."""
    return _TABLE_CONF.get(form, {})


def _absolute(path: str) -> str:
    """Iceberg takes a relative path for the name of a table."""
    return path if ":/" in path else str(Path(path).absolute())


def check_format(spark: SparkSession, form: str) -> None:
    """Raise if this Spark has no jar for the format."""
    if form not in TABLE_FORMATS:
        return
    context: Any = spark.sparkContext
    source = context._jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        source.lookupDataSource(form, spark._jsparkSession.sessionState().conf())
    except Exception:
        raise UsageError(
            f"this Spark has no jar for --format {form}",
            hint=f"--conf spark.jars.packages={TABLE_FORMATS[form]}, with the versions that fit your Spark",
        ) from None


class Connection(NamedTuple):
    """How to connect to a daemon."""

    endpoint: str
    token_file: str = ""
    tls: ClientTls = SYSTEM_TLS

    def options(self, queue: str) -> dict[str, str]:
        files = {"token_file": self.token_file, **self.tls._asdict()}
        return {"endpoint": self.endpoint, "queue": queue} | {name: path for name, path in files.items() if path}

    def client(self) -> Client:
        """A client for checks before the work begins. It fails at once if the daemon does not answer."""
        token = Path(self.token_file).read_text().strip() if self.token_file else ""
        return Client(self.endpoint, token=token, tls=self.tls, patient=False)


class Expressions(NamedTuple):
    """Spark SQL over the columns of a file, for the fields of an item. Empty if not given."""

    payload: str = ""
    kind: str = ""
    reference: str = ""
    encoding: str = ""
    enqueue_at: str = ""


# Into a queue


def read_files(spark: SparkSession, paths: Sequence[str], form: str, options: Mapping[str, str]) -> DataFrame:
    # Without FAILFAST, a malformed line would become an item.
    reader = spark.read.options(**{"mode": "FAILFAST"} | format_options(form, options)).format(form)
    if form not in TABLE_FORMATS:
        return reader.load(list(paths))
    if len(paths) > 1:
        raise UsageError(f"a {form} table is one PATH, and {len(paths)} are given")
    return reader.load(_absolute(paths[0]))


def as_items(rows: DataFrame, expressions: Expressions) -> DataFrame:
    """The columns of new items. Without an expression, the payload is the text of the row or the row as JSON."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StringType

    if expressions.payload:
        payload = f.expr(expressions.payload)
    elif rows.columns == ["value"] or "payload" in rows.columns:
        payload = rows["payload"] if "payload" in rows.columns else rows["value"]
    else:
        payload = f.to_json(f.struct("*"))
    columns = [payload.alias("payload")]
    for name in ("kind", "reference", "encoding"):
        text = getattr(expressions, name)
        if text:
            columns.append(f.coalesce(f.expr(text).cast("string"), f.lit("")).alias(name))
    if expressions.enqueue_at:
        columns.append(f.expr(expressions.enqueue_at).cast("timestamp").alias("enqueue_at"))
    items = rows.select(*columns)
    if not isinstance(items.schema["payload"].dataType, BinaryType | StringType):
        items = items.withColumn("payload", items["payload"].cast("string"))
    return items


def write_items(items: DataFrame, options: Mapping[str, str], request_id: str) -> Totals:
    """Write items as the data source does, and return the totals, which the data source cannot return."""
    from querator.spark.options import Options
    from querator.spark.schemas import check_writable
    from querator.spark.writing import WRITTEN, QueueWriter, check_counts

    writer = QueueWriter(Options.of({**options, "request_id": request_id}), check_writable(items.schema))
    return check_counts(items.mapInArrow(writer.write_as_rows, WRITTEN).collect())


def new_request_id() -> str:
    return str(uuid.uuid4())


# Out of a queue


def read_queue(spark: SparkSession, options: Mapping[str, str], **more: str) -> DataFrame:
    return spark.read.format("querator").options(**options, **more).load()


def for_files(items: DataFrame, form: str, partition_by: str) -> tuple[DataFrame, list[str]]:
    """The rows with types that the file format supports, and the columns that become directories."""
    from pyspark.sql import functions as f

    if partition_by not in ("", "kind", "day"):
        raise UsageError(f"--partition-by is '{partition_by}', not kind or day")
    if form == "text":
        raise UsageError("an export has columns, and text files have none; choose another --format")
    if form in ("json", "csv") and "payload" in items.columns:
        items = items.withColumn("payload", f.col("payload").cast("string"))
    if partition_by == "day":
        items = items.withColumn("day", f.to_date("created_at"))
    return items, [partition_by] if partition_by else []


def check_overwritable(spark: SparkSession, path: str, form: str) -> None:
    """Raise if a directory has files that are not from an export, because Spark would delete them."""
    if form in TABLE_FORMATS:
        return  # a table keeps its old files
    strange = [name for name in _names(spark, path) if not name.startswith(("part-", "_", ".")) and "=" not in name]
    if strange:
        raise UsageError(
            f"{path} holds '{min(strange)}', which is not from an export, and --overwrite would delete it",
            hint="choose another directory, or remove it yourself",
        )


def write_files(
    items: DataFrame, path: str, form: str, partition_by: str, mode: str, options: Mapping[str, str]
) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    rows, directories = for_files(items, form, partition_by)
    seen = Observation()
    writer = rows.observe(seen, f.count(f.lit(1)).alias("items")).write.mode(mode).partitionBy(*directories)
    writer = writer.format(form).options(**format_options(form, options))
    if form == "iceberg":
        # Spark loses the path of a new Iceberg table, but not its name in a catalog.
        parent, _, name = _absolute(path).rstrip("/").rpartition("/")
        items.sparkSession.conf.set(f"{_ICEBERG_CATALOG}.warehouse", parent or "/")
        writer.saveAsTable(f"default_iceberg.`{name.replace('`', '``')}`")
    else:
        writer.save(path)
    return int(seen.get["items"])


def drain(
    spark: SparkSession,
    options: Mapping[str, str],
    path: str,
    form: str,
    partition_by: str,
    writing: Mapping[str, str],
    *,
    checkpoint: str = "",
    every: str = "",
) -> StreamingQuery:
    """Start a query that leases items, writes them to files and completes them: once, or at the interval `every`.

    The file sink records the files of each batch, and the source records its items, so each item is in one file.
    """
    if form == "iceberg":
        raise UsageError(
            "a stream cannot create an Iceberg table; choose another --format, or export without --complete"
        )
    source = spark.readStream.format("querator").options(**options).load()
    rows, directories = for_files(source, form, partition_by)
    writer: Any = rows.writeStream.format(form).options(**format_options(form, writing)).option("path", path)
    writer = writer.option("checkpointLocation", checkpoint or f"{path.rstrip('/')}/{CHECKPOINT}")
    if directories:
        writer = writer.partitionBy(*directories)
    writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
    query: StreamingQuery = writer.start()
    return query


class QueryProgress:
    """Counts the items that a query has written. Spark itself remembers only the last hundred batches."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._items: dict[int, int] = {}
        self._lag: int | None = None

    def wait(self, ended: threading.Event) -> None:
        """Wait until the query ends. Stop it when `ended` is set. Raises the error of a failed query."""
        while self._query.isActive:
            if ended.wait(LOOK_SECONDS):
                self._query.stop()
            self._look()
        self._look()
        if not ended.is_set():
            self._query.awaitTermination()

    @property
    def items(self) -> int:
        return sum(self._items.values())

    def standing(self) -> Standing | None:
        """How many items are written, and how many still wait."""
        if self._lag is None:
            return None
        known = self.items + self._lag
        return Standing(self.items, "items", share=self.items / known if known else None, note=f"lag {self._lag:,}")

    def _look(self) -> None:
        for progress in self._query.recentProgress:
            number = progress["batchId"]
            self._items[number] = max(self._items.get(number, 0), progress["numInputRows"])
            reported = progress["sources"][0]["latestOffset"]
            if reported:
                self._lag = int((json.loads(reported) if isinstance(reported, str) else reported)["lag"])


def complete_last_batch(spark: SparkSession, options: Mapping[str, str], checkpoint: str) -> None:
    """Complete the last batch of a stopped query. Spark tells the source about a batch only with the next one."""
    from querator.spark.options import Options
    from querator.spark.streaming import Keeper, held_in

    committed = _numbered(spark, f"{checkpoint}/commits")
    if not committed:
        return
    lines = spark.read.text(f"{checkpoint}/offsets/{max(committed)}").collect()
    keeper = Keeper(Options.of(options))
    try:
        for line in lines:
            if line.value.startswith('{"batch"') or '"held"' in line.value:
                keeper.complete(held_in(json.loads(line.value)))
    finally:
        keeper.stop()


def _numbered(spark: SparkSession, directory: str) -> list[int]:
    return [int(name) for name in _names(spark, directory) if name.isdigit()]


def _names(spark: SparkSession, directory: str) -> list[str]:
    """The names in a directory of any file system that Spark supports. Empty if there is no such directory."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(directory)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(path):
        return []
    return [status.getPath().getName() for status in files.listStatus(path)]


# Between queues


def copied(items: DataFrame) -> DataFrame:
    """Items for an import into another queue, with their history, and with their id as source id."""
    from pyspark.sql import functions as f

    return items.select(*_COPIED, f.col("id").alias("source_id"))


def copy(source: DataFrame, target: Mapping[str, str]) -> Totals:
    return write_items(copied(source), target, BY_SOURCE)
