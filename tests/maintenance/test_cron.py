"""Runs the cron jobs and systemd units of the documentation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.daemons import Daemon, two_storages

PACKAGING = ROOT / "packaging"


def crontab() -> dict[str, str]:
    """The crontab of docs/operating.md: commands by schedule."""
    (block,) = re.findall(r"```cron\n(.*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
    lines = [line.split(maxsplit=5) for line in block.splitlines() if not line.startswith("#")]
    return {" ".join(line[:5]): line[5] for line in lines}


def run(command: str, daemon: Daemon) -> subprocess.CompletedProcess[str]:
    """Runs a command as cron does: with /bin/sh and almost no environment."""
    environment = {
        "HOME": str(daemon.directory),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "QUERATOR_SOCKET": str(daemon.socket),
        "PYTHONPATH": str(ROOT),
    }
    command = command.replace("/srv/backup", str(daemon.directory / "backup"))
    return subprocess.run(["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("schedule", crontab())
def test_schedules_are_five_fields(schedule: str):
    assert re.fullmatch(r"([\d*/,-]+ ){4}[\d*/,-]+", schedule)


def test_cron_is_silent_when_all_is_well_and_speaks_up_when_not(tmp_path: Path):
    with Daemon(tmp_path, *two_storages(tmp_path)) as daemon:
        client = daemon.client
        for name in ("orders", "mail"):
            client.create_queue(name, partitions=2, lease_timeout="1m", expire_timeout="1h")
            client.produce(name, ["a", "b"])
        client.pause_partitions("mail", [0])
        for command in crontab().values():
            done = run(command, daemon)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), command
        assert (tmp_path / "backup" / "orders" / "manifest.json").exists()
        file = tmp_path / "default" / client.list_partitions("mail")[1].file
        broken = file.with_suffix(".new")
        broken.write_bytes(b"not a database")
        broken.rename(file)
        client.offline_partitions("orders", [1])
        (reload,) = [command for command in crontab().values() if "reload" in command]
        done = run(reload, daemon)
        assert done.returncode not in (0, 2) and "partition '1'" in done.stderr
        states = [(status.queue_name, status.state) for status in client.list_partitions()]
        assert states == [("mail", "paused"), ("mail", "error"), ("orders", "available"), ("orders", "unavailable")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_the_timer_is_understood(tmp_path: Path):
    # systemd-analyze checks that the programs exist, so replace the installed path.
    for name in ("querator.service", "querator-reload.service", "querator-reload.timer"):
        text = (PACKAGING / name).read_text()
        text = text.replace("/opt/querator/bin/querator", shutil.which("true") or "/bin/true")
        (tmp_path / name).write_text(re.sub(r"^User=.*\n", "", text, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "querator-reload.timer")],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "querator" in line]
    assert not complaints, done.stderr
    assert "querator partitions reload --all-queues -q" in (PACKAGING / "querator-reload.service").read_text()
