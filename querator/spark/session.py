"""The Spark session of the commands. It logs to a file, and reports in one line why Spark cannot start."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from querator.errors import QueratorError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN: Final = 17
JAVA_PACKAGE: Final = "openjdk-17-jre-headless"

DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.memory": "1g",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.streaming.stopTimeout": "30s",
}

_LOG4J: Final = """\
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


NO_PERF_DATA: Final = "-XX:-UsePerfData"
"""Without this flag, Java leaves a directory behind in /tmp."""
PYTHON_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers of PySpark that print every error with a Java stack trace to standard error."""


_JAVA_ENDED: Final = re.compile(r'^Exception in thread "main" [\w.$]+: (?:\[[\w.]+\] )?(.+)$', re.MULTILINE)
_CLUSTER_ENDED: Final = re.compile(r"Application has been killed\. Reason: (.+)$", re.MULTILINE)


def check_java(environ: Mapping[str, str] = os.environ) -> None:
    """Raise if Java is missing or too old, with the package to install."""
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    hint = f"apt install {JAVA_PACKAGE} or similar, then querator doctor"
    try:
        if java is None:
            raise FileNotFoundError
        command = [java, NO_PERF_DATA, "-version"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        raise QueratorError(f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none", hint=hint) from None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is not None and int(found[1]) < JAVA_VERSION_MIN:
        raise QueratorError(f"Spark needs Java {JAVA_VERSION_MIN} or newer, and this is Java {found[1]}", hint=hint)


def check_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise QueratorError("pyspark is not installed", hint="pip install 'querator[spark]'") from None


@contextlib.contextmanager
def session(
    name: str, *, master: str = "", conf: Mapping[str, str] | None = None, log_file: Path, verbose: bool = False
) -> Iterator[SparkSession]:
    """A session with the data source registered. An active session is used if there is one."""
    check_pyspark()
    from pyspark.sql import SparkSession

    from querator.spark.source import register

    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        with _settings(active, conf or {}):
            yield active
        return
    check_java()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = python_of_executors(master)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", NO_PERF_DATA)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="querator-spark-") as scratch:
        log4j = Path(scratch, "log4j2.properties")
        log4j.write_text(_LOG4J.format(level="info" if verbose else "warn", file=log_file))
        builder = SparkSession.builder.appName(name).master(master or "local[*]")
        settings = DEFAULTS | {
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j} {NO_PERF_DATA}",
            "spark.sql.warehouse.dir": str(Path(scratch, "warehouse")),
            **(conf or {}),
        }
        for key, value in settings.items():
            builder = builder.config(key, value)
        before = log_file.stat().st_size if log_file.exists() else 0
        with _standard_error_to(log_file):
            try:
                spark = builder.getOrCreate()
            except Exception as error:
                if reason := why_it_ended(log_file, before):
                    raise QueratorError(f"Spark did not start: {reason}") from error
                raise
        _log_errors_to(log_file)
        register(spark)
        try:
            yield spark
        except Exception as error:
            # Spark itself only reports that it was stopped.
            if reason := why_it_ended(log_file, before):
                message, hint = (error.message, error.hint) if isinstance(error, QueratorError) else (str(error), "")
                line = message.partition("\n")[0]
                raise QueratorError(f"the cluster has ended this job: {reason} ({line})", hint=hint) from error
            raise
        finally:
            spark.stop()


def python_of_executors(master: str, environ: Mapping[str, str] = os.environ) -> str:
    """The Python of executors: PYSPARK_PYTHON on a cluster if it is absolute, otherwise this Python.

    With a relative path, executors would fail and be restarted forever.
    """
    configured = environ.get("PYSPARK_PYTHON", "")
    on_a_cluster = bool(master) and not master.startswith("local")
    return configured if on_a_cluster and Path(configured).is_absolute() else sys.executable


def why_it_ended(log_file: Path, before: int = 0) -> str:
    """The reason why the JVM or the cluster ended the session, from the log, or an empty text.

    The first `before` bytes of the log are from earlier sessions.
    """
    text = log_file.read_bytes()[before:].decode(errors="replace")
    reasons = _JAVA_ENDED.findall(text) or _CLUSTER_ENDED.findall(text)
    return str(reasons[-1]) if reasons else ""


def _log_errors_to(log_file: Path) -> None:
    from pyspark.logger import PySparkLogger

    for name in PYTHON_LOGGERS:
        logger = PySparkLogger.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.addHandler(logging.FileHandler(log_file, delay=True))
        logger.propagate = False
    if not logging.root.handlers:  # py4j logs interrupts to the root logger
        logging.root.addHandler(logging.FileHandler(log_file, delay=True))


@contextlib.contextmanager
def _settings(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Change the settings of a running session while this is open. Skips settings that cannot be changed."""
    changed = {key: spark.conf.get(key, None) for key in conf if spark.conf.isModifiable(key)}
    for key in changed:
        spark.conf.set(key, conf[key])
    try:
        yield
    finally:
        for key, value in changed.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


@contextlib.contextmanager
def _standard_error_to(log_file: Path) -> Iterator[None]:
    """Redirect standard error to the log file, because the JVM and its workers also print there."""
    sys.stderr.flush()
    saved = os.dup(2)
    target = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(target)
