"""Options that several commands of `querator pipeline` share."""

from __future__ import annotations

import enum
from typing import Annotated

import typer


class FileFormat(enum.StrEnum):
    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"
    TEXT = "text"
    DELTA = "delta"
    ICEBERG = "iceberg"


class ItemsInState(enum.StrEnum):
    ALL = "all"
    STORED = "stored"
    READY = "ready"
    LEASED = "leased"
    SCHEDULED = "scheduled"


class PartitionBy(enum.StrEnum):
    NONE = "none"
    KIND = "kind"
    DAY = "day"


Splits = Annotated[
    int, typer.Option("--splits", min=1, metavar="N", help="Number of Spark tasks per partition of the queue.")
]
InState = Annotated[
    ItemsInState, typer.Option("--state", help="Choose only items in this state. `stored` means ready and leased.")
]
Form = Annotated[
    FileFormat, typer.Option("--format", help="Format of the files. Spark needs a jar for delta and iceberg.")
]
FormatOptions = Annotated[
    list[str],
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Set an option of the reader or writer, such as compression=zstd. May be repeated.",
    ),
]
PartitionedBy = Annotated[
    PartitionBy, typer.Option("--partition-by", help="Write one directory per kind or per day of creation.")
]
SQL_HELP = "Spark SQL over the columns of the files."
RESUME_HINT = "the same command continues where this one stopped"
