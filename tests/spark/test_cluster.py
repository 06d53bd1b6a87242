"""Commands, and tasks that Spark runs twice at once, on a standalone cluster with two hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from querator.client.bulk_client import BulkClient
from tests.daemons import Daemon
from tests.spark.seen import numbers
from tests.spark.standalone import Cluster

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(needs_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.stop()


def test_a_task_that_spark_runs_twice_at_once_writes_each_row_once(
    cluster: Cluster, daemon: Daemon, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    """The first attempt pauses in the middle of its rows until the second one runs. Then both go on."""
    script = Path(__file__).with_name("speculation_driver.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    given = {"master": cluster.url, "endpoint": daemon.endpoint, "queue": queue, "path": str(tmp_path)}
    subprocess.run([sys.executable, str(script), json.dumps(given)], env=environment, timeout=120, check=True)
    log = (tmp_path / "spark.log").read_text()
    assert re.search(r"Marking task 1 in stage .* as speculatable", log)
    assert "Starting task 1.1 in stage" in log
    assert (tmp_path / "second attempt").exists()
    assert numbers(bulk, queue) == list(range(120_000))


def test_commands_run_on_a_cluster_with_the_python_that_they_are_told(
    cluster: Cluster, daemon: Daemon, queue: str, tmp_path: Path
) -> None:
    lines, out, used = tmp_path / "lines", tmp_path / "out", tmp_path / "used"
    lines.write_text("".join(f"{n}\n" for n in range(3_000)))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> {used}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {
        "HOME": str(tmp_path),
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": str(ROOT),
        "QUERATOR_ENDPOINT": daemon.endpoint,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    options = ["--master", cluster.url, "--conf", f"spark.executorEnv.PYTHONPATH={ROOT}"]
    for words in (["import", queue, str(lines), "--format", "text"], ["export", queue, "--to", str(out)]):
        command = [sys.executable, "-m", "querator.cli.main", "pipeline", *words, *options]
        done = subprocess.run(command, env=environment, timeout=200, capture_output=True, text=True)
        assert (done.returncode, "3,000 items" in done.stdout + done.stderr) == (0, True), done.stderr
    assert used.exists()
    files = [pq.read_table(file, partitioning=None) for file in out.glob("*.parquet")]
    found = [int(payload) for table in files for payload in table.column("payload").to_pylist()]
    assert sorted(found) == list(range(3_000))


def test_a_master_that_does_not_answer_is_told_in_a_line(
    needs_spark: None, daemon: Daemon, queue: str, tmp_path: Path
) -> None:
    """Spark tries to connect three times, which takes a minute."""
    lines = tmp_path / "lines"
    lines.write_text("1\n")
    words = ["import", queue, str(lines), "--format", "text", "--master", "spark://127.0.0.1:1"]
    environment = os.environ | {"HOME": str(tmp_path), "QUERATOR_ENDPOINT": daemon.endpoint, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "querator.cli.main", "pipeline", *words]
    done = subprocess.run(command, env=environment, timeout=200, capture_output=True, text=True)
    assert (done.returncode, "All masters are unresponsive" in done.stderr) == (1, True), done.stderr
