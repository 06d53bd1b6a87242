"""Every help text and manual page has an example, and every example is an existing command."""

from __future__ import annotations

import re
import shlex

import pytest

from querator.cli.shell import describe, manpages
from querator.cli.shell.examples import EXAMPLES
from tests.cli.command_line import CommandLine

TREE = describe.tree()
COMMANDS = {command.name: command for command in TREE.walk()}


@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name or "querator")
def test_every_help_and_every_manual_page_has_an_example(lonely: CommandLine, name: str) -> None:
    shown = " ".join(lonely.ok(*name.split(), "--help").split())
    assert re.search(rf"\bExamples?: .*querator {name}".rstrip(), shown)
    page = manpages.page(COMMANDS[name], TREE).replace("\\-", "-")
    assert re.search(rf"(^\.SH EXAMPLES$|Example:)(.|\n)*querator {name}".rstrip(), page, re.MULTILINE)


@pytest.mark.parametrize(("name", "example"), [(name, one) for name, some in EXAMPLES.items() for one in some])
def test_an_example_is_of_its_command_and_names_options_that_exist(name: str, example: str) -> None:
    typed = shlex.split(example[example.index("querator") :].rstrip(")"))
    assert typed[1 : 1 + len(name.split())] == name.split()
    words = typed[1:]
    command = max(
        (one for one in COMMANDS.values() if list(one.path) == words[: len(one.path)]), key=lambda c: len(c.path)
    )
    known = {option for parameter in command.options for option in parameter.names}
    assert {word for word in words if word.startswith("-")} <= known
    given = [word for word in words[len(command.path) :] if not word.startswith("-")]
    assert len(given) >= sum(argument.required for argument in command.arguments)


def test_a_queue_s_verbs_have_their_examples_under_both_nouns(lonely: CommandLine) -> None:
    assert "querator queues list" in lonely.ok("queue", "list", "--help")
