"""Running a Spark action for a command: progress from Spark's own status, and its errors in one line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from querator.errors import QueratorError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS: Final = 0.2
_OURS: Final = re.compile(r"querator\.errors\.\w+: (.+)")
_PYTHON: Final = re.compile(r"^\w*(?:Error|Exception): (.+)$", re.MULTILINE)


@contextmanager
def reported(spark: SparkSession, tell: Callable[[int, int], None]) -> Iterator[None]:
    """While this is open, `tell` hears how many tasks of the present jobs are done, and of how many."""
    stopped = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not stopped.wait(POLL_SECONDS):
            done = total = 0
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    done += info.numCompletedTasks
                    total += info.numTasks
            if total:
                tell(done, total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()


def explained(error: BaseException) -> QueratorError:
    """What Spark says in a page, in a line: the innermost reason there is."""
    text = str(error)
    if isinstance(error, QueratorError):
        return error
    ours = _OURS.findall(text)
    if ours:
        return QueratorError(ours[-1].strip())
    condition = _call(error, "getCondition") or _call(error, "getErrorClass")
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__).strip()
    first = re.sub(r"^\[[\w.]+\] ", "", first)
    if condition and not str(condition).startswith(("PYTHON_DATA_SOURCE", "FAILED_EXECUTE")):
        if str(condition) == "PARSE_SYNTAX_ERROR":
            return UsageError(f"an expression does not parse: {first}")
        return UsageError(first) if _is_analysis(error) else QueratorError(first)
    reasons = _PYTHON.findall(text)
    return QueratorError(reasons[-1].strip() if reasons else first)


def _is_analysis(error: BaseException) -> bool:
    return type(error).__name__ in ("AnalysisException", "ParseException")


def _call(error: BaseException, name: str) -> Any:
    method = getattr(error, name, None)
    return method() if method is not None else None
