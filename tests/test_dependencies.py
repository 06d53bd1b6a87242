"""What we assume about libraries whose classes we subclass or whose private parts we use.

Each of them has an upper bound in pyproject.toml. Before raising a bound, run these tests with the new version: a
failure names the assumption that broke and the module that relies on it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import httptools
import pytest
import typer
import typer.core
import uvicorn
from starlette.routing import Router
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]

PROTOCOL = "querator/daemon/http/{protocol,parsing}.py"
SERVER = "querator/daemon/server.py"
TREE = "querator/cli/shell/tree.py"
ASSUMED: list[tuple[Any, str, str]] = [
    (
        HttpToolsProtocol,
        PROTOCOL,
        "connection_made connection_lost eof_received resume_writing data_received shutdown on_headers_complete on_body"
        " on_message_complete on_response_complete send_400_response _unset_keepalive_if_required timeout_keep_alive"
        " timeout_keep_alive_task server_state connections transport flow scope headers cycle parser loop",
    ),
    (RequestResponseCycle, PROTOCOL, "disconnected response_started response_complete message_event keep_alive"),
    (FlowControl, PROTOCOL, "pause_reading resume_reading read_paused write_paused"),
    (ServerState, PROTOCOL, "default_headers"),
    (httptools, PROTOCOL, "HttpRequestParser HttpParserError HttpParserUpgrade"),
    (httptools.HttpRequestParser, PROTOCOL, "feed_data get_http_version"),
    (uvicorn.Server, SERVER, "serve shutdown capture_signals should_exit force_exit"),
    (Router, "querator/daemon/http/asgi.py", "redirect_slashes default"),
    (typer, TREE, "TyperException Abort Exit BadParameter"),
    (
        typer.core.TyperGroup,
        TREE,
        "get_params format_epilog resolve_command list_commands get_command format_commands parse_args invoke main",
    ),
    (
        typer.core.TyperCommand,
        "querator/cli/shell/options.py",
        "get_params collect_usage_pieces format_options format_epilog",
    ),
]


def _assigned(kind: Any) -> set[str]:
    """Attributes that the methods of a class assign to `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


@pytest.mark.parametrize(
    ("owner", "user", "name"), [(owner, user, name) for owner, user, names in ASSUMED for name in names.split()]
)
def test_a_part_that_we_rely_on_exists(owner: Any, user: str, name: str) -> None:
    exists = hasattr(owner, name) or name in _assigned(owner)
    assert exists, f"{owner.__name__} has no {name} any more; {user} relies on it"


def test_a_parameter_of_typer_has_the_hook_of_our_converter() -> None:
    app = typer.Typer()

    @app.command()
    def command(number: int = 1) -> None: ...

    made: Any = typer.main.get_command(app)
    parameter = next(one for one in made.params if one.name == "number")
    assert parameter._runtime_param is None and parameter.type_descriptor.annotation is int, (
        "querator/cli/shell/coercion.py relies on both; without them commands import pydantic and start slowly"
    )


@pytest.mark.parametrize("library", ["httptools", "starlette", "typer", "uvicorn"])
def test_a_library_that_we_hook_into_has_an_upper_bound(library: str) -> None:
    (requirement,) = [one for one in PROJECT["dependencies"] if one.startswith(f"{library}>=")]
    assert ",<" in requirement
