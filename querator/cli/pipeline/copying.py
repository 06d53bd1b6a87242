"""`querator pipeline copy`: a queue into another queue."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from querator.cli.pipeline.spark_options import InState, ItemsInState, Splits
from querator.cli.pipeline.spark_runs import Spark, resume_hint, show, summary, where_option
from querator.cli.shell.options import DryRun, Where
from querator.cli.terminal.id_lists import count, there_already
from querator.cli.terminal.session import Session
from querator.errors import UsageError


def copy(
    session: Session,
    spark: Spark,
    source: Annotated[str, typer.Option("--from", metavar="[CONTEXT/]QUEUE", help="Copy the items of this queue.")],
    target: Annotated[str, typer.Option("--to", metavar="[CONTEXT/]QUEUE", help="Copy the items to this queue.")],
    state: InState = ItemsInState.ALL,
    where: Where = None,
    splits: Splits = 1,
    dry_run: DryRun = False,
) -> None:
    """Copy items to another queue, of the same daemon or another. The items stay, and their copies are not leased.

    Every copy keeps the id of its original, so a repeated run adds only missing items.
    """
    from_options, to_options = _place(spark, source), _place(spark, target)
    if from_options == to_options:
        raise UsageError("a queue cannot be copied into itself")
    some = where_option(from_options, where)
    with spark.running(f"copying '{source}' to '{target}'") as running:
        from querator.spark import moving

        some["columns"] = moving.STORED_COLUMNS
        rows = moving.read_queue(running, from_options, state=state.value, splits=str(splits), **some)
        if dry_run:
            show(session, moving.copied(rows), f"would copy '{source}' to '{target}':")
            return
        started = time.monotonic()
        with resume_hint("the same command adds the missing items"):
            totals = moving.copy(rows, to_options)
    repeated = totals.items - totals.added
    text = f"copied {count(totals.added, 'item')} to '{target}'{there_already(repeated)}"
    summary(session, text, started, totals.added, source=source, target=target, repeated=repeated)


def _place(spark: Spark, text: str) -> dict[str, str]:
    """The data source options of a queue. Raises if the queue does not exist."""
    context, slash, queue = text.rpartition("/")
    place = spark.connection(context if slash else None)
    with place.client() as client:
        client.queue_info(queue)
    return place.options(queue)
