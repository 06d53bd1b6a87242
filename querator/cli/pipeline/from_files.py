"""`querator pipeline import`: files into a queue."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from querator.cli.pipeline.spark_options import (
    SQL_HELP,
    FileFormat,
    Form,
    FormatOptions,
)
from querator.cli.pipeline.spark_runs import Spark, held, resume_hint, setting, show, summary
from querator.cli.shell.options import DryRun, Queue
from querator.cli.terminal.id_lists import count, there_already
from querator.cli.terminal.session import Session
from querator.errors import QueratorError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def import_(
    session: Session,
    spark: Spark,
    queue: Queue,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files or directories, in any form that Spark accepts.")
    ],
    format: Form = FileFormat.PARQUET,
    option: FormatOptions = [],  # noqa: B006
    payload: Annotated[
        str, typer.Option("--payload", metavar="SQL", help=f"{SQL_HELP} Default: the row as JSON.")
    ] = "",
    kind: Annotated[str, typer.Option("--kind", metavar="SQL", help=SQL_HELP)] = "",
    reference: Annotated[str, typer.Option("--reference", metavar="SQL", help=SQL_HELP)] = "",
    encoding: Annotated[str, typer.Option("--encoding", metavar="SQL", help=SQL_HELP)] = "",
    enqueue_at: Annotated[str, typer.Option("--enqueue-at", metavar="SQL", help=SQL_HELP)] = "",
    request_id: Annotated[
        str,
        typer.Option(
            "--request-id", metavar="ID", help="Repeating an import with the same id adds only missing items."
        ),
    ] = "",
    dry_run: DryRun = False,
) -> None:
    """Produce every row of some files to a queue, exactly once.

    SQL expressions make an item from a row; a constant kind is "'mail'". If an import was interrupted, repeat it with
    the same --request-id, files and --master. It then adds the missing items.
    """
    from querator.limits import BULK_REQUEST_ID_BYTES_MAX

    session.client.queue_info(queue)
    if len(request_id.encode()) > BULK_REQUEST_ID_BYTES_MAX - 50:
        raise UsageError(f"--request-id: at most {BULK_REQUEST_ID_BYTES_MAX - 50} bytes")
    reading = dict(setting(text, "--option") for text in option)
    with (
        spark.running(f"importing to '{queue}'", format=format.value) as running,
        _malformed(running, paths, format, reading),
    ):
        from querator.spark import moving
        from querator.spark.running import Standing

        given_id, request_id = request_id, request_id or moving.new_request_id()
        rows = moving.read_files(running, paths, format.value, reading)
        items = moving.as_items(rows, moving.Expressions(payload, kind, reference, encoding, enqueue_at))
        if dry_run:
            show(session, items, f"would import to '{queue}':")
            return
        before = held(session, queue)
        if session.streams.progress:
            # Spark reports a task only when it has ended. The item count of the queue shows progress earlier.
            total = rows.count()
            spark.watch(lambda: Standing(max(0, held(session, queue) - before), "rows", total))
        started = time.monotonic()
        how = f"the same command with --request-id {request_id} adds what is missing"
        with resume_hint(how, lambda: f"the queue holds {held(session, queue) - before:,} items more than before"):
            totals = moving.write_items(items, spark.connection().options(queue), f"import {request_id}")
    # With a new request id, nothing was there before: rows that count as repeated come from tasks that Spark repeated.
    repeated = totals.items - totals.added if given_id else 0
    number = totals.items - repeated
    text = f"imported {count(number, 'item')} to '{queue}'{there_already(repeated)}"
    summary(session, text, started, number, queue_name=queue, request_id=request_id, repeated=repeated)


@contextlib.contextmanager
def _malformed(spark: SparkSession, paths: list[str], format: FileFormat, reading: dict[str, str]) -> Iterator[None]:
    """Add the file and the line to the error about a record that cannot be read."""
    from querator.spark import malformed

    try:
        yield
    except Exception as error:
        place = ""
        if format.value in malformed.FORMATS and "malformed" in str(error).lower():
            with contextlib.suppress(Exception):  # Spark's own message is shown instead
                place = malformed.place(spark, paths, format.value, reading)
        if not place:
            raise
        hint = getattr(error, "hint", "") or "correct the record, or take lines as they are with --format text"
        raise QueratorError(f"a record is malformed: {place}", hint=hint) from error
