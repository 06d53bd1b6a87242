"""These tests share one Spark session and one daemon. They are skipped if pyspark or Java is missing."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from querator.client.bulk_client import BulkClient
from querator.client.clients import Client
from querator.errors import QueratorError
from querator.spark.session import PYTHON_LOGGERS, check_java, check_pyspark, session
from tests.daemons import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def log_handlers_go_back_to_pytest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark's loggers borrow pytest's log handlers and make them write JSON. This gives the handlers back."""
    yield
    for name in PYTHON_LOGGERS:
        if name in logging.Logger.manager.loggerDict:  # only Spark may create these loggers
            logging.getLogger(name).propagate = True
    lender = request.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (lender.caplog_handler, lender.report_handler):
        handler.setFormatter(lender.formatter)


@pytest.fixture(scope="session")
def needs_spark() -> None:
    try:
        check_pyspark()
        check_java()
    except QueratorError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def spark(needs_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    directory = tmp_path_factory.mktemp("spark")
    # Spark retries a failed task, as on a cluster.
    settings = {"spark.sql.shuffle.partitions": "2", "spark.local.dir": str(directory)}
    with session("tests", master="local[2,3]", conf=settings, log_file=directory / "spark.log") as running:
        yield running


@pytest.fixture(scope="session")
def daemon(needs_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), http=True) as running:
        yield running


@pytest.fixture(scope="session")
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.connect() as one:
        yield one


@pytest.fixture(scope="session")
def bulk(daemon: Daemon) -> Iterator[BulkClient]:
    with BulkClient(daemon.endpoint) as one:
        yield one


_names = itertools.count(1)


@pytest.fixture
def queue(client: Client) -> str:
    name = f"queue-{next(_names)}"
    client.create_queue(name, partitions=2)
    return name


@pytest.fixture
def options(daemon: Daemon, queue: str) -> dict[str, str]:
    return {"endpoint": daemon.endpoint, "queue": queue}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "spark.log"
