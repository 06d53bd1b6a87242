"""Runs Spark for the commands of `querator pipeline`: starts it, shows progress, explains errors, prints summaries."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from querator.cli.terminal.progress import Progress
from querator.cli.terminal.session import Session
from querator.errors import Interrupted, QueratorError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from querator.spark.moving import Connection
    from querator.spark.running import Standing

SAMPLE_ROWS: Final = 5


class Spark:
    """Spark for one command. It is started late, and its errors are explained in one line."""

    def __init__(self, session: Session, master: str, conf: list[str], log_file: Path | None, verbose: bool) -> None:
        self._session = session
        self._master = master
        self._conf = dict(setting(text, "--conf") for text in conf)
        self._standing: Callable[[], Standing | None] | None = None
        self._verbose = verbose
        self.log_file = (log_file or _default_log_file()).absolute()

    def connection(self, context: str | None = None) -> Connection:
        """How the tasks of Spark connect to the daemon."""
        from querator.spark.moving import Connection
        from querator.spark.options import settings_for

        settings = self._session.settings if context is None else settings_for(context)
        address = str(settings.address.value)
        if not address.startswith("http") and self._master and not self._master.startswith("local"):
            raise UsageError(
                f"{address} cannot be reached from other machines", hint="--endpoint http://host:port of the daemon"
            )
        return Connection(address, str(settings.token_file.value or ""), settings.tls)

    @contextlib.contextmanager
    def running(self, what: str, format: str = "", **defaults: str) -> Iterator[SparkSession]:
        from querator.spark.moving import check_format, format_conf
        from querator.spark.running import every_so_often, explained, tasks_done
        from querator.spark.session import check_java, check_pyspark, session

        check_pyspark()
        check_java()
        if self._verbose:
            self._session.note(f"Spark's log: {self.log_file}")
        started = session(
            f"querator {what}",
            master=self._master,
            conf=format_conf(format) | defaults | self._conf,
            log_file=self.log_file,
            verbose=self._verbose,
        )
        self._standing = None
        with Progress(self._session.streams, what) as progress, every_so_often(self._show):
            self._progress = progress
            try:
                with started as spark:
                    self.watch(lambda: tasks_done(spark))
                    check_format(spark, format)
                    yield spark
            except (QueratorError, typer.Exit):
                raise
            except KeyboardInterrupt:
                raise Interrupted("interrupted", hint="the help of the command says how to continue") from None
            except Exception as error:
                failure = explained(error)
                failure.hint = failure.hint or f"Spark's log has more: {self.log_file}"
                raise failure from error

    def watch(self, standing: Callable[[], Standing | None]) -> None:
        """Show this in the progress line from now on."""
        self._standing = standing
        self._progress.restart()

    def _show(self) -> None:
        if self._standing is None:
            self._progress.say("starting Spark")
        elif (now := self._standing()) is not None:
            self._progress.update(now.done, now.total, share=now.share, unit=now.unit, note=now.note)


def setting(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option}: '{text}' is not KEY=VALUE")
    return key.strip(), value


def _default_log_file() -> Path:
    from querator import config

    return config.state_directory(os.environ) / "spark" / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"


def show(session: Session, rows: DataFrame, text: str) -> None:
    """Print the result of a dry run: the plan, the schema and some rows."""
    plan = rows._jdf.queryExecution().simpleString()
    for line in (text, "", *plan.splitlines(), f"Schema: {rows.schema.simpleString()}"):
        session.note(line)
    sample = [row.asDict(recursive=True) for row in rows.limit(SAMPLE_ROWS).collect()]
    records = [{key: _plain(value) for key, value in row.items()} for row in sample]
    session.output.records(records, rows.columns, name=rows.columns[0], empty="no rows")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def summary(session: Session, text: str, started: float, items: int, **record: Any) -> None:
    seconds = round(time.monotonic() - started, 3)
    rate = f"{items / seconds:,.0f} a second" if seconds else ""
    fields = {**record, "items": items, "seconds": seconds}
    session.done(f"{text} in {seconds:.1f}s, {rate}", fields, name=next(iter(record)))


def where_option(options: dict[str, str], where: str | None) -> dict[str, str]:
    """The `where` option of a read. The daemon checks the condition before Spark starts and creates a directory."""
    from querator.spark.options import Options

    if not where:
        return {}
    with Options.of(options).bulk() as bulk:
        bulk.plan(options["queue"], where=where)
    return {"where": where}


def held(session: Session, queue: str) -> int:
    stats = session.client.stats(queue)
    return sum(p.total + p.scheduled for logical in stats.logical_queues for p in logical.partitions)


@contextlib.contextmanager
def resume_hint(how: str, progress: Callable[[], str] | None = None) -> Iterator[None]:
    """Add to an error how far the job got, and how to continue. A usage error stays as it is."""
    from querator.spark.running import explained

    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted{_so_far(progress)}", hint=how) from None
    except Exception as error:
        failure = explained(error)
        if isinstance(failure, UsageError):
            raise failure from error
        raise type(failure)(f"{failure.message}{_so_far(progress)}", hint=how) from error


def _so_far(progress: Callable[[], str] | None) -> str:
    if progress is None:
        return ""
    try:
        return f"; {progress()}"
    except QueratorError as error:
        return f"; how far it got is unknown: {error.message}"
