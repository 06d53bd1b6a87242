"""`querator pipeline`: bulk work on Spark. The work itself is in `querator.spark`, imported when a command runs."""

from __future__ import annotations

import contextlib
import enum
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from querator.cli.pipeline.spark_runs import Spark, going_on, held, setting, show, summary
from querator.cli.shell.options import DryRun, Queue, Where, command
from querator.cli.shell.tree import noun
from querator.cli.terminal.id_lists import count, there_already
from querator.cli.terminal.session import Session
from querator.errors import PartlyDone, QueratorError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = noun("Bulk work on Spark: import, export, copy, redrive, report, stream.")


class FileFormat(enum.StrEnum):
    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"
    TEXT = "text"
    DELTA = "delta"
    ICEBERG = "iceberg"


class State(enum.StrEnum):
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
    str, typer.Option("--master", metavar="URL", help="Where Spark runs: local[*], spark://host:port, yarn.")
]
Conf = Annotated[
    list[str], typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be given several times.")
]
LogFile = Annotated[
    Path | None, typer.Option("--log-file", metavar="FILE", help="Where Spark's own log goes.", show_default=False)
]
Verbose = Annotated[bool, typer.Option("--verbose", help="More in Spark's log, and say where it is.")]
Splits = Annotated[int, typer.Option("--splits", min=1, metavar="N", help="Tasks per partition of the queue.")]
InState = Annotated[State, typer.Option("--state", help="Only items in this state; stored is ready and leased.")]
Form = Annotated[
    FileFormat, typer.Option("--format", help="What the files are. Spark needs a jar for delta and iceberg.")
]
FormatOptions = Annotated[
    list[str],
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of Spark's reader or writer, such as delimiter=; or compression=zstd; may be repeated.",
    ),
]
GOES_ON = "the same command goes on where this one was"
Sql = "Spark SQL over the columns of the files."


@command(app, "import")
def import_(
    session: Session,
    queue: Queue,
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files or directories, as Spark names them.")],
    format: Form = FileFormat.PARQUET,
    option: FormatOptions = [],  # noqa: B006 - typer wants the value itself
    payload: Annotated[str, typer.Option("--payload", metavar="SQL", help=f"{Sql} Default: the row as JSON.")] = "",
    kind: Annotated[str, typer.Option("--kind", metavar="SQL", help=Sql)] = "",
    reference: Annotated[str, typer.Option("--reference", metavar="SQL", help=Sql)] = "",
    encoding: Annotated[str, typer.Option("--encoding", metavar="SQL", help=Sql)] = "",
    enqueue_at: Annotated[str, typer.Option("--enqueue-at", metavar="SQL", help=Sql)] = "",
    request_id: Annotated[
        str, typer.Option("--request-id", metavar="ID", help="Repeating an import under its id adds what is missing.")
    ] = "",
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006 - typer wants the value itself
    log_file: LogFile = None,
    verbose: Verbose = False,
) -> None:
    """Produce the rows of files to a queue, each once.

    SQL expressions say what becomes of a row; a constant kind is "'mail'". An import that broke off is repeated with
    the same --request-id, files and --master, and then adds what is missing.
    """
    from querator.limits import BULK_REQUEST_ID_BYTES_MAX

    spark = Spark(session, master, conf, log_file, verbose)
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
            # Spark tells how far a task is only when the task has ended. The queue tells it all the time.
            total = rows.count()
            spark.watch(lambda: Standing(max(0, held(session, queue) - before), "rows", total))
        started = time.monotonic()
        how = f"the same command with --request-id {request_id} adds what is missing"
        with going_on(how, lambda: f"the queue holds {held(session, queue) - before:,} items more than before"):
            totals = moving.write_items(items, spark.connection().options(queue), f"import {request_id}")
    # Under a new id nothing was there before. If Spark has repeated a task, its rows are still from this import.
    repeated = totals.items - totals.added if given_id else 0
    number = totals.items - repeated
    text = f"imported {count(number, 'item')} to '{queue}'{there_already(repeated)}"
    summary(session, text, started, number, queue_name=queue, request_id=request_id, repeated=repeated)


@contextlib.contextmanager
def _malformed(spark: SparkSession, paths: list[str], format: FileFormat, reading: dict[str, str]) -> Iterator[None]:
    """If a record cannot be read, the error names its file and line."""
    from querator.spark import malformed

    try:
        yield
    except Exception as error:
        place = ""
        if format.value in malformed.FORMATS and "malformed" in str(error).lower():
            with contextlib.suppress(Exception):  # then Spark's own words must do
                place = malformed.place(spark, paths, format.value, reading)
        if not place:
            raise
        hint = getattr(error, "hint", "") or "correct the record, or take lines as they are with --format text"
        raise QueratorError(f"a record is malformed: {place}", hint=hint) from error


@command(app, "export")
def export(
    session: Session,
    queue: Queue,
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="A new directory, as Spark names it.")],
    format: Form = FileFormat.PARQUET,
    partition_by: Annotated[PartitionBy, typer.Option("--partition-by", help="Directories by kind or day.")] = (
        PartitionBy.NONE
    ),
    option: FormatOptions = [],  # noqa: B006
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export in the same directory.")
    ] = False,
    state: InState = State.ALL,
    where: Where = None,
    only: Annotated[str, typer.Option("--only", metavar="A,B", help="Only these columns of an item.")] = "",
    complete: Annotated[
        bool, typer.Option("--complete", help="Drain the queue: lease what is ready, write it, complete it.")
    ] = False,
    splits: Splits = 2,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006
    log_file: LogFile = None,
    verbose: Verbose = False,
) -> None:
    """Write a queue's items to files.

    Without --complete nothing changes in the queue; what is written is what was there when the export began. With it,
    each item ends up either in the files or with a consumer, once; a run that broke off goes on where it was.
    """
    spark = Spark(session, master, conf, log_file, verbose)
    session.client.queue_info(queue)
    directories = "" if partition_by is PartitionBy.NONE else partition_by.value
    _check_columns(only, partition_by)
    if complete and where:
        raise UsageError("--complete takes every item that is ready, so that --where does not go with it")
    if complete and overwrite:
        raise UsageError("--complete adds to what is in the directory, so that --overwrite does not go with it")
    some = _where(spark.connection().options(queue), where)
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
            following = moving.Following(query)
            spark.watch(following.standing)
            with going_on(GOES_ON, lambda: f"{count(following.items, 'item')} written"), _signalled() as ended:
                following.wait(ended)
                if ended.is_set():
                    raise KeyboardInterrupt
            number = following.items
        else:
            rows = moving.read_queue(running, options, state=state.value, splits=str(splits), **more, **some)
            with going_on(f"the queue is as it was; remove {to} and repeat the command"):
                mode = "overwrite" if overwrite else "error"
                number = moving.write_files(rows, to, format.value, directories, mode, writing)
    summary(session, f"exported {count(number, 'item')} of '{queue}'", started, number, queue_name=queue, to=to)


def _check_columns(only: str, partition_by: PartitionBy) -> None:
    from querator.spark.options import columns_of

    needed = {PartitionBy.KIND: "kind", PartitionBy.DAY: "created_at"}.get(partition_by)
    columns = columns_of(only)
    if columns and needed and needed not in columns:
        raise UsageError(f"--partition-by {partition_by.value} needs the column '{needed}' in --only")


@command(app, "copy")
def copy(
    session: Session,
    source: Annotated[str, typer.Option("--from", metavar="[CONTEXT/]QUEUE", help="Where the items are.")],
    target: Annotated[str, typer.Option("--to", metavar="[CONTEXT/]QUEUE", help="Where they go.")],
    state: InState = State.ALL,
    where: Where = None,
    splits: Splits = 1,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006
    log_file: LogFile = None,
    verbose: Verbose = False,
) -> None:
    """Copy items between queues, of one daemon or two; they stay where they are, and their copies are not leased.

    Every copy knows the id it was made from, so that a copy that broke off, or is repeated, adds what is missing.
    """
    spark = Spark(session, master, conf, log_file, verbose)
    from_options, to_options = _place(spark, source), _place(spark, target)
    if from_options == to_options:
        raise UsageError("a queue cannot be copied into itself")
    some = _where(from_options, where)
    with spark.running(f"copying '{source}' to '{target}'") as running:
        from querator.spark import moving

        some["columns"] = moving.STORED_COLUMNS
        rows = moving.read_queue(running, from_options, state=state.value, splits=str(splits), **some)
        if dry_run:
            show(session, moving.copied(rows), f"would copy '{source}' to '{target}':")
            return
        started = time.monotonic()
        with going_on("the same command adds what is missing"):
            totals = moving.copy(rows, to_options)
    repeated = totals.items - totals.added
    text = f"copied {count(totals.added, 'item')} to '{target}'{there_already(repeated)}"
    summary(session, text, started, totals.added, source=source, target=target, repeated=repeated)


def _where(options: dict[str, str], where: str | None) -> dict[str, str]:
    """The option of a read. The daemon checks the condition here, before Spark starts and makes a directory."""
    from querator.spark.options import Options

    if not where:
        return {}
    with Options.of(options).bulk() as bulk:
        bulk.plan(options["queue"], where=where)
    return {"where": where}


def _place(spark: Spark, text: str) -> dict[str, str]:
    """The options of a queue, which must be there."""
    context, slash, queue = text.rpartition("/")
    place = spark.connection(context if slash else None)
    with place.client() as client:
        client.queue_info(queue)
    return place.options(queue)


@command(app, "redrive")
def redrive(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="DEADQUEUE", help="Name of the dead queue.", show_default=False)],
    transform: Annotated[
        str,
        typer.Option(
            "--transform",
            metavar="SQL",
            help="The new payload, of text, payload, kind, reason and the like.",
        ),
    ] = "",
    to: Annotated[str, typer.Option("--to", metavar="QUEUE", help="Instead of each item's origin queue.")] = "",
    where: Annotated[str, typer.Option("--where", metavar="SQL", help="Only items for which this holds.")] = "",
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006
    log_file: LogFile = None,
    verbose: Verbose = False,
) -> None:
    """Send dead items back to the queue in which they died, repaired with SQL.

    An item whose transform fails or gives null stays where it is. Safe to interrupt and to repeat.
    """
    spark = Spark(session, master, conf, log_file, verbose)
    session.client.queue_info(queue)
    if to == queue:
        raise UsageError("a queue cannot be redriven into itself")
    # An expression that fails for one payload must not fail for all of them.
    with spark.running(f"redriving '{queue}'", **{"spark.sql.ansi.enabled": "false"}) as running:
        from querator.spark import redriving

        options = spark.connection().options(queue)
        rows = redriving.repaired(redriving.dead_items(running, options, state="ready"), transform, to)
        rows = rows.where(where) if where else rows
        if dry_run:
            shown = rows.select(
                "id", "target", "kind", "reason", "failure", "text", rows["repaired"].cast("string").alias("new")
            )
            show(session, shown, f"would redrive '{queue}':")
            return
        started = time.monotonic()
        with going_on(GOES_ON):
            outcomes = [row.asDict() for row in redriving.redrive(rows, options)]
    done, failed = sum(row["items"] for row in outcomes), sum(row["failed"] for row in outcomes)
    text = f"redrove {count(done, 'item')} of '{queue}'"
    if failed:
        for row in outcomes:
            if row["failed"]:
                session.note(f"{count(row['failed'], 'item')} of '{row['origin']}' stayed: {row['reason']}")
        raise PartlyDone(f"{text}, {count(failed, 'item')} stayed")
    summary(session, text, started, done, queue_name=queue)


@command(app, "report")
def report(
    session: Session,
    queue: Queue,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also as a page with charts.", show_default=False)
    ] = None,
    splits: Splits = 2,
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006
    log_file: LogFile = None,
    verbose: Verbose = False,
) -> None:
    """What died, of what, since when: counts by reason, failure, kind, reference, age and attempts, and a time line."""
    spark = Spark(session, master, conf, log_file, verbose)
    session.client.queue_info(queue)
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(f"--html: there is no directory {html.absolute().parent}")
    with spark.running(f"reading '{queue}'") as running:
        from querator.spark import redriving, reporting

        options = spark.connection().options(queue)
        if dry_run:
            show(session, redriving.dead_items(running, options), f"would report on '{queue}':")
            return
        made = reporting.report(running, options, splits)
    if html is not None:
        html.write_text(reporting.page(made, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())), encoding="utf-8")
        session.note(f"wrote {html}")
    records = [
        {"section": section.title, "value": value, "items": items}
        for section in made.sections
        for value, items in section.rows
    ]
    session.output.records(records, ["section", "value", "items"], name="value", empty="nothing died")


@command(app, "stream")
def stream(
    session: Session,
    queue: Queue,
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="A directory, as Spark names it.")],
    trigger: Annotated[str, typer.Option("--trigger", metavar="DURATION", help="How often files are written.")] = "10s",
    format: Form = FileFormat.PARQUET,
    option: FormatOptions = [],  # noqa: B006
    partition_by: Annotated[PartitionBy, typer.Option("--partition-by", help="Directories by kind or day.")] = (
        PartitionBy.NONE
    ),
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", metavar="PATH", help="Where Spark notes how far it is; default below --to."),
    ] = "",
    dry_run: DryRun = False,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006
    log_file: LogFile = None,
    verbose: Verbose = False,
) -> None:
    """Write a queue's items to files for as long as this runs; they are completed once they are written.

    Ctrl-C or SIGTERM ends it in order. After a crash the same command goes on where it was, and each item is in the
    files once.
    """
    from querator.cli.terminal.session import duration

    spark = Spark(session, master, conf, log_file, verbose)
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
        following = moving.Following(query)
        spark.watch(following.standing)
        with going_on(GOES_ON, lambda: f"{count(following.items, 'item')} written"), _signalled() as ended:
            following.wait(ended)
        number = following.items
        moving.complete_last_batch(running, options, notes)
    summary(session, f"wrote {count(number, 'item')} of '{queue}'", started, number, queue_name=queue, to=to)


@contextlib.contextmanager
def _signalled() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM. An exception in the middle of a call to Spark would leave its answer to the next."""
    ended = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: ended.set()) for number in numbers]
    try:
        yield ended
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
