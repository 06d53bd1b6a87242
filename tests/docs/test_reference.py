"""The reference pages agree with the code: the configuration, the example file, the OpenAPI file and the decisions."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from querator import config
from querator.cli.help import ENVIRONMENT
from querator.config_file import ConfigFile, FileTable
from querator.daemon.http import routes
from tests import ROOT
from tests.docs.pages import PAGES

EXAMPLE = ROOT / "packaging" / "querator.toml"
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
VARIABLES = sorted(set(re.findall(r"QUERATOR_[A-Z]+[A-Z_]*", (ROOT / "querator" / "config.py").read_text())))


def keys(table: type[FileTable] = ConfigFile, prefix: str = "") -> list[str]:
    found = []
    for name, hint in get_type_hints(table).items():
        kind = (get_args(hint) or (hint,))[0]
        is_table = isinstance(kind, type) and issubclass(kind, FileTable)
        found += keys(kind, f"{prefix}{name}.") if is_table else [f"{prefix}{name}"]
    return found


def uncommented() -> str:
    """The example file with every setting uncommented."""
    return re.sub(r"^#(?=\[|\w+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("key", keys())
def test_every_key_is_in_the_example(key: str):
    found: Any = tomllib.loads(uncommented())
    for part in key.split("."):
        found = next((one[part] for one in found if part in one), None) if isinstance(found, list) else found[part]
    assert found is not None


@pytest.mark.parametrize("key", keys())
def test_every_key_is_in_the_reference(key: str):
    noun, _, name = key.rpartition(".")
    assert f"`{key}`" in CONFIGURATION or (
        noun in ("storages", "queues", "access.certificates") and f"`{name}`" in CONFIGURATION
    )


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_is_in_the_reference(variable: str):
    assert f"`{variable}`" in CONFIGURATION
    assert variable in ENVIRONMENT


def test_the_example_states_the_defaults(tmp_path: Path):
    """Uncommenting the file changes no setting, except that it adds the example queues and storages."""
    live = tmp_path / "live.toml"
    live.write_text(uncommented())
    environ = {"HOME": str(tmp_path)}
    as_shipped = config.daemon_config(config=EXAMPLE, environ=environ)
    nothing = config.daemon_config(environ=environ)
    stated = tomllib.loads(uncommented())
    assert as_shipped.limits == nothing.limits and as_shipped.storages == nothing.storages
    assert stated["limits"] == msgspec.structs.asdict(nothing.limits)
    assert (stated["logging"]["level"], stated["logging"]["format"]) == (nothing.log_level, nothing.log_format)
    assert stated["http"] is False and nothing.http is None
    state = tmp_path / ".local" / "state" / "querator"
    assert stated["data"].replace("~", str(tmp_path)) == str(nothing.data) == str(state)
    assert stated["socket"].replace("~", str(tmp_path)) == str(nothing.socket)
    assert stated["storages"][0]["directory"].replace("~", str(tmp_path)) == str(nothing.storages[0].directory)
    assert len(config.daemon_config(config=live, environ=environ).queues) == 2


def test_the_openapi_file_has_every_call_and_no_dangling_reference():
    described = json.loads((ROOT / "docs" / "openapi.json").read_text())
    wanted = {path for path, route in routes.routes_by_path(test_clock=True).items() if not route.refusal}
    assert wanted <= set(described["paths"])
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(described)):
        found = described
        for part in reference.split("/"):
            found = found[part]
    operations = [call.get("operationId") for verbs in described["paths"].values() for call in verbs.values()]
    assert len(operations) == len(set(operations) - {None}) + operations.count(None)


def test_decisions_have_numbers():
    pages = [page for page in PAGES if page.parent.name == "adr" and page.name != "README.md"]
    numbers = [page.name[:4] for page in pages]
    assert len(numbers) == len(set(numbers)) and all(number.isdigit() for number in numbers)
    for page in pages:
        assert (ROOT / page).read_text().startswith(f"# {int(page.name[:4])}. ")


def test_prose_uses_the_words_of_the_project():
    """One word for each thing: item, dead queue, partition."""
    for page in PAGES:
        if page.name in ("benchmarks.md", "CHANGELOG.md"):
            continue  # this page uses the words of other systems
        prose = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / page).read_text(), flags=re.DOTALL)
        assert not re.search(r"\b(DLQ|dead[- ]letter queue|shards?|acks?)\b", prose), page
