"""The build backend: setuptools, which also compiles the modules of the hot path with mypyc.

An installation without the compiled modules is complete, only slower. So a build falls back to plain Python where there
is no C compiler, where compiling fails, or where QUERATOR_PURE=1 asks for it. An editable installation is always plain,
because edits would not reach compiled modules.

    python packaging/compiling.py            compiles into the checkout, or copies from the cache; fails if that fails
    python packaging/compiling.py WHEEL      takes the compiled modules of a wheel of the same sources instead

The cache is QUERATOR_COMPILED_CACHE, or querator/compiled in the user's cache directory. Its key is a hash of the
sources, the compilers and their versions.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
COMPILED = (
    "querator/clock.py",
    "querator/ids.py",
    "querator/times.py",
    "querator/wire/content.py",
    "querator/wire/json.py",
    "querator/wire/leased.py",
    "querator/wire/wireformat.py",
    "querator/daemon/failpoints.py",
    "querator/daemon/metrics.py",
    "querator/daemon/service.py",
    "querator/daemon/validation.py",
    "querator/daemon/access/admission.py",
    "querator/daemon/access/callers.py",
    "querator/daemon/http/chunked.py",
    "querator/daemon/http/dispatch.py",
    "querator/daemon/http/gate.py",
    "querator/daemon/http/heads.py",
    "querator/daemon/http/parsing.py",
    "querator/daemon/http/protocol.py",
    "querator/daemon/engine/backpressure.py",
    "querator/daemon/engine/disks.py",
    "querator/daemon/engine/flights.py",
    "querator/daemon/engine/turns.py",
    "querator/daemon/engine/waiting.py",
    "querator/daemon/queue/*.py",
    "querator/daemon/store/batches.py",
    "querator/daemon/store/columnar.py",
    "querator/daemon/store/delta.py",
    "querator/daemon/store/fingerprints.py",
    "querator/daemon/store/stretches.py",
    "querator/daemon/store/unapplied.py",
    "querator/daemon/store/journal/books.py",
    "querator/daemon/store/journal/records.py",
    "querator/daemon/store/journal/segments.py",
    "querator/daemon/store/journal/spares.py",
    "querator/daemon/store/journal/syscalls.py",
)
"""All modules that are compiled: the way of a request from the socket to the journal and back."""
GROUP = "querator.compiled"
"""mypyc puts all modules into one library, whose name is this and `__mypyc`. The modules' own files only load it."""
OPTIMISATION = "1"
CACHED_MAX = 4


def sources() -> list[str]:
    """The paths of the compiled modules, relative to the root. A package's `__init__` stays plain."""
    found = [path for pattern in COMPILED for path in sorted(ROOT.glob(pattern)) if path.stem != "__init__"]
    return [path.relative_to(ROOT).as_posix() for path in found]


def reason_for_plain() -> str:
    """Why this machine builds plain Python. Empty if it compiles."""
    if os.environ.get("QUERATOR_PURE", "").lower() not in ("", "0", "false", "no"):
        return "QUERATOR_PURE is set"
    if sys.implementation.name != "cpython":
        return f"mypyc does not compile for {sys.implementation.name}"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "there is no Python.h (the package python3-dev has it)"
    return ""


# What pip calls.


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """mypyc, and the libraries whose types the compiled modules use; nothing where the build is plain."""
    if reason_for_plain():
        return []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    mypyc = [one for one in project["optional-dependencies"]["dev"] if one.startswith("mypy[mypyc]")]
    return [*mypyc, *project["dependencies"]]


def build_wheel(directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    reason = reason_for_plain()
    if not reason:
        try:
            return build_meta.build_wheel(directory, config_settings, metadata_directory)
        except (Exception, SystemExit) as error:
            # mypyc prints the mistakes that it finds, and ends the process with a bare 1.
            reason = f"compiling failed: {'see the errors above' if error.args == (1,) else error}"
    print(f"note: querator is built without compiled modules: {reason}", file=sys.stderr)
    os.environ["QUERATOR_PURE"] = "1"
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # may hold some of the compiled modules
    return build_meta.build_wheel(directory, config_settings, metadata_directory)


def arguments() -> dict[str, Any]:
    """What setup.py passes to setuptools. Only the commands that compile need it, since mypyc takes a while."""
    if not {"bdist_wheel", "build_ext"} & set(sys.argv) or reason_for_plain():
        return {}
    from mypyc.build import mypycify
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        """Compiles the C files of an extension on all cores. setuptools only spreads whole extensions over them."""

        def build_extensions(self) -> None:
            one_by_one = self.compiler.compile

            def compile_all(files: list[str], **options: Any) -> list[str]:
                with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                    made = pool.map(lambda file: one_by_one([file], **options), files)
                    return [name for names in made for name in names]

            self.compiler.compile = compile_all
            super().build_extensions()

    modules = mypycify(
        ["--ignore-missing-imports", *sources()],  # of optional libraries, which plain modules import
        opt_level=OPTIMISATION,
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
        target_dir="build/c",
    )
    for module in modules:
        module.include_dirs.append("build/c/querator")  # where mypyc puts the headers of GROUP, but does not look
    return {"ext_modules": modules, "cmdclass": {"build_ext": ParallelBuild}}


# What `make compiled` calls.


def compile_in_place() -> None:
    if reason := reason_for_plain():
        raise SystemExit(f"error: cannot compile: {reason}")
    remove()
    cache = _cache() / _key()
    if not cache.is_dir():
        started = time.monotonic()
        _compile(cache)
        print(f"compiled {len(sources())} modules in {time.monotonic() - started:.0f} s", file=sys.stderr)
    cache.touch()  # an entry has the times of build/ until then, and would be removed as the oldest
    _trim(cache.parent)
    shutil.copytree(cache / "querator", ROOT / "querator", dirs_exist_ok=True, copy_function=shutil.copy)


def copy_from(wheel: Path) -> None:
    """Puts the compiled modules of a wheel into the checkout, so that tests run on what the wheel installs."""
    remove()
    with zipfile.ZipFile(wheel) as file:
        compiled = [name for name in file.namelist() if name.endswith(".so")]
        if not compiled:
            raise SystemExit(f"error: {wheel} has no compiled modules; 'pip wheel --verbose .' tells why")
        file.extractall(ROOT, compiled)


def remove() -> None:
    """Removes compiled modules from the checkout."""
    for path in _libraries(ROOT / "querator"):
        path.unlink()


def _libraries(directory: Path) -> Iterator[Path]:
    return directory.rglob("*" + sysconfig.get_config_var("EXT_SUFFIX"))


def _compile(target: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "build/compiled"]
    subprocess.run(command, cwd=ROOT, check=True)
    made = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copytree(ROOT / "build" / "compiled", made)
    made.rename(target)


def _cache() -> Path:
    if own := os.environ.get("QUERATOR_COMPILED_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "querator" / "compiled"


def _key() -> str:
    """A hash of everything that the compiled modules are made from."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    version = subprocess.run([*compiler, "--version"], capture_output=True).stdout
    packages = sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions())
    parts = [version, sys.version.encode(), os.environ.get("CFLAGS", "").encode(), "\n".join(packages).encode()]
    for path in [Path(__file__), ROOT / "setup.py", *sorted((ROOT / "querator").rglob("*.py"))]:
        parts += [path.relative_to(ROOT).as_posix().encode(), path.read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _trim(cache: Path) -> None:
    oldest_first = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in oldest_first[:-CACHED_MAX]:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        copy_from(Path(sys.argv[1]))
    else:
        compile_in_place()
