"""Who may import whom. docs/architecture.md has the picture; these tests hold the code to it.

A rule belongs to a prefix of module names, and the longest prefix that fits a module decides. A module that no rule
fits fails, so a new package needs a rule before anything can go into it.
"""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "querator"
MODULES = {
    ".".join(("querator", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
    if not path.stem.endswith("_pb2")
}


def _daemon(*names: str) -> tuple[str, ...]:
    return tuple(f"querator.daemon.{name}" for name in names)


GROUND = tuple(
    f"querator.{name}" for name in ("build", "clock", "durations", "errors", "ids", "items", "limits", "texts", "times")
)
SHARED = (*GROUND, "querator.config", "querator.config_file", "querator.look", "querator.wire")
SMALL = _daemon(
    "allocators",
    "certificates",
    "exposition",
    "failpoints",
    "hangups",
    "lock",
    "logs",
    "metrics",
    "priority",
    "tls",
    "unneeded",
)
"""Parts of the daemon that know nothing of queues."""
BELOW_CALLS = (*SHARED, *SMALL, *_daemon("access", "catalog", "engine", "queue", "store"))

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(GROUND, GROUND),
    "querator.config": (*GROUND, "querator.config_file"),
    "querator.config_file": GROUND,
    "querator.look": ("querator.look",),
    "querator.wire": (*GROUND, "querator.wire"),
    "querator.client": (*SHARED, "querator.client"),
    "querator.cli": (*SHARED, "querator.cli", "querator.client", "querator.spark"),
    "querator.cli.archive": (*SHARED, "querator.cli", "querator.client", *_daemon("archive")),
    "querator.cli.daemon": (*SHARED, "querator.cli", "querator.client", *_daemon("lock", "logs", "server")),
    "querator.cli.doctor": (*SHARED, "querator.cli", "querator.client", *_daemon("archive", "lock")),
    "querator.spark": (*SHARED, "querator.client", "querator.spark"),
    **dict.fromkeys(SMALL, (*SHARED, *SMALL)),
    **dict.fromkeys(_daemon("access"), (*SHARED, *SMALL, *_daemon("access", "catalog"))),
    **dict.fromkeys(_daemon("catalog"), (*SHARED, *SMALL, *_daemon("store"))),
    **dict.fromkeys(_daemon("store"), (*SHARED, *SMALL, *_daemon("store"))),
    **dict.fromkeys(_daemon("queue"), (*SHARED, *_daemon("queue", "store"))),
    **dict.fromkeys(_daemon("engine"), (*SHARED, *SMALL, *_daemon("engine", "queue", "store"))),
    **dict.fromkeys(_daemon("health"), BELOW_CALLS),
    **dict.fromkeys(_daemon("validation"), SHARED),
    **dict.fromkeys(_daemon("storages"), (*SHARED, *_daemon("store"))),
    **dict.fromkeys(_daemon("registry"), (*BELOW_CALLS, *_daemon("storages", "validation"))),
    **dict.fromkeys(_daemon("admin"), (*BELOW_CALLS, *_daemon("admin", "registry", "validation"))),
    **dict.fromkeys(_daemon("jobs"), (*BELOW_CALLS, *_daemon("admin", "bulk", "jobs", "registry"))),
    **dict.fromkeys(_daemon("archive"), (*BELOW_CALLS, *_daemon("archive", "registry", "storages"))),
    **dict.fromkeys(_daemon("bulk"), (*BELOW_CALLS, *_daemon("bulk", "http", "registry", "validation"))),
    **dict.fromkeys(_daemon("console"), (*SHARED, *_daemon("access", "console"))),
    **dict.fromkeys(_daemon("trends"), (*BELOW_CALLS, *_daemon("registry", "trends", "validation"))),
    **dict.fromkeys(_daemon("http"), (*SHARED, *SMALL, *_daemon("access", "http", "queue"))),
    **dict.fromkeys(
        _daemon("service"),
        (*BELOW_CALLS, *_daemon("admin", "archive", "health", "jobs", "registry", "trends", "validation")),
    ),
    **dict.fromkeys(_daemon("server"), (*SHARED, "querator.daemon")),
}
CLOSED = (
    "querator.daemon.access",
    "querator.client",
    "querator.look",
    "querator.spark",
    "querator.wire",
    *_daemon("admin", "archive", "bulk", "engine", "http", "jobs", "queue", "store", "store.duck", "store.journal"),
    *_daemon("console", "trends"),
)
"""Packages of which others may import only what `__all__` names."""
OF_MODULES = ("querator.spark", "querator.wire")
"""Closed packages whose `__all__` names modules without importing them, so that a command imports only what it uses."""
SHELLS = ("querator", "querator.daemon")
"""Packages whose own `__init__` imports nothing at run time."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at the top or inside a function, except imports for the type checker."""
    for node in _run_time_nodes(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _run_time_nodes(child)


def fits(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def rule_of(module: str) -> str | None:
    return max((prefix for prefix in MAY_IMPORT if fits(module, prefix)), key=len, default=None)


def external(module: str) -> set[str]:
    return {name.split(".")[0] for name in imported(MODULES[module])}


@pytest.mark.parametrize("module", [module for module in MODULES if module not in SHELLS])
def test_a_module_imports_only_what_its_rule_allows(module: str) -> None:
    rule = rule_of(module)
    assert rule is not None, f"no rule covers {module}; add one to MAY_IMPORT"
    ours = [name for name in imported(MODULES[module]) if fits(name, "querator") and name not in SHELLS]
    assert [name for name in ours if not any(fits(name, prefix) for prefix in MAY_IMPORT[rule])] == []


@pytest.mark.parametrize("package", CLOSED)
def test_others_import_of_a_closed_package_only_what_it_offers(package: str) -> None:
    offered = set(importlib.import_module(package).__all__)
    for module, path in MODULES.items():
        if not fits(module, package):
            assert list(_private_uses(parsed(path), package, offered)) == [], module


def _private_uses(tree: ast.AST, package: str, offered: set[str]) -> Iterator[str]:
    """The names that a module uses although the package does not offer them."""
    above, _, own_name = package.rpartition(".")
    has_name = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if fits(alias.name, package))
        elif isinstance(node, ast.ImportFrom) and node.module == above:
            has_name = has_name or own_name in [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and fits(node.module, package):
            inside = node.module.removeprefix(package).removeprefix(".")
            if not inside:
                yield from (alias.name for alias in node.names if alias.name not in offered)
            elif package not in OF_MODULES or inside not in offered:
                yield node.module
    if has_name:
        uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
        yield from (node.attr for node in uses if ast.unparse(node.value) == own_name and node.attr not in offered)


@pytest.mark.parametrize(
    "code",
    [
        "import querator.wire.strict",
        "from querator.wire.strict import compile",
        "from querator.wire import strict",
        "from querator import wire\nwire.strict",
    ],
)
def test_a_use_of_a_private_module_is_noticed(code: str) -> None:
    assert len(list(_private_uses(ast.parse(code), "querator.wire", {"messages"}))) == 1


@pytest.mark.parametrize("package", OF_MODULES)
def test_a_package_that_offers_modules_has_them(package: str) -> None:
    offering = importlib.import_module(package)
    names = [name for name in offering.__all__ if f"{package}.{name}" not in MODULES]
    assert [name for name in names if not hasattr(offering, name)] == []


@pytest.mark.parametrize("package", [module for module, path in MODULES.items() if path.name == "__init__.py"])
def test_a_package_says_what_lives_in_it(package: str) -> None:
    assert ast.get_docstring(parsed(MODULES[package]))


@pytest.mark.parametrize("prefix", MAY_IMPORT)
def test_a_rule_is_about_something(prefix: str) -> None:
    assert any(fits(module, prefix) for module in MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_only_storage_and_the_catalog_speak_to_duckdb(module: str) -> None:
    allowed = fits(module, "querator.daemon.store") or module == "querator.daemon.catalog"
    assert allowed or "duckdb" not in external(module)


@pytest.mark.parametrize("module", [module for module in MODULES if fits(module, "querator.daemon.queue")])
def test_what_a_queue_decides_knows_no_threads_and_no_wall_clock(module: str) -> None:
    assert external(module).isdisjoint({"asyncio", "threading", "time", "concurrent", "duckdb"})


LAYERS = ("querator.cli", "querator.client", "querator.daemon", "querator.spark", "querator.wire")


@pytest.mark.parametrize("layer", LAYERS)
def test_no_two_modules_of_a_layer_share_a_name(layer: str) -> None:
    names = Counter(module.rpartition(".")[2] for module in MODULES if fits(module, layer))
    assert [name for name, count in names.items() if count > 1] == []


def _classes(path: Path) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef))


@pytest.mark.parametrize("layer", LAYERS)
def test_no_two_classes_of_a_layer_share_a_name(layer: str) -> None:
    found = [found for module, path in MODULES.items() if fits(module, layer) for found in _classes(path)]
    assert [name for name, count in Counter(one.name for one in found).items() if count > 1] == []


CLASS_LINES_MAX = 300


@pytest.mark.parametrize("module", MODULES)
def test_a_class_is_one_idea(module: str) -> None:
    lines = {found.name: (found.end_lineno or 0) - found.lineno + 1 for found in _classes(MODULES[module])}
    assert [f"{name}: {count} lines" for name, count in lines.items() if count > CLASS_LINES_MAX] == []


def _attributes(path: Path, class_name: str) -> set[str]:
    """The attributes that a class assigns to `self`."""
    (found,) = [found for found in _classes(path) if found.name == class_name]
    nodes = [node for node in ast.walk(found) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "self"}


QUEUE = ROOT / "daemon" / "queue"
OWNERS = {
    "contents": "Contents",
    "departing": "DepartingItems",
    "expiry": "ExpirySearch",
    "leases": "Leases",
    "logical": "Logical",
    "opening": "PartitionFiles",
    "partition": "Partition",
    "passes": "Pass",
    "remembered": "Remembered",
    "schedule": "Schedule",
    "storage_health": "StorageHealth",
    "window": "Window",
}
"""Modules of the queue package, and the class in each that keeps a part of the queue's state."""
QUEUE_STATE = {name for stem, owner in OWNERS.items() for name in _attributes(QUEUE / f"{stem}.py", owner)}
MUTATORS = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "update"}
OTHER_OWNERS = {"self", "disk", "item"}
"""Objects outside a queue that have an attribute of the same name."""


def _written(tree: ast.AST) -> Iterator[str]:
    """Attributes that are assigned, deleted, or changed in place: `x.name = …`, `x.name[…] = …`, `x.name.append(…)`."""
    for node in ast.walk(tree):
        target: ast.AST | None = None
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target = node.value if isinstance(node, ast.Subscript) else node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            target = node.func.value
        if not isinstance(target, ast.Attribute) or target.attr not in QUEUE_STATE:
            continue
        if not (isinstance(target.value, ast.Name) and target.value.id in OTHER_OWNERS):
            yield ast.unparse(target)


OUTSIDE_QUEUE = [
    module
    for module in MODULES
    if fits(module, "querator.daemon") and not any(fits(module, own) for own in _daemon("queue", "store"))
]
"""The store knows nothing of queues."""


@pytest.mark.parametrize("module", OUTSIDE_QUEUE)
def test_only_the_queue_package_changes_the_state_of_a_queue(module: str) -> None:
    assert list(_written(parsed(MODULES[module]))) == []


def test_a_logical_keeps_nothing_under_a_public_name() -> None:
    assert {name for name in _attributes(QUEUE / "logical.py", "Logical") if not name.startswith("_")} == set()


@pytest.mark.parametrize("module", OUTSIDE_QUEUE)
def test_only_the_queue_package_reads_its_private_names(module: str) -> None:
    nodes = [node for node in ast.walk(parsed(MODULES[module])) if isinstance(node, ast.Attribute)]
    private = [node for node in nodes if node.attr.startswith("_") and node.attr in QUEUE_STATE]
    assert [ast.unparse(node) for node in private if ast.unparse(node.value) != "self"] == []


@pytest.mark.parametrize(
    "code", ["p.closed_for = ''", "l.queue, a = b", "l.partitions.append(p)", "del p.by_id[x]", "p.failures += 1"]
)
def test_a_change_of_a_queue_from_outside_is_noticed(code: str) -> None:
    assert len(list(_written(ast.parse(code)))) == 1
