"""Finds the file and the line of a record that an import could not read. Spark does not report the line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from querator.spark.moving import format_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: Final = ("json", "csv")
_RECORD: Final = "_malformed_record"
SHOWN_CHARACTERS: Final = 80


def place(spark: SparkSession, paths: Sequence[str], form: str, options: Mapping[str, str]) -> str:
    """The file, line and text of the first malformed record, or an empty text if there is none.

    This reads the files again, with malformed records in a column of their own.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    lenient = format_options(form, options) | {"mode": "PERMISSIVE", "columnnameofcorruptrecord": _RECORD}
    reader = spark.read.format(form).options(**lenient)
    schema = reader.load(list(paths)).schema
    if _RECORD not in schema.fieldNames():
        schema = schema.add(_RECORD, StringType())
    rows = reader.schema(schema).load(list(paths)).select("*", f.col("_metadata.file_path").alias("_file"))
    found = rows.where(f.col(_RECORD).isNotNull()).take(1)
    if not found:
        return ""
    record, file = found[0][_RECORD], found[0]["_file"]
    first_line, *_ = record.splitlines() or [""]
    shown = first_line if len(first_line) <= SHOWN_CHARACTERS else first_line[:SHOWN_CHARACTERS] + "…"
    path = re.sub("^file:/+", "/", unquote(file))
    return f"{path}, line {_line(spark, file, first_line)}: {shown}"


def _line(spark: SparkSession, file: str, wanted: str) -> int | str:
    lines = spark.read.text(unquote(file)).rdd.zipWithIndex()
    numbers = lines.filter(lambda pair: pair[0].value.rstrip("\r") == wanted).map(lambda pair: pair[1] + 1).take(1)
    return numbers[0] if numbers else "unknown"
