"""When the build backend compiles, and when it falls back to plain Python."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from querator import build
from tests import ROOT
from tests.packaging.backend import backend


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUERATOR_PURE", raising=False)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What setuptools was asked to build. The first attempt fails, as it does when mypyc finds a mistake."""
    asked: list[str] = []

    def build_wheel(*_: Any) -> str:
        asked.append(backend.reason_for_plain())
        if len(asked) == 1:
            raise SystemExit(1)
        return "querator.whl"

    monkeypatch.setattr(backend, "ROOT", tmp_path)
    monkeypatch.setattr(backend.build_meta, "build_wheel", build_wheel)
    return asked


@pytest.mark.skipif(bool(backend.reason_for_plain()), reason="nothing to compile with on this machine")
def test_a_build_that_fails_is_repeated_without_compiling(built, monkeypatch, capsys):
    monkeypatch.setenv("QUERATOR_PURE", "0")  # so that the variable is restored after the test
    assert backend.build_wheel("dist") == "querator.whl"
    assert built == ["", "QUERATOR_PURE is set"]
    assert "without compiled modules: compiling failed: see the errors above" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("QUERATOR_PURE", "1", "QUERATOR_PURE is set"),
        ("CC", "no-such-compiler -O2", "no C compiler (no-such-compiler)"),
    ],
)
def test_a_plain_build_needs_nothing_but_setuptools(variable, value, reason, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert reason in backend.reason_for_plain()
    assert backend.get_requires_for_build_wheel() == []


@pytest.mark.parametrize("value", ["", "0", "no", "False"])
def test_a_word_for_no_does_not_ask_for_plain_python(value, monkeypatch):
    usual = build_of_a_process()
    monkeypatch.setenv("QUERATOR_PURE", value)
    assert backend.reason_for_plain() != "QUERATOR_PURE is set"
    assert build_of_a_process() == usual


def build_of_a_process() -> str:
    command = [sys.executable, "-c", "from querator import build; print(build.name())"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.skipif(bool(backend.reason_for_plain()), reason="nothing to compile with on this machine")
def test_a_compiled_build_needs_mypyc_and_the_libraries():
    needed = backend.get_requires_for_build_wheel()
    assert needed[0].startswith("mypy[mypyc]") and any(one.startswith("msgspec") for one in needed)


def test_every_pattern_of_the_list_names_a_module():
    assert [pattern for pattern in backend.COMPILED if not list(ROOT.glob(pattern))] == []


@pytest.mark.skipif(build.name() != build.COMPILED, reason="no compiled modules in this checkout; make compiled")
def test_all_listed_modules_of_a_compiled_checkout_are_compiled():
    plain = [source for source in backend.sources() if not list(ROOT.glob(source.removesuffix(".py") + ".*.so"))]
    assert plain == []


@pytest.mark.skipif(build.name() != build.COMPILED, reason="no compiled modules in this checkout; make compiled")
def test_a_source_that_was_edited_after_it_was_compiled_is_stale(tmp_path):
    package = tmp_path / "querator"
    package.mkdir()
    for number, name in enumerate(
        (f"clock{EXTENSION_SUFFIXES[0]}", "clock.py", "ids.py", f"ids{EXTENSION_SUFFIXES[0]}")
    ):
        (package / name).touch()
        os.utime(package / name, (number, number))
    assert list(build.stale_sources(package)) == []  # an installation: no pyproject.toml beside it
    (tmp_path / "pyproject.toml").touch()
    assert list(build.stale_sources(package)) == [package / "clock.py"]


def test_what_was_just_compiled_stays_in_a_full_cache(monkeypatch, tmp_path):
    """However old the files of its build are."""
    cache, checkout = tmp_path / "cache", tmp_path / "checkout"
    for number in range(backend.CACHED_MAX):
        (cache / str(number)).mkdir(parents=True)

    def compiles(target: Path) -> None:
        (target / "querator").mkdir(parents=True)
        (target / "querator" / "clock.so").touch()
        os.utime(target, (1, 1))

    (checkout / "querator").mkdir(parents=True)
    monkeypatch.setenv("QUERATOR_COMPILED_CACHE", str(cache))
    monkeypatch.setattr(backend, "ROOT", checkout)
    monkeypatch.setattr(backend, "_key", lambda: "new")
    monkeypatch.setattr(backend, "_compile", compiles)
    monkeypatch.setattr(backend, "reason_for_plain", lambda: "")
    backend.compile_in_place()
    assert (checkout / "querator" / "clock.so").is_file() and len(list(cache.iterdir())) == backend.CACHED_MAX


def test_a_checkout_takes_over_the_compiled_modules_of_a_wheel(monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "ROOT", tmp_path)
    name = f"querator/wire/json{EXTENSION_SUFFIXES[0]}"
    (tmp_path / "querator").mkdir()
    (tmp_path / "querator" / f"removed_since{EXTENSION_SUFFIXES[0]}").touch()
    with zipfile.ZipFile(tmp_path / "querator.whl", "w") as wheel:
        wheel.writestr(name, b"compiled")
        wheel.writestr("querator/wire/json.py", b"source")
    backend.copy_from(tmp_path / "querator.whl")
    files = [path.relative_to(tmp_path).as_posix() for path in (tmp_path / "querator").rglob("*") if path.is_file()]
    assert files == [name]


def test_a_wheel_that_fell_back_to_plain_python_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "ROOT", tmp_path)
    with zipfile.ZipFile(tmp_path / "querator.whl", "w") as wheel:
        wheel.writestr("querator/wire/json.py", b"source")
    with pytest.raises(SystemExit, match="has no compiled modules"):
        backend.copy_from(tmp_path / "querator.whl")
