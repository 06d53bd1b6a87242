"""`make demo` without its Spark part, which tests/spark covers, and the picture in the README."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs import page_runs


def test_the_demo_ends_by_itself_and_leaves_nothing_behind(home: Path):
    done = subprocess.run(
        [sys.executable, "demo/demo.py", "--without-spark"],
        cwd=ROOT,
        env=page_runs.environment(home, TMPDIR=str(home)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr
    assert os.listdir(home) == []
    for shown in ("completed 1 item", "dead after 2 attempts", "redrove 1 item", "0 refused", "daemon run --http"):
        assert shown in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_can_be_interrupted_and_leaves_nothing_behind(home: Path, number: signal.Signals):
    process = subprocess.Popen(
        [sys.executable, "demo/demo.py", "--without-spark"],
        cwd=ROOT,
        env=page_runs.environment(home, TMPDIR=str(home)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches every process of the terminal, including the daemon
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("$ querator partitions pause"):
            break
    os.killpg(process.pid, number)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130, told
    assert told.endswith("interrupted; nothing is left behind\n")
    assert "Traceback" not in told
    assert os.listdir(home) == []


def test_the_picture_shows_commands_that_can_be_recorded(home: Path):
    recorded = home / "terminal.svg"
    subprocess.run(
        [sys.executable, "demo/picture.py", str(recorded)],
        cwd=ROOT,
        env=page_runs.environment(home, TMPDIR=str(home)),
        check=True,
    )
    assert _commands(recorded) == _commands(ROOT / "docs" / "terminal.svg")


def _commands(picture: Path) -> list[str]:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())
    return [text for text in texts if text.startswith(("querator&#160;", "seq&#160;"))]
