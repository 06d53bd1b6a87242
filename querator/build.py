"""Which build of Querator this is: one whose hot path is compiled, or one of plain Python.

packaging/compiling.py lists the modules that are compiled. A process with QUERATOR_PURE=1 in its environment runs the
plain sources of a compiled installation, which lie next to the compiled modules.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

COMPILED = "compiled"
PLAIN = "plain"


def name() -> str:
    """Looks for one of the compiled modules without loading it, because commands need none."""
    spec = importlib.util.find_spec("querator.clock")
    return PLAIN if spec is None or spec.origin is None or spec.origin.endswith(".py") else COMPILED


def stale_sources(package: Path = Path(__file__).parent) -> Iterator[Path]:
    """The sources of a checkout that were edited after they were compiled, so that the old code would run.

    An installation has none: pip gives sources and compiled modules the time at which it unpacked them.
    """
    if name() == PLAIN or not package.with_name("pyproject.toml").is_file():
        return
    for compiled in package.rglob(f"*{EXTENSION_SUFFIXES[0]}"):
        source = compiled.with_name(compiled.name.removesuffix(EXTENSION_SUFFIXES[0]) + ".py")
        if source.is_file() and source.stat().st_mtime > compiled.stat().st_mtime:
            yield source


def use_plain_modules() -> None:
    """Lets every import of our package find the source instead of the compiled module."""
    sys.meta_path.insert(0, _PlainFinder())


class _PlainFinder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("querator.") or path is None:
            return None
        for folder in path:
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname)
            if spec is not None:
                return spec
        return None
