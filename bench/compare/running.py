"""Running one cell of load in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from bench.compare.load import CellResult, CellSpec

CELL_SECONDS_MAX = 60.0


def run_load(
    spec: CellSpec, environment: dict[str, str] | None = None, seconds_max: float = CELL_SECONDS_MAX
) -> CellResult:
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare.load"],
        input=msgspec.json.encode(spec),
        capture_output=True,
        timeout=seconds_max,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace")[-2000:])
    return msgspec.json.decode(done.stdout, type=CellResult)
