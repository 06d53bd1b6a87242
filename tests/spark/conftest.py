"""One Spark session and one daemon for all of these tests; without pyspark or Java they are skipped."""

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
    """It lends them to every logger that does not propagate, and Spark's make everything JSON that they get."""
    yield
    for name in PYTHON_LOGGERS:
        if name in logging.Logger.manager.loggerDict:  # it must be Spark that creates them
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
    # A task that fails is tried again, as on a cluster.
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
