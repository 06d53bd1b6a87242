"""docs/architecture.md names every module of the package, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def modules_in_the_tree() -> list[str]:
    files = (path.relative_to(ROOT) for path in (ROOT / "querator").rglob("*.py"))
    return sorted(str(path) for path in files if path.stem != "__init__" and not path.stem.endswith("_pb2"))


def modules_on_the_page() -> list[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listing = page.partition("## Folders")[2].partition("```text\n")[2].partition("```")[0]
    modules, package = [], ""
    for line in listing.splitlines():
        if line.startswith("querator/"):
            package = line.split()[0]
        else:
            modules += [f"{package}{name}.py" for name in line.split()]
    return modules


def test_the_page_names_every_module_once() -> None:
    named = Counter(modules_on_the_page())
    assert sorted(named) == modules_in_the_tree()
    assert [module for module, count in named.items() if count > 1] == []
