"""Manual pages, one per command, made from the command tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from querator.cli.help import ENVIRONMENT, OUTPUT
from querator.cli.shell import examples
from querator.cli.shell.describe import Command, Parameter
from querator.cli.terminal.failures import EXIT_CODES

HEADER: Final = '.\\" Written by packaging/generate.py from the command tree; do not edit.'
MAIN_PAGE_TEXT: Final = (
    "Querator is a durable lease queue. Producers add items. Consumers lease items and complete or retry them. "
    "An item that is not completed in time can be leased again, and an item that keeps failing goes to a dead queue. "
    "A queue is made of partitions. An operator can pause, drain, reload, migrate, query and back them up while the "
    "queue keeps working."
)


def pages(root: Command) -> dict[str, str]:
    """The text of every page, by file name."""
    return {f"{page_name(command)}.1": page(command, root) for command in root.walk()}


def page_name(command: Command) -> str:
    return "-".join(("querator", *command.path))


def page(command: Command, root: Command) -> str:
    return "\n".join(_lines(command, root)) + "\n"


def escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def _lines(command: Command, root: Command) -> Iterator[str]:
    name = page_name(command)
    yield HEADER
    yield f'.TH {name.upper()} 1 "" "Querator" "Querator manual"'
    yield ".SH NAME"
    yield f"{escaped(name)} \\- {escaped(command.summary.rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield from _synopsis(command)
    yield ".SH DESCRIPTION"
    for paragraph in (command.text if command.path else MAIN_PAGE_TEXT).split("\n\n"):
        yield ".PP"
        yield escaped(paragraph.replace("\n", " "))
    if command.children:
        yield ".SH COMMANDS"
        for child in command.children:
            yield ".TP"
            yield f".B {escaped(' '.join(('querator', *child.path)))}"
            yield escaped(child.summary)
    yield from _parameters("ARGUMENTS", command.arguments)
    yield from _parameters("OPTIONS", [option for option in command.options if not option.shared])
    yield from _parameters("SHARED OPTIONS", [option for option in command.options if option.shared])
    if found := examples.of(command.name):
        yield ".SH EXAMPLES"
        for example in found:
            yield ".PP"
            yield ".nf"
            yield escaped(example)
            yield ".fi"
    if not command.path:
        yield from _table("OUTPUT", OUTPUT)
        yield from _table("ENVIRONMENT", ENVIRONMENT)
    if command.path[:1] == ("check",):
        yield from _table("EXIT STATUS", {"0": "ok", "1": "warning", "2": "critical", "3": "unknown"})
    else:
        yield from _table("EXIT STATUS", {str(code): text for code, text in EXIT_CODES.items()})
    yield ".SH SEE ALSO"
    related = _related(command, root)
    for other in related:
        yield f".BR {escaped(page_name(other))} (1){'' if other is related[-1] else ','}"


def _synopsis(command: Command) -> Iterator[str]:
    yield f".B {escaped(' '.join(('querator', *command.path)))}"
    yield escaped(command.usage)


def _parameters(title: str, parameters: list[Parameter]) -> Iterator[str]:
    if not parameters:
        return
    yield f".SH {title}"
    for parameter in parameters:
        yield ".TP"
        if parameter.names:
            names = ", ".join(f"\\fB{escaped(name)}\\fR" for name in parameter.names)
            yield f"{names} \\fI{escaped(parameter.metavar)}\\fR" if parameter.metavar else names
        else:
            yield f"\\fI{escaped(parameter.metavar)}\\fR"
        notes = [parameter.help] if parameter.help else []
        if parameter.choices and parameter.names:
            notes.append(f"One of {', '.join(parameter.choices)}.")
        if parameter.required and parameter.names:
            notes.append("Required.")
        if parameter.default:
            notes.append(f"The default is {parameter.default}.")
        yield escaped(" ".join(notes)) or "\\&"


def _table(title: str, entries: dict[str, str]) -> Iterator[str]:
    yield f".SH {title}"
    for name, text in entries.items():
        yield ".TP"
        yield f".B {escaped(name)}"
        yield escaped(text[:1].upper() + text[1:] + ".")


def _related(command: Command, root: Command) -> list[Command]:
    """The pages of the parent command, and of its children or siblings."""
    if not command.path:
        return command.children
    above = next(one for one in root.walk() if one.path == command.path[:-1])
    return [above, *(command.children or [one for one in above.children if one is not command])]
