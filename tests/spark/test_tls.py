"""Spark tasks speak TLS with a daemon: the options of the data source, and the pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from querator.errors import QueratorError
from querator.spark.moving import Connection
from querator.spark.options import Options
from querator.spark.running import explained
from tests.daemons import Daemon
from tests.pki import Pki

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"), "127.0.0.1")


@pytest.fixture(scope="module")
def tls_daemon(needs_spark: None, pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    words = (*pki.daemon_words, "--tls-client-ca", pki.path("ca.crt"))
    with Daemon(tmp_path_factory.mktemp("tls"), *words, http=True) as daemon:
        daemon.client.create_queue("mail", partitions=2)
        yield daemon


def test_tasks_write_and_read_over_tls(spark: SparkSession, tls_daemon: Daemon, pki: Pki) -> None:
    options = {
        "endpoint": f"https://{tls_daemon.http}",
        "queue": "mail",
        "ca_file": pki.path("ca.crt"),
        "client_cert": pki.path("client.crt"),
        "client_key": pki.path("client.key"),
    }
    spark.range(100).selectExpr("cast(id as string) as payload").write.format("querator").mode("append").options(
        **options
    ).save()
    found = spark.read.format("querator").options(**options).load()
    assert sorted(int(row.text) for row in found.select("text").collect()) == list(range(100))


def test_an_unknown_ca_is_one_line(spark: SparkSession, tls_daemon: Daemon) -> None:
    options = {"endpoint": f"https://{tls_daemon.http}", "queue": "mail"}
    with pytest.raises(Exception) as raised:
        spark.read.format("querator").options(**options).load().count()
    told: QueratorError = explained(raised.value)
    assert f"the certificate of https://{tls_daemon.http} comes from an unknown CA" in told.message


def test_files_come_from_options_before_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUERATOR_ENDPOINT", "https://queue.example")
    monkeypatch.setenv("QUERATOR_CA_FILE", "/from/variable")
    monkeypatch.setenv("QUERATOR_CLIENT_CERT", "/cert")
    settings = Options.of({"queue": "q", "ca_file": "/from/option"})
    assert tuple(settings.tls) == ("/from/option", "/cert", "")
    given = Options.of({"queue": "q", "endpoint": "https://other.example"})
    assert tuple(given.tls) == ("", "", "")
    connection = Connection(settings.endpoint, tls=settings.tls)
    assert Options.of(connection.options("q")).tls == settings.tls
