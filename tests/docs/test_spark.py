"""Runs the Python of docs/spark.md on a real Spark, and checks the commands that the page lists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs import page_runs
from tests.docs.conftest import Served
from tests.docs.pages import blocks

PAGE = Path("docs/spark.md")
BEFORE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.createDataFrame([("one",), ("two",), ("three",)], "payload string")
options = dict(endpoint="http://queues:2319", queue="mail")
"""
AFTER = """
query.processAllAvailable()
query.stop()
df.write.format("querator").options(**options).mode("append").save()
again = spark.read.format("querator").options(**options).load()
print("seen by the first read:", items.count(), "left out by the daemon:", again.count() - invoices.count())
print("in the lake:", sorted(row.payload.decode() for row in spark.read.parquet("lake/mail").collect()))
spark.stop()
"""


def python() -> str:
    return "\n".join(block.text for block in blocks(PAGE) if block.language == "python")


def test_what_the_page_shows_in_a_notebook(served: Served, home: Path, tmp_path: Path):
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'querator[spark]'")
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine; apt-get install openjdk-17-jre-headless")
    served.empty()
    served.client.create_queue("mail")
    program = (BEFORE + python() + AFTER).replace("http://queues:2319", f"http://{served.http}")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=page_runs.environment(home, PYSPARK_PYTHON=sys.executable),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "in the lake: ['one', 'three', 'two']" in done.stdout
    assert "seen by the first read: 0 left out by the daemon: 3" in done.stdout
    assert len(served.client.list_items("mail")) == 3  # the items that were written after the stream had ended


def test_two_lines_make_it_a_format_of_spark():
    assert python().partition("\n\n")[0].splitlines() == ["from querator.spark import register", "register(spark)"]


def test_the_commands_it_lists_exist():
    listed = re.findall(r"^querator (pipeline \w+)(.*)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    assert listed
    for name, rest in listed:
        told = subprocess.run(
            [sys.executable, "-m", "querator.cli.main", *name.split(), "--help"], capture_output=True, text=True
        )
        assert told.returncode == 0
        assert [option for option in re.findall(r"--[\w-]+", rest) if option not in told.stdout] == []
