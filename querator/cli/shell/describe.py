"""The command tree as plain data. Completion scripts and manual pages are made from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import typer

from querator.cli.shell.options import SHARED_PANEL

DYNAMIC: Final = {
    "QUEUE": "queues",
    "DEADQUEUE": "queues",
    "PARTITION": "partitions",
    "JOB": "jobs",
    "ID": "ids",
    "CONTEXT": "contexts",
    "STORAGE": "storages",
    "FILE": "files",
    "PATH": "files",
    "DIR": "directories",
}
"""How a value is completed, by its placeholder in the help."""


@dataclass(frozen=True)
class Parameter:
    names: tuple[str, ...]
    """`--output`, `-o`; empty for an argument."""
    metavar: str
    """The placeholder for its value in the help; empty for a flag."""
    help: str
    choices: tuple[str, ...] = ()
    default: str = ""
    required: bool = False
    repeated: bool = False
    shared: bool = False

    @property
    def kind(self) -> str:
        """How the value is completed: one of the values of DYNAMIC, or an empty text."""
        return DYNAMIC.get(self.metavar.split("|")[0], "")


@dataclass
class Command:
    path: tuple[str, ...]
    summary: str
    text: str
    usage: str
    options: list[Parameter] = field(default_factory=list)
    arguments: list[Parameter] = field(default_factory=list)
    children: list[Command] = field(default_factory=list)

    @property
    def name(self) -> str:
        return " ".join(self.path)

    def walk(self) -> Iterator[Command]:
        yield self
        for child in self.children:
            yield from child.walk()


def tree() -> Command:
    """All commands. This imports the module of every noun."""
    from querator.cli.shell.tree import app

    root: Any = typer.main.get_command(app)
    context = root.make_context("querator", [], resilient_parsing=True)
    return _describe(root, context, ())


def _describe(command: Any, context: Any, path: tuple[str, ...]) -> Command:
    text = (command.help or "").strip()
    described = Command(
        path=path,
        summary=text.split("\n\n")[0].replace("\n", " ").strip(),
        text=text,
        usage=" ".join(command.collect_usage_pieces(context)),
    )
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False):
            continue
        target = described.arguments if parameter.param_type_name == "argument" else described.options
        target.append(_parameter(parameter))
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            below = type(context)(child, info_name=name, parent=context)
            described.children.append(_describe(child, below, (*path, name)))
    return described


def _parameter(parameter: Any) -> Parameter:
    is_argument = parameter.param_type_name == "argument"
    is_flag = bool(getattr(parameter, "is_flag", False)) or "--help" in parameter.opts
    choices = tuple(str(one.value) for one in getattr(parameter.type_descriptor, "choices", None) or ())
    metavar = "" if is_flag else parameter.metavar or ("|".join(choices) if choices else parameter.name.upper())
    default = parameter.default
    shown = "" if is_flag or is_argument or default in (None, "", ()) else str(getattr(default, "value", default))
    return Parameter(
        names=() if is_argument else tuple(sorted(parameter.opts, key=lambda name: not name.startswith("--"))),
        metavar=metavar,
        help=(parameter.help or "").strip(),
        choices=choices,
        default=shown,
        required=bool(parameter.required),
        repeated=bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1,
        shared=getattr(parameter, "rich_help_panel", None) == SHARED_PANEL,
    )
