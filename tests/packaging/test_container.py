"""packaging/Containerfile: what can be checked without building an image."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import ROOT
from tests.daemons import clean_environment

FILE = (ROOT / "packaging" / "Containerfile").read_text()
LINES = re.sub(r"\\\n\s*", "", "".join(line for line in FILE.splitlines(True) if not line.startswith("#")))
INSTRUCTIONS = [tuple(line.split(" ", 1)) for line in LINES.splitlines() if line.strip()]


def given(name: str) -> list[str]:
    return [rest for instruction, rest in INSTRUCTIONS if instruction == name]


def copied() -> list[str]:
    """What the first stage takes from the checkout."""
    return [path for rest in given("COPY") if not rest.startswith("--from") for path in rest.split()[:-1]]


def health_check() -> str:
    (rest,) = given("HEALTHCHECK")
    shell, flag, command = json.loads(rest.partition("CMD ")[2])
    assert (shell, flag) == ("sh", "-c")
    return str(command)


def test_it_does_not_run_as_root_and_keeps_data_on_a_volume() -> None:
    (user,), (volume,) = given("USER"), given("VOLUME")
    settings = dict(one.split("=", 1) for one in given("ENV")[0].split())
    assert user == "2319:2319"
    assert settings["QUERATOR_DATA"] == settings["HOME"] == volume
    assert INSTRUCTIONS[-1][0] == "CMD" and [one for one, _ in INSTRUCTIONS].index("USER") > 0
    assert json.loads(given("ENTRYPOINT")[0]) + json.loads(given("CMD")[0]) == ["querator", "daemon", "run"]


def test_what_it_copies_is_enough_to_install_everything(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (source / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    environment = os.environ | {"QUERATOR_PURE": "1"}  # test_install compiles, which takes a while
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("querator-*.whl"))) as wheel:
        names = set(wheel.namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "querator").rglob("*.py")}
    assert modules <= names
    assert any(name.endswith("share/man/man1/querator.1") for name in names)


SCRIPT = """
set -eu
mount -t tmpfs data "$HOME"
mount -t tmpfs temporary "$TMPDIR"
mount -o remount,ro,bind /
if touch /written-by-a-test 2>/dev/null; then rm /written-by-a-test; exit 99; fi
$QUERATOR daemon run 2>"$HOME/log" &
until {health} >"$HOME/health"; do kill -0 $! || {{ cat "$HOME/log"; exit 1; }}; done
$QUERATOR queues create mail
$QUERATOR queue produce mail hello
$QUERATOR sql mail 'select count(*) from items'
kill $!
wait $!
"""


def can_remount() -> bool:
    return os.getuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not shutil.which("unshare") or not can_remount(), reason="only root can make / read-only")
def test_the_daemon_and_its_health_check_work_on_a_read_only_root(tmp_path: Path) -> None:
    program = f"{sys.executable} -m querator.cli.main"
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    environment = clean_environment(tmp_path / "home") | {
        "TMPDIR": str(tmp_path / "tmp"),
        "QUERATOR": program,
        "QUERATOR_DATA": str(tmp_path / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    script = SCRIPT.format(health="{ " + health_check().replace("querator check", "$QUERATOR check") + "; }")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "1"
