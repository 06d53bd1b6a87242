"""`querator pipeline`: bulk work with Spark. Each module of this package has a verb or two.

The work itself is in `querator.spark`, which is imported when a command runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from querator.cli.pipeline import copying, dead_queues, from_files, to_files
from querator.cli.pipeline.spark_runs import Spark
from querator.cli.shell.options import command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.session import Session

app = noun(NOUNS["pipeline"].help)

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


def _spark(
    session: Session,
    master: Master = "local[*]",
    conf: Conf = [],  # noqa: B006 - typer needs the value itself
    log_file: LogFile = None,
    verbose: Verbose = False,
) -> Spark:
    return Spark(session, master, conf, log_file, verbose)


def _add(name: str, verb: Callable[..., None]) -> None:
    """Make a verb a command. It gets a Session, a Spark made from the options above, and then its own parameters."""
    session, _, *own = inspect.signature(verb, eval_str=True).parameters.values()
    _, *shared = inspect.signature(_spark, eval_str=True).parameters.values()

    def run(session: Session, /, **values: Any) -> None:
        spark = _spark(session, **{option.name: values.pop(option.name) for option in shared})
        verb(session, spark, **values)

    run.__doc__ = verb.__doc__
    run.__signature__ = inspect.Signature([session, *own, *shared])  # type: ignore[attr-defined]
    command(app, name)(run)


_add("import", from_files.import_)
_add("export", to_files.export)
_add("copy", copying.copy)
_add("redrive", dead_queues.redrive)
_add("report", dead_queues.report)
_add("stream", to_files.stream)
