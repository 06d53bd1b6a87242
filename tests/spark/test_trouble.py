"""Jobs that are disturbed: the daemon restarts, the queue is deleted, or the job is cancelled."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from querator.cli.shell.tree import app
from querator.client.bulk_client import BulkClient
from querator.client.catalogue import produce_item
from querator.client.clients import Client
from querator.errors import QueratorError
from tests.daemons import Daemon
from tests.spark.seen import numbers
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ITEMS = 60_000


@pytest.fixture
def own(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that a test may kill."""
    with Daemon(tmp_path_factory.mktemp("own"), http=True) as daemon:
        yield daemon


@pytest.fixture
def lines(tmp_path: Path) -> str:
    file = tmp_path / "lines"
    file.write_text("".join(f"{n}\n" for n in range(ITEMS)))
    return str(file)


def pipeline(daemon: Daemon, home: Path, *words: str) -> Result:
    environment = {"HOME": str(home), "QUERATOR_ENDPOINT": daemon.endpoint, "XDG_STATE_HOME": str(home)}
    return CliRunner().invoke(app, ["pipeline", *words], env=environment)


def held(client: Client, queue: str) -> int:
    return sum(p.total for logical in client.stats(queue).logical_queues for p in logical.partitions)


class Meanwhile:
    """Runs a function in a thread while a command runs. Its exception fails the test."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        if self._error is not None:
            raise self._error


def fill(bulk: BulkClient, queue: str, first: int, last: int, size: int = 0) -> None:
    for start in range(first, last, 10_000):
        texts = [str(n).rjust(size) for n in range(start, min(last, start + 10_000))]
        bulk.produce(queue, [pa.record_batch({"payload": texts})], f"fill {start}")


def test_a_daemon_that_is_killed_in_mid_import_and_comes_back(own: Daemon, lines: str, tmp_path: Path) -> None:
    with own.connect() as client, BulkClient(own.endpoint) as bulk:
        client.create_queue("q", partitions=2)

        def restart() -> None:
            until(lambda: held(client, "q") > 0)
            own.kill()
            own.start()

        with Meanwhile(restart):
            result = pipeline(own, tmp_path, "import", "q", lines, "--format", "text")
        assert (result.exit_code, "imported 60,000 items" in result.output) == (0, True), result.output
        assert numbers(bulk, "q") == list(range(ITEMS))


def test_a_daemon_that_is_killed_in_mid_export_and_comes_back(spark: SparkSession, own: Daemon, tmp_path: Path) -> None:
    with own.connect() as client, BulkClient(own.endpoint) as bulk:
        client.create_queue("q", partitions=2)
        fill(bulk, "q", 0, ITEMS, 500)

        def restart() -> None:
            until(lambda: any((tmp_path / "out").rglob("*.parquet")))
            own.kill()
            own.start()

        with Meanwhile(restart):
            result = pipeline(own, tmp_path, "export", "q", "--to", str(tmp_path / "out"))
        assert result.exit_code == 0, result.output
    rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("cast(cast(payload as string) as int) as n").collect()
    assert sorted(row.n for row in rows) == list(range(ITEMS))


def test_a_daemon_that_is_killed_in_mid_stream_and_comes_back(spark: SparkSession, own: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with own.connect() as client, BulkClient(own.endpoint) as bulk:
        client.create_queue("q", partitions=2)
        fill(bulk, "q", 0, 5_000)

        def restart_then_end() -> None:
            try:
                until(lambda: (out / "_spark_metadata" / "0").exists())
                own.kill()
                own.start()
                fill(bulk, "q", 5_000, 6_000)
                until((out / "_spark_metadata" / "1").exists)
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        with Meanwhile(restart_then_end):
            result = pipeline(own, tmp_path, "stream", "q", "--to", str(out), "--trigger", "100ms")
        assert (result.exit_code, "wrote 6,000 items" in result.output) == (0, True), result.output
        assert held(client, "q") == 0
    rows = spark.read.parquet(str(out)).selectExpr("cast(cast(payload as string) as int) as n").collect()
    assert sorted(row.n for row in rows) == list(range(6_000))


def test_a_queue_that_is_deleted_while_it_is_written(
    daemon: Daemon, client: Client, queue: str, lines: str, tmp_path: Path
) -> None:
    def delete() -> None:
        until(lambda: held(client, queue) > 0)
        client.delete_queue(queue, force=True)

    with Meanwhile(delete):
        result = pipeline(daemon, tmp_path, "import", queue, lines, "--format", "text")
    assert (result.exit_code, f"no such queue named '{queue}'" in result.output) == (4, True), result.output
    assert "--request-id" in result.output


def test_a_queue_that_is_deleted_while_it_is_read(
    daemon: Daemon, client: Client, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    fill(bulk, queue, 0, ITEMS, 500)

    def delete() -> None:
        until(lambda: any((tmp_path / "out").rglob("*.parquet")))
        client.delete_queue(queue, force=True)

    with Meanwhile(delete):
        result = pipeline(daemon, tmp_path, "export", queue, "--to", str(tmp_path / "out"))
    assert (result.exit_code, f"no such queue named '{queue}'" in result.output) == (4, True), result.output
    assert "remove" in result.output


def contexts(home: Path, **endpoints: str) -> None:
    directory = home / ".config" / "querator"
    directory.mkdir(parents=True)
    texts = [f'[contexts.{name}]\nendpoint = "{endpoint}"\n' for name, endpoint in endpoints.items()]
    (directory / "contexts.toml").write_text("\n".join(texts))


def test_a_copy_between_two_daemons_that_is_cancelled_is_finished_by_the_next(
    spark: SparkSession, daemon: Daemon, client: Client, bulk: BulkClient, own: Daemon, queue: str, tmp_path: Path
) -> None:
    """The environment names one daemon, and the contexts name both. Consumers already work on the copy."""
    contexts(tmp_path, here=daemon.endpoint, there=own.endpoint)
    fill(bulk, queue, 0, ITEMS, 200)
    client.produce(queue, [produce_item("-1", enqueue_at="2999-01-01T00:00:00Z")])
    words = ("copy", "--from", f"here/{queue}", "--to", "there/copy")
    with own.connect() as other, BulkClient(own.endpoint) as other_bulk:
        assert pipeline(daemon, tmp_path, *words).exit_code == 4
        other.create_queue("copy", partitions=3)

        def cancel() -> None:
            until(lambda: held(other, "copy") > 0)
            spark.sparkContext.cancelAllJobs()

        with Meanwhile(cancel):
            result = pipeline(daemon, tmp_path, *words)
        assert result.exit_code == 1, result.output
        assert "the same command adds the missing items" in result.output
        taken = other.lease("copy", 500).items
        other.complete("copy", [item.id for item in taken])
        assert 0 < held(other, "copy") < ITEMS
        assert pipeline(daemon, tmp_path, *words).exit_code == 0
        left = numbers(other_bulk, "copy")
        assert sorted([*left, *(int(item.payload) for item in taken)]) == list(range(ITEMS))
        assert numbers(other_bulk, "copy", "scheduled") == [-1]
        assert held(client, queue) == ITEMS


def test_a_daemon_that_does_not_come_back_is_given_up_on(own: Daemon, spark: SparkSession) -> None:
    with own.connect() as client:
        client.create_queue("q")
    own.stop()
    rows: Any = spark.range(10).selectExpr("cast(id as string) as payload")
    with pytest.raises(Exception, match="no daemon at") as caught:
        rows.write.format("querator").options(endpoint=own.endpoint, queue="q", patience="1").mode("append").save()
    assert not isinstance(caught.value, QueratorError)
