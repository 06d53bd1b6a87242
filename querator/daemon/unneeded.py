"""Keeps numpy and pandas out of the daemon, which uses neither.

pyarrow imports both if they are installed, as they are beside Spark, and works without them. They would take 50 MB and
a third of the time that the daemon takes to start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Final

NAMES: Final = frozenset({"numpy", "pandas"})


class _Absent(MetaPathFinder):
    """Answers every import of an unneeded package as if the package were not installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in NAMES:
            raise ModuleNotFoundError(f"{fullname} is not used here", name=fullname)


@contextmanager
def kept_out() -> Iterator[None]:
    """Within this block, importing an unneeded package fails."""
    finder = _Absent()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
