"""Commands import nothing slow that they do not need. bench/cli.py measures the start-up time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.daemons import Daemon

HEAVY = {"rich", "httpx", "pydantic", "duckdb", "pyarrow", "pyspark", "asyncio", "starlette", "uvicorn", "google"}

PROBE = """
import json, sys
from querator.cli.main import main
try:
    main()
except SystemExit:
    pass
sys.stderr.write(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported(*words: str) -> set[str]:
    told = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    return set(json.loads(told.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "words", [["--help"], ["queues", "--help"], ["queue", "produce", "--help"], ["help", "exit-codes"], ["version"]]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    found = imported(*words)
    assert found & HEAVY == set()
    if words == ["--help"]:
        assert "msgspec" not in found


def test_a_completion_imports_not_even_typer(daemon: Daemon) -> None:
    found = imported("__complete", "queues", "", "", "--socket", str(daemon.socket))
    assert found & (HEAVY | {"typer", "msgspec"}) == set()


def test_a_simple_command_imports_nothing_heavy(daemon: Daemon) -> None:
    assert imported("queues", "list", "--socket", str(daemon.socket)) & HEAVY == set()


def test_the_package_itself_is_light() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import querator, sys, json; print(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not {name.partition(".")[0] for name in json.loads(told.stdout)} & (HEAVY | {"typer", "msgspec"})
