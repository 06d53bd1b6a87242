"""Installs Querator as a user would: from a copy of the repository and from the wheel, into new environments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import ROOT
from tests.packaging.backend import reason_for_plain, sources

pytestmark = pytest.mark.timeout(900)  # the first test that wants the wheel compiles it


def run(*words: str | Path, cwd: Path | None = None, **variables: str) -> str:
    # Without PYTHONPATH and outside the checkout, so that Python imports the installed package.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd or "/nonexistent"), "LC_ALL": "C.UTF-8"}
    environment |= _pip_settings() | variables
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _pip_settings() -> dict[str, str]:
    """The settings of pip and of the network on this machine."""
    return {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.lower().endswith("_proxy") or "CERT" in k}


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git tracks, with their current content."""
    target = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


@pytest.fixture(scope="session")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that CI has made of this checkout, or one made here."""
    if made := os.environ.get("QUERATOR_WHEEL"):
        return Path(made)
    target = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", target, clone, cwd=target)
    (built,) = target.glob("querator-*.whl")
    return built


def new_environment(directory: Path) -> Path:
    run(sys.executable, "-m", "venv", directory)
    return directory


def check_installed(environment: Path, cwd: Path, build: str) -> None:
    querator = environment / "bin" / "querator"
    assert re.fullmatch(rf"querator \d+\.\d+\.\d+ \({build}\)\n", run(querator, "version", cwd=cwd))
    assert "daemon" in run(querator, "--help", cwd=cwd)
    found = run(
        environment / "bin" / "python", "-c", "import querator.client.clients; print(querator.__file__)", cwd=cwd
    )
    assert found.strip().startswith(str(environment))
    for name in (
        "share/man/man1/querator.1",
        "share/man/man1/querator-queue-produce.1",
        "share/bash-completion/completions/querator.bash",
        "share/zsh/site-functions/_querator",
        "share/fish/vendor_completions.d/querator.fish",
    ):
        assert (environment / name).is_file(), name


def test_from_a_clean_clone_and_the_daemon_runs(clone: Path, tmp_path: Path):
    environment = new_environment(tmp_path / "v")
    run(environment / "bin" / "pip", "install", "--quiet", clone, cwd=tmp_path, QUERATOR_PURE="1")
    check_installed(environment, tmp_path, "plain")
    querator = environment / "bin" / "querator"
    daemon = subprocess.Popen(
        [querator, "daemon", "run", "--data", tmp_path / "d"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    try:
        socket = f"--socket={tmp_path / 'd' / 'querator.sock'}"
        program = (
            "from querator import Client\n"
            f"client = Client('unix:{tmp_path / 'd' / 'querator.sock'}', timeout=60)\n"
            "client.create_queue('q'); client.produce('q', 'hello')\n"
        )
        run(environment / "bin" / "python", "-c", program, cwd=tmp_path)
        assert "hello" in run(querator, "queue", "lease", "q", socket, cwd=tmp_path)
        assert "1" in run(querator, "sql", "q", "select count(*) from items", socket, cwd=tmp_path)
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0


def test_from_the_wheel(wheel: Path, tmp_path: Path):
    """Uses the dependencies of this environment, so that they are not downloaded again."""
    environment = new_environment(tmp_path / "v")
    run(environment / "bin" / "pip", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    packages = next((environment / "lib").glob("python3.*/site-packages"))
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "dependencies.pth").write_text(f"{here}\n")
    check_installed(environment, tmp_path, "plain" if reason_for_plain() else "compiled")


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = file.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {"querator/py.typed", "querator/wire/querator.proto", "querator/daemon/server.py"} <= names
    compiled = [] if reason_for_plain() else [re.compile(name.removesuffix(".py") + r"\.\S+\.so") for name in sources()]
    assert [one.pattern for one in compiled if not any(map(one.fullmatch, names))] == []
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "querator").rglob("*.py")}
    tracked = subprocess.run(["git", "ls-files", "querator"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert modules & set(tracked) <= names
    assert {name.split("/")[0] for name in names if ".d" not in name.split("/")[0]} == {"querator"}
    assert "License-Expression: Apache-2.0" in metadata
    assert {"spark", "test", "dev"} <= set(re.findall(r"Provides-Extra: (\w+)", metadata))
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_source_archive_installs_what_the_wheel_does(clone: Path, wheel: Path, tmp_path: Path):
    """The archive holds man pages and completions. Without them, a wheel built from it would lack them too."""
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    environment = new_environment(tmp_path / "v")
    run(environment / "bin" / "pip", "install", "--quiet", "setuptools>=77", cwd=tmp_path)
    name = run(environment / "bin" / "python", "-c", code, cwd=clone).split()[-1]
    with tarfile.open(tmp_path / name) as archive:
        inside = {one.partition("/")[2] for one in archive.getnames()}
    assert {"man/querator.1", "completions/_querator", "LICENSE", "README.md"} <= inside
    assert {"setup.py", "packaging/compiling.py"} <= inside


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_the_unit_file_is_understood(tmp_path: Path):
    unit = tmp_path / "querator.service"
    unit.write_text(
        (ROOT / "packaging" / "querator.service")
        .read_text()
        .replace("/opt/querator/bin/querator", "/bin/true")
        .replace("Documentation=man:querator(1)\n", "")
    )
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if "querator.service" in line]
    assert complaints == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_the_unit_file_is_rated_as_it_says():
    unit = ROOT / "packaging" / "querator.service"
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True)
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a file")
    said = re.search(r": (\d\.\d) OK", unit.read_text())
    found = re.search(r"Overall exposure level for querator.service: (\d\.\d)", done.stdout)
    assert said and found and float(found[1]) <= float(said[1]), done.stdout
