"""`querator pipeline …` as a user runs it: in a terminal, with its own Spark, and interrupted by Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from querator.client.bulk_client import BulkClient
from querator.client.clients import Client
from tests.daemons import Daemon
from tests.spark.seen import numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

CTRL_C = b"\x03"
PROGRAM = (sys.executable, "-m", "querator.cli.main", "pipeline")


class Ended(NamedTuple):
    code: int
    shown: str


def environment(daemon: Daemon, home: Path) -> dict[str, str]:
    own = {"HOME": str(home), "XDG_STATE_HOME": str(home), "QUERATOR_ENDPOINT": daemon.endpoint, "TERM": "xterm"}
    return os.environ | own


def in_terminal(daemon: Daemon, home: Path, *words: str, until: Callable[[], bool] | None = None) -> Ended:
    """Runs a command in a pseudo-terminal, and presses Ctrl-C once `until` holds."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*PROGRAM, *words], environment(daemon, home))
    shown, deadline = b"", time.monotonic() + 150
    while time.monotonic() < deadline:
        if until is not None and until():
            os.write(terminal, CTRL_C)
            until = None
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                shown += os.read(terminal, 65_536)
            except OSError:  # the command has closed its end of the terminal
                break
    return Ended(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode())


def held(client: Client, queue: str) -> int:
    return sum(p.total for logical in client.stats(queue).logical_queues for p in logical.partitions)


def test_a_stream_that_is_ended_with_ctrl_c_and_started_again_writes_each_item_once(
    spark: SparkSession, daemon: Daemon, client: Client, queue: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    words = ("stream", queue, "--to", str(lake), "--trigger", "1s", "--master", "local[2]")
    for start in range(0, 9_000, 1_000):
        client.produce(queue, [str(n) for n in range(start, start + 1_000)])
    first = in_terminal(daemon, tmp_path, *words, until=(lake / "_spark_metadata" / "0").exists)
    assert (first.code, "wrote 9,000 items" in first.shown) == (0, True), first.shown
    assert held(client, queue) == 0
    client.produce(queue, [str(n) for n in range(9_000, 10_000)])
    second = in_terminal(daemon, tmp_path, *words, until=(lake / "_spark_metadata" / "1").exists)
    assert (second.code, "wrote 1,000 items" in second.shown) == (0, True), second.shown
    written = [int(row.payload) for row in spark.read.parquet(str(lake)).select("payload").collect()]
    assert sorted(written) == list(range(10_000))
    assert held(client, queue) == 0


def test_an_import_that_is_ended_with_ctrl_c_is_finished_by_the_next(
    needs_spark: None, daemon: Daemon, client: Client, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{n}\n" for n in range(1_500_000)))
    words = ("import", queue, str(lines), "--format", "text", "--master", "local[2]", "--request-id", "mine")
    ended = in_terminal(daemon, tmp_path, *words, until=lambda: held(client, queue) > 0)
    assert (ended.code, "importing to" in ended.shown) == (130, True), ended.shown
    assert "starting Spark" in ended.shown and " of 1,500,000 " in ended.shown, ended.shown
    assert "--request-id mine" in ended.shown and "Traceback" not in ended.shown, ended.shown
    assert 0 < held(client, queue) < 1_500_000
    command = [*PROGRAM, *words, "-o", "json"]
    answer = subprocess.run(command, env=environment(daemon, tmp_path), capture_output=True, text=True, timeout=200)
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stderr
    told = json.loads(answer.stdout)
    assert told["items"] + told["repeated"] == 1_500_000
    assert told["repeated"] > 0
    assert numbers(bulk, queue) == list(range(1_500_000))


def test_an_error_is_a_line_and_what_spark_says_is_in_its_log(
    needs_spark: None, daemon: Daemon, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("one\n")
    words = ("import", queue, str(tmp_path / "file"), "--format", "text", "--payload", "nope", "--verbose")
    log = tmp_path / "spark.log"
    command = [*PROGRAM, *words, "--log-file", str(log), "--conf", "spark.sql.shuffle.partitions=3"]
    answer = subprocess.run(command, env=environment(daemon, tmp_path), capture_output=True, text=True, timeout=200)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "`nope` cannot be resolved" in answer.stderr
    assert len(answer.stderr.splitlines()) <= 5, answer.stderr
    assert "org.apache.spark" in log.read_text()


def test_a_master_that_is_none_is_told_in_a_line(needs_spark: None, daemon: Daemon, queue: str, tmp_path: Path) -> None:
    command = [*PROGRAM, "export", queue, "--to", str(tmp_path / "out"), "--master", "nonsense"]
    answer = subprocess.run(command, env=environment(daemon, tmp_path), capture_output=True, text=True, timeout=200)
    assert (answer.returncode, "Spark did not start: Master must" in answer.stderr) == (1, True), answer.stderr
    assert len(answer.stderr.splitlines()) <= 5, answer.stderr


@pytest.mark.parametrize("version", ["", "11.0.2"])
def test_without_java_a_line_says_what_to_install(daemon: Daemon, queue: str, tmp_path: Path, version: str) -> None:
    pytest.importorskip("pyspark")
    if version:
        (tmp_path / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        (tmp_path / "java").chmod(0o755)
    own = {name: value for name, value in environment(daemon, tmp_path).items() if name != "JAVA_HOME"}
    command = [*PROGRAM, "report", queue]
    answer = subprocess.run(command, env=own | {"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert (answer.returncode, "openjdk-17-jre-headless" in answer.stderr) == (1, True), answer.stderr
    assert len(answer.stderr.splitlines()) <= 3
