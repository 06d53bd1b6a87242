"""The build backend as a module. It is no part of the package, so it is loaded from its file."""

from __future__ import annotations

import importlib.util
from typing import Any

from tests import ROOT


def _loaded() -> Any:
    spec = importlib.util.spec_from_file_location("compiling", ROOT / "packaging" / "compiling.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


backend = _loaded()
sources = backend.sources


def reason_for_plain() -> str:
    return str(backend.reason_for_plain())
