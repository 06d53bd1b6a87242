"""Without Java or pyspark, the error is one line that names the package to install. Other commands still work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from querator.errors import QueratorError
from querator.spark.session import check_java, python_of_executors


def java(directory: Path, version: str) -> dict[str, str]:
    program = directory / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return {"PATH": str(directory)}


def test_java_is_missing(tmp_path: Path) -> None:
    with pytest.raises(QueratorError, match="Java 17 or newer, and there is none") as caught:
        check_java({"PATH": str(tmp_path)})
    assert "openjdk-17-jre-headless" in caught.value.hint


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_java_is_too_old(tmp_path: Path, version: str) -> None:
    with pytest.raises(QueratorError, match=r"and this is Java (8|11)"):
        check_java(java(tmp_path, version))


def test_java_will_do(tmp_path: Path) -> None:
    check_java(java(tmp_path, "21.0.1"))


@pytest.mark.parametrize(
    ("master", "told", "taken"),
    [
        ("spark://host:7077", "/opt/bin/python", "/opt/bin/python"),
        ("spark://host:7077", "python3", sys.executable),
        ("spark://host:7077", "", sys.executable),
        ("local[2]", "/opt/bin/python", sys.executable),
        ("", "/opt/bin/python", sys.executable),
    ],
)
def test_executors_use_this_python_or_the_one_told_for_a_cluster(master: str, told: str, taken: str) -> None:
    assert python_of_executors(master, {"PYSPARK_PYTHON": told}) == taken


def test_the_daemon_and_the_commands_never_import_pyspark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import querator.daemon.server, querator.client.bulk_client, querator.cli.pipeline, querator.client.clients"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_pipeline_without_pyspark_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from querator.spark.session import check_pyspark\n"
        "from querator.errors import QueratorError\n"
        "try: check_pyspark()\n"
        "except QueratorError as error: print(error.hint)"
    )
    answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert answer.stdout == "pip install 'querator[spark]'\n"
