"""`querator pipeline export` and `pipeline stream`: a queue into files."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from querator.cli.pipeline.spark_options import (
    RESUME_HINT,
    FileFormat,
    Form,
    FormatOptions,
    InState,
    ItemsInState,
    PartitionBy,
    PartitionedBy,
    Splits,
)
from querator.cli.pipeline.spark_runs import Spark, resume_hint, setting, show, summary, where_option
from querator.cli.shell.options import DryRun, Queue, Where
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.session import Session, duration
from querator.errors import UsageError


def export(
    session: Session,
    spark: Spark,
    queue: Queue,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Write to this new directory, in any form that Spark accepts.")
    ],
    format: Form = FileFormat.PARQUET,
    partition_by: PartitionedBy = PartitionBy.NONE,
    option: FormatOptions = [],  # noqa: B006
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export in the same directory.")
    ] = False,
    state: InState = ItemsInState.ALL,
    where: Where = None,
    only: Annotated[str, typer.Option("--only", metavar="A,B", help="Write only these columns of an item.")] = "",
    complete: Annotated[
        bool, typer.Option("--complete", help="Empty the queue: lease ready items, write them and complete them.")
    ] = False,
    splits: Splits = 2,
    dry_run: DryRun = False,
) -> None:
    """Write the items of a queue to files.

    Without --complete, the queue does not change, and the files hold the items that were there when the export began.
    With --complete, each item goes either to the files or to a consumer, and an interrupted run can be continued.
    """
    session.client.queue_info(queue)
    directories = "" if partition_by is PartitionBy.NONE else partition_by.value
    _check_columns(only, partition_by)
    if complete and where:
        raise UsageError("--complete takes all ready items, so it cannot be combined with --where")
    if complete and overwrite:
        raise UsageError("--complete adds to the directory, so it cannot be combined with --overwrite")
    some = where_option(spark.connection().options(queue), where)
    writing = dict(setting(text, "--option") for text in option)
    with spark.running(f"exporting '{queue}'", format=format.value) as running:
        from querator.spark import moving

        options = spark.connection().options(queue)
        more = {"columns": only or moving.STORED_COLUMNS}
        if dry_run:
            rows = moving.read_queue(running, options, state=state.value, splits=str(splits), **more, **some)
            show(session, moving.for_files(rows, format.value, directories)[0], f"would export '{queue}' to {to}:")
            return
        if overwrite:
            moving.check_overwritable(running, to, format.value)
        started = time.monotonic()
        if complete:
            query = moving.drain(running, options | more, to, format.value, directories, writing)
            following = moving.QueryProgress(query)
            spark.watch(following.standing)
            with resume_hint(RESUME_HINT, lambda: f"{count(following.items, 'item')} written"), _signalled() as ended:
                following.wait(ended)
                if ended.is_set():
                    raise KeyboardInterrupt
            number = following.items
        else:
            rows = moving.read_queue(running, options, state=state.value, splits=str(splits), **more, **some)
            with resume_hint(f"the queue is as it was; remove {to} and repeat the command"):
                mode = "overwrite" if overwrite else "error"
                number = moving.write_files(rows, to, format.value, directories, mode, writing)
    summary(session, f"exported {count(number, 'item')} of '{queue}'", started, number, queue_name=queue, to=to)


def _check_columns(only: str, partition_by: PartitionBy) -> None:
    from querator.spark.options import columns_of

    needed = {PartitionBy.KIND: "kind", PartitionBy.DAY: "created_at"}.get(partition_by)
    columns = columns_of(only)
    if columns and needed and needed not in columns:
        raise UsageError(f"--partition-by {partition_by.value} needs the column '{needed}' in --only")


def stream(
    session: Session,
    spark: Spark,
    queue: Queue,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Write to this directory, in any form that Spark accepts.")
    ],
    trigger: Annotated[str, typer.Option("--trigger", metavar="DURATION", help="Write files this often.")] = "10s",
    format: Form = FileFormat.PARQUET,
    option: FormatOptions = [],  # noqa: B006
    partition_by: PartitionedBy = PartitionBy.NONE,
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="PATH", help="Keep the state of the stream here. Default: a directory below --to."
        ),
    ] = "",
    dry_run: DryRun = False,
) -> None:
    """Write the items of a queue to files until interrupted. Items are completed after they are written.

    Ctrl-C or SIGTERM ends the stream cleanly. After a crash, the same command continues where it stopped, and each item
    is in the files once.
    """
    session.client.queue_info(queue)
    every = f"{max(1, round(duration(trigger, '--trigger') * 1_000))} milliseconds"
    directories = "" if partition_by is PartitionBy.NONE else partition_by.value
    writing = dict(setting(text, "--option") for text in option)
    with spark.running(f"streaming '{queue}'", format=format.value) as running:
        from querator.spark import moving

        options = spark.connection().options(queue) | {"columns": moving.STORED_COLUMNS}
        if dry_run:
            show(session, moving.read_queue(running, options, state="ready"), f"would stream '{queue}' to {to}:")
            return
        started = time.monotonic()
        notes = checkpoint or f"{to.rstrip('/')}/{moving.CHECKPOINT}"
        query = moving.drain(running, options, to, format.value, directories, writing, checkpoint=notes, every=every)
        following = moving.QueryProgress(query)
        spark.watch(following.standing)
        with resume_hint(RESUME_HINT, lambda: f"{count(following.items, 'item')} written"), _signalled() as ended:
            following.wait(ended)
        number = following.items
        moving.complete_last_batch(running, options, notes)
    summary(session, f"wrote {count(number, 'item')} of '{queue}'", started, number, queue_name=queue, to=to)


@contextlib.contextmanager
def _signalled() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set. An exception during a call to Spark would mix up its answers."""
    ended = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: ended.set()) for number in numbers]
    try:
        yield ended
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
