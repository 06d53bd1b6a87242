"""Counts fsyncs with a small preloaded library, which is compiled here if there is a C compiler.

It works for every peer, because all of them call fsync through the C library. Its cost is too small to measure.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("count_fsync.c")


class FsyncCounter:
    """Counts the fsyncs of all processes that are started with `environment`. `works` is false without a compiler."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "fsyncs"
        self.file.write_bytes(bytes(8))
        # A peer that runs as another user must be able to write to the counter.
        self.file.chmod(0o666)
        library = directory / "count_fsync.so"
        compiler = shutil.which("cc")
        self.works = False
        if compiler is not None:
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
            self.works = subprocess.run(command, check=False, capture_output=True).returncode == 0
        self.environment = {"LD_PRELOAD": str(library), "BENCH_FSYNC_COUNT": str(self.file)} if self.works else {}


def read_count(file: Path) -> int:
    return int.from_bytes(file.read_bytes(), "little")
