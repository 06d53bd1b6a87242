"""The five commands of docs/disaster.md, and how it opens a base without Querator, run as they stand there."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from querator.config import ArchiveConfig
from tests import ROOT
from tests.archive.looking import bucket_of, shipped
from tests.daemons import clean_environment
from tests.maintenance.house import House
from tests.waiting import until


def block(heading: str, language: str) -> str:
    """The first block of code in this language after a heading of the page."""
    page = (ROOT / "docs" / "disaster.md").read_text()
    return page.partition(f"## {heading}\n")[2].partition(f"```{language}\n")[2].partition("```")[0]


def five_commands() -> list[str]:
    return block("Five commands", "sh").splitlines()


def test_the_five_commands_work_when_they_are_pasted_in_one_go(tmp_path: Path) -> None:
    commands = five_commands()
    assert len(commands) == 5
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "querator").write_text(f'#!/bin/sh\nexec {sys.executable} -m querator.cli.main "$@"\n')
    (programs / "querator").chmod(0o755)
    environment = clean_environment(tmp_path) | {"QUERATOR_ARCHIVE": f"file://{tmp_path / 'archive'}"}
    environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    # A terminal goes on after an error, and waits for nobody in between.
    with open(tmp_path / "errors", "wb") as errors:
        shell = subprocess.Popen(
            ["bash", "-e"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        # Daemons must not hold the pipe that is read to its end.
        pasted = "\n".join(command.replace(" &", " >&2 &") for command in commands)
        output, _ = shell.communicate(pasted, timeout=120)
        log = (tmp_path / "errors").read_text()
        assert shell.returncode == 0, log
        until(lambda: "was replaced by" in (tmp_path / "errors").read_text())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert "epoch         2" in output


@pytest.fixture
def base(open_house: Callable[..., House], archive: ArchiveConfig, tmp_path: Path) -> Path:
    """The directory with `base.duckdb`, a partition file from an archive. It has three items."""
    house = open_house("plain")
    house.create()
    house.produce("1", "2", "3")
    house.close()
    # Files that were there before the archive are copied as bases.
    house = open_house("plain", archive=archive)
    shipped(house)
    (found,) = bucket_of(archive).entries("base/")
    (tmp_path / "base.duckdb").write_bytes(bucket_of(archive).read(found.name) or b"")
    return tmp_path


def test_a_base_can_be_opened_with_duckdb(base: Path) -> None:
    program, read_only, file, query = shlex.split(block("Without Querator", "sh"))
    assert (program, read_only) == ("duckdb", "-readonly")
    # The same library as the command line, which may not be installed here.
    with duckdb.connect(str(base / file), read_only=True) as connection:
        assert connection.execute(query).fetchall() == [(3,)]


def test_a_base_can_be_read_with_spark(base: Path) -> None:
    words = [sys.executable, "-c", block("Without Querator", "python")]
    done = subprocess.run(words, cwd=base, env=clean_environment(base), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "|    3|" in done.stdout
