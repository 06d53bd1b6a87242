"""`querator pipeline redrive` and `pipeline report`: work on a dead queue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from querator.cli.pipeline.spark_options import RESUME_HINT, Splits
from querator.cli.pipeline.spark_runs import Spark, resume_hint, show, summary
from querator.cli.shell.options import DryRun, Queue
from querator.cli.terminal.id_lists import count
from querator.cli.terminal.session import Session
from querator.errors import PartlyDone, UsageError


def redrive(
    session: Session,
    spark: Spark,
    queue: Annotated[str, typer.Argument(metavar="DEADQUEUE", help="Name of the dead queue.", show_default=False)],
    transform: Annotated[
        str,
        typer.Option(
            "--transform",
            metavar="SQL",
            help="Make the new payload from text, payload, kind, reason and other columns.",
        ),
    ] = "",
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="QUEUE", help="Send all items to this queue, instead of the queue in which each died."
        ),
    ] = "",
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Redrive only items that meet this condition.")
    ] = "",
    dry_run: DryRun = False,
) -> None:
    """Return dead items to the queue in which they died, repaired with SQL.

    An item stays in the dead queue if its transform fails or gives null. Safe to interrupt and to repeat.
    """
    session.client.queue_info(queue)
    if to == queue:
        raise UsageError("a queue cannot be redriven into itself")
    # With ANSI mode off, an expression that fails gives null for one item, instead of failing the whole run.
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
        with resume_hint(RESUME_HINT):
            outcomes = [row.asDict() for row in redriving.redrive(rows, options)]
    done, failed = sum(row["items"] for row in outcomes), sum(row["failed"] for row in outcomes)
    text = f"redrove {count(done, 'item')} of '{queue}'"
    if failed:
        for row in outcomes:
            if row["failed"]:
                session.note(f"{count(row['failed'], 'item')} of '{row['origin']}' stayed: {row['reason']}")
        raise PartlyDone(f"{text}, {count(failed, 'item')} stayed")
    summary(session, text, started, done, queue_name=queue)


def report(
    session: Session,
    spark: Spark,
    queue: Queue,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write a page with charts to this file.", show_default=False),
    ] = None,
    splits: Splits = 2,
    dry_run: DryRun = False,
) -> None:
    """Count dead items by reason, failure, kind, reference, origin, age, attempts and time of death."""
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
