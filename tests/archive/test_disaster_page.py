"""The five commands of docs/disaster.md, run as they stand there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests import ROOT
from tests.daemons import clean_environment
from tests.waiting import until


def five_commands() -> list[str]:
    page = (ROOT / "docs" / "disaster.md").read_text()
    return page.partition("## Five commands")[2].partition("```sh\n")[2].partition("```")[0].splitlines()


def test_the_five_commands_work(tmp_path: Path) -> None:
    commands = five_commands()
    assert len(commands) == 5
    environment = clean_environment(tmp_path) | {"QUERATOR_ARCHIVE": f"file://{tmp_path / 'archive'}"}
    daemons: list[subprocess.Popen[bytes]] = []
    outputs = []
    try:
        for command in commands:
            words = [sys.executable, "-m", "querator.cli.main", *command.removesuffix("&").split()[1:]]
            if command.endswith("&"):
                log = tmp_path / f"daemon-{len(daemons)}.log"
                with open(log, "wb") as file:
                    daemons.append(subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=file, stderr=file))
                until(lambda log=log: "started" in log.read_text(), "the daemon does not serve")  # type: ignore[misc]
                # The standby must have seen a heartbeat before it can be promoted without --force.
                until(lambda: (tmp_path / "archive" / "heartbeat").exists())
            else:
                done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, f"{command}: {done.stderr}"
                outputs.append(done.stdout)
    finally:
        for daemon in daemons:
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
    assert "epoch         2" in outputs[-1]
