"""The five commands of docs/disaster.md, and how it opens a base without Querator, run as they stand there."""

from __future__ import annotations

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
from tests.daemons import clean_environment, querator
from tests.maintenance.house import House
from tests.waiting import until


def block(heading: str, language: str) -> str:
    """The first block of code in this language after a heading of the page."""
    page = (ROOT / "docs" / "disaster.md").read_text()
    return page.partition(f"## {heading}\n")[2].partition(f"```{language}\n")[2].partition("```")[0]


def five_commands() -> list[str]:
    return block("Five commands", "sh").splitlines()


def has_compared_clocks(data: Path) -> bool:
    """True also if the daemon was promoted or has stopped."""
    done = querator(data.parent, "daemon", "status", "--data", str(data))
    return "not compared its clock" not in done.stdout


def test_the_five_commands_work(tmp_path: Path) -> None:
    commands = five_commands()
    assert len(commands) == 5
    environment = clean_environment(tmp_path) | {"QUERATOR_ARCHIVE": f"file://{tmp_path / 'archive'}"}
    daemons: list[subprocess.Popen[bytes]] = []
    logs: list[Path] = []
    outputs = []
    try:
        for command in commands:
            words = [sys.executable, "-m", "querator.cli.main", *command.removesuffix("&").split()[1:]]
            if command.endswith("&"):
                log = tmp_path / f"daemon-{len(daemons)}.log"
                with open(log, "wb") as file:
                    daemons.append(subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=file, stderr=file))
                logs.append(log)
            else:
                # All daemons are started at once. The standby must have compared its clock before it can be promoted.
                for log in logs:
                    until(lambda log=log: " started" in log.read_text(), "the daemon does not serve")  # type: ignore[misc]
                until(lambda: has_compared_clocks(tmp_path / "second"))
                done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, f"{command}: {done.stderr}"
                outputs.append(done.stdout)
    finally:
        for daemon in daemons:
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
    assert "epoch         2" in outputs[-1]


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
