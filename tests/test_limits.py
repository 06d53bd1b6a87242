"""Tests change a bound in `limits`: by `monkeypatch.setattr(limits, "NAME", …)`, or by `limits.NAME = …`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from querator import limits

ROOT = Path(__file__).parent.parent
BOUNDS = {name for name in vars(limits) if name.isupper()}
TESTS = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))}
CODE = {path: path.read_text() for path in sorted((ROOT / "querator").rglob("*.py"))}
DAEMON = [path for path in CODE if "daemon" in path.relative_to(ROOT / "querator").parts]
ASSIGNMENT = re.compile(r"\blimits\.([A-Z_0-9]+) = ")
PATCH = re.compile(r'setattr\(\s*(\w+),\s*"(\w+)"|setattr\(\s*"(?:\w+\.)+(\w+)"')
IMPORT = re.compile(r"from querator\.limits import (\([^)]*\)|[^\n]*)")


def patched_in(text: str) -> list[tuple[str, str]]:
    """The target and the name of each bound that a test file changes."""
    found = [(match[1] or "", match[2] or match[3]) for match in PATCH.finditer(text)]
    found += [("limits", name) for name in ASSIGNMENT.findall(text)]
    return [(target, name) for target, name in found if name in BOUNDS]


CHANGED = {name for text in TESTS.values() for target, name in patched_in(text) if target == "limits"}


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_test_changes_bounds_in_limits_only(path: Path) -> None:
    assert [(target, name) for target, name in patched_in(TESTS[path]) if target != "limits"] == []


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_bound_that_tests_change_is_read_when_it_is_used(path: Path) -> None:
    imported = {name for names in IMPORT.findall(CODE[path]) for name in re.findall(r"\w+", names)}
    assert imported & CHANGED == set(), "write limits.NAME: a test cannot change an imported copy"


def test_a_bound_that_tests_change_is_not_final() -> None:
    final = set(re.findall(r"^([A-Z_0-9]+): Final", (ROOT / "querator" / "limits.py").read_text(), re.MULTILINE))
    assert "US_PER_SECOND" in final
    assert final & CHANGED == set(), "compiled code has the number of a Final bound in place of its name"


def test_some_bounds_are_changed_by_tests() -> None:
    assert {"SEGMENTS_KEPT_MAX", "REQUEST_IDS_NEWEST_MAX"} <= CHANGED


def bounds_in(tree: ast.Module) -> list[str]:
    """The public constants of a module whose names say that they are bounds."""
    assigned = [
        node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None) for node in tree.body
    ]
    names = [target.id for target in assigned if isinstance(target, ast.Name)]
    return [name for name in names if re.fullmatch(r"[A-Z]\w*_(MAX|MIN|DEFAULT)", name)]


@pytest.mark.parametrize("path", DAEMON, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_bound_of_the_daemon_stands_in_limits(path: Path) -> None:
    assert bounds_in(ast.parse(CODE[path])) == []


def test_every_bound_is_used() -> None:
    words = {word for path, text in CODE.items() if path.name != "limits.py" for word in re.findall(r"[A-Z_\d]+", text)}
    assert BOUNDS - words - {"NS_PER_MS"} == set()
