"""`querator completion`: the completion script for a shell."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from querator.cli.shell.options import SharedCommand

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Shell(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("completion", cls=SharedCommand)
def completion(shell: Annotated[Shell, typer.Argument(help="Name of the shell.")]) -> None:
    """Print the completion script for a shell.

    For bash: source <(querator completion bash). For zsh: write it to a file named _querator in a directory of $fpath.
    For fish: querator completion fish > ~/.config/fish/completions/querator.fish.
    """
    from querator.cli.shell import describe, scripts

    print(scripts.script(shell.value, describe.tree()), end="")
