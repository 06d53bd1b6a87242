"""How tests are arranged: in packages, with one way to start a daemon."""

from __future__ import annotations

import ast
from pathlib import Path

from tests import ROOT

MODULES = sorted((ROOT / "tests").rglob("*.py"))
STARTS_DAEMONS = {
    "tests/daemons.py": "the launcher",
    "tests/daemon/test_hangup.py": "below a terminal that the test closes",
    "tests/packaging/test_install.py": "the installed program of another environment",
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_folder_with_tests_is_a_package() -> None:
    folders = {path.parent for path in MODULES}
    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_tests_import_each_other_by_their_whole_name() -> None:
    siblings = {path.stem for path in MODULES} - {"conftest", "__init__"}
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{name(path)}: {one}" for one in names if one in siblings]
    assert found == []


def starts_a_daemon(call: ast.Call) -> bool:
    words = {node.value for node in ast.walk(call) if isinstance(node, ast.Constant)}
    return ast.unparse(call.func).endswith("Popen") and {"daemon", "run"} <= words


def test_one_module_starts_daemons() -> None:
    starting = {
        name(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and starts_a_daemon(node)
    }
    assert starting <= set(STARTS_DAEMONS) and "tests/daemons.py" in starting
