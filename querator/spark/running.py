"""Helps commands to run Spark: progress from the status of Spark, and errors in one line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from querator import errors
from querator.errors import QueratorError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.2
_OURS: Final = re.compile(r"querator\.errors\.(\w+): (.+)")
_PYTHON: Final = re.compile(r"^[\w.]*(?:Error|Exception): (.+)$", re.MULTILINE)
_JAVA: Final = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.+)$", re.MULTILINE)
_MISFIT: Final = re.compile(
    r"java\.lang\.(?:NoSuchMethod|NoSuchField|NoClassDefFound|AbstractMethod|IncompatibleClassChange)Error: (.+)"
)
"""What Java reports when a jar was built for another version of Spark."""
_CONDITION: Final = re.compile(r"^\[[\w.]+\] ")
_CLUTTER: Final = re.compile(r"\.? SQLSTATE: \w+|; line \d+ pos \d+|;$")


class Standing(NamedTuple):
    """The progress of a job."""

    done: int
    unit: str
    total: int | None = None
    share: float | None = None
    """The fraction that is done, if there is no total in this unit."""
    note: str = ""


@contextmanager
def every_so_often(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` a few times per second in its own thread while this is open."""
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(POLL_SECONDS):
            with suppress(Exception):  # Spark may be starting or stopping, so there is nothing to show
                look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()


def tasks_done(spark: SparkSession) -> Standing | None:
    """The finished and total tasks of the active stages, or None if no stage is active."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    total = sum(info.numTasks for info in infos if info is not None)
    return Standing(sum(info.numCompletedTasks for info in infos if info), "tasks", total) if total else None


def explained(error: BaseException) -> QueratorError:
    """The innermost reason of an error of Spark, in one line."""
    text = str(error)
    if isinstance(error, QueratorError):
        return error
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        return getattr(errors, name, QueratorError)(message.strip())
    if "Traceback (most recent call last)" in text and (reasons := _PYTHON.findall(text)):
        return QueratorError(reasons[-1].strip())
    if misfit := _MISFIT.search(text):
        from pyspark import __version__

        return UsageError(
            f"a jar was built for another version of Spark than {__version__}: {_plain(misfit[1])}",
            hint="--conf spark.jars.packages=... names the jar; its documentation says which Spark it needs",
        )
    condition = _call(error, "getCondition") or _call(error, "getErrorClass")
    if condition:
        first = _plain(next((line for line in text.splitlines() if line.strip()), type(error).__name__))
        if str(condition) == "PARSE_SYNTAX_ERROR":
            return UsageError(f"an expression does not parse: {first}")
        return UsageError(first) if _is_analysis(error) else QueratorError(first)
    causes = _JAVA.findall(text)
    if not causes:
        return QueratorError(_plain(text.strip().partition("\n")[0] or type(error).__name__))
    # The last cause with an error class names the file, and the innermost cause says what is wrong with it.
    named = [cause for cause in causes if _CONDITION.match(cause)]
    shown = [*named[-1:], causes[-1]] if causes[-1] not in named else named[-1:]
    return QueratorError(": ".join(_plain(cause) for cause in shown))


def _plain(text: str) -> str:
    """The text without error classes and positions, which only developers of Spark need."""
    return _CLUTTER.sub("", _CONDITION.sub("", text.strip())).rstrip(".; ")


def _is_analysis(error: BaseException) -> bool:
    return type(error).__name__ in ("AnalysisException", "ParseException")


def _call(error: BaseException, name: str) -> Any:
    method = getattr(error, name, None)
    return method() if method is not None else None
