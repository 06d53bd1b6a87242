"""The picture of who may import whom, held true: see docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "querator"
GROUND = {"clock", "durations", "errors", "ids", "items", "limits", "texts", "times"}
MODULES = {
    ".".join(("querator", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
    if not path.stem.endswith("_pb2")
}


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, at the top or inside a function; not those for the type checker."""
    for node in _run_time_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _run_time_nodes(child)


def ours(path: Path) -> set[str]:
    return {name for name in imported(path) if name.split(".")[0] == "querator"}


def part(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) in GROUND])
def test_the_ground_stands_on_itself(module):
    assert {part(name) for name in ours(MODULES[module])} <= GROUND | {""}


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) == "wire"])
def test_the_wire_knows_neither_end(module):
    assert {part(name) for name in ours(MODULES[module])} <= GROUND | {"wire", ""}


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) in ("cli", "spark") and m != "querator.cli.daemon"])
def test_commands_and_spark_never_reach_into_the_daemon(module):
    reached = {name for name in ours(MODULES[module]) if part(name) == "daemon"}
    if module == "querator.cli.doctor":  # looks at a daemon's directory from outside, its LOCK file included
        reached -= {"querator.daemon.lock", "querator.daemon.lock.holder"}
    assert not reached


@pytest.mark.parametrize("module", [m for m in MODULES if part(m) == "daemon"])
def test_the_daemon_calls_nobody_above_it(module):
    assert {part(name) for name in ours(MODULES[module])}.isdisjoint({"cli", "client", "spark"})


@pytest.mark.parametrize("module", list(MODULES))
def test_only_storage_and_the_catalog_speak_to_duckdb(module):
    allowed = module.startswith("querator.daemon.store.") or module == "querator.daemon.catalog"
    assert allowed or "duckdb" not in {name.split(".")[0] for name in imported(MODULES[module])}


@pytest.mark.parametrize(
    "module", ["logical", "partition", "holding", "arrivals", "timers", "lifecycle", "distribution"]
)
def test_planning_knows_no_threads_and_no_clock_of_the_wall(module):
    path = MODULES[f"querator.daemon.{module}"]
    assert {name.split(".")[0] for name in imported(path)}.isdisjoint({"asyncio", "threading", "time", "concurrent"})
