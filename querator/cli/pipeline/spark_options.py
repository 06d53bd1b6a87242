"""Options that several commands of `querator pipeline` share."""

from __future__ import annotations

import enum
from pathlib import Path
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


Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Run Spark here: local[*], spark://host:port or yarn.")
]
Conf = Annotated[
    list[str], typer.Option("--conf", metavar="KEY=VALUE", help="Set an option of Spark. May be repeated.")
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log-file", metavar="FILE", help="Write the log of Spark to this file.", show_default=False),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log more, and print the path of the log.")]
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
