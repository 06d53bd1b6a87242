"""Options that commands share, declared once, and the decorator that adds them to a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Concatenate, Final, ParamSpec

import typer
from typer.core import TyperCommand

from querator.cli.shell.coercion import quickened
from querator.cli.terminal.render import Format
from querator.cli.terminal.session import Session

P = ParamSpec("P")

SHARED_PANEL: Final = "Shared options"

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the queue.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what the command would do, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="Choose only items that meet this condition, such as attempts > 3."),
]
OnlyPartition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, metavar="PARTITION", help="Choose only this partition.")
]
AtMost = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Stop after this many.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Repeat the command until interrupted.")]
Interval = Annotated[str, typer.Option("--interval", metavar="DURATION", help="With --watch: time between repeats.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the work is done, at most for --timeout.")]


def _shared(annotation: Any, *declarations: str, help: str, **settings: Any) -> Any:
    return Annotated[annotation, typer.Option(*declarations, help=help, rich_help_panel=SHARED_PANEL, **settings)]


_TIMEOUT_HELP: Final = "Give up after this time (30s). If given, also wait this long for a daemon that does not answer."


@cache
def _shared_parameters(formats: type) -> dict[str, tuple[Any, Any]]:
    return {
        "output": (_shared(formats, "-o", "--output", help="Print the answer in this format."), formats("table")),
        "quiet": (
            _shared(
                bool, "-q", "--quiet", help="Print only ids if the command lists, and nothing if it changes something."
            ),
            False,
        ),
        "columns": (
            _shared(str | None, "--columns", metavar="A,B", help="Print only these fields, in this order."),
            None,
        ),
        "endpoint": (
            _shared(str | None, "--endpoint", metavar="URL", help="Connect to the daemon at this http or https URL."),
            None,
        ),
        "socket": (
            _shared(str | None, "--socket", metavar="PATH", help="Connect to the daemon at this Unix socket."),
            None,
        ),
        "context": (
            _shared(str | None, "--context", metavar="CONTEXT", help="Connect to the daemon of this context."),
            None,
        ),
        "token_file": (
            _shared(
                str | None,
                "--token-file",
                metavar="FILE",
                help="Read the token from this file, or from standard input if it is -.",
            ),
            None,
        ),
        "ca_file": (
            _shared(str | None, "--ca-file", metavar="FILE", help="Trust the CAs of this file, for https endpoints."),
            None,
        ),
        "client_cert": (
            _shared(str | None, "--client-cert", metavar="FILE", help="Show this certificate to the daemon."),
            None,
        ),
        "client_key": (
            _shared(str | None, "--client-key", metavar="FILE", help="Private key of the client certificate."),
            None,
        ),
        "timeout": (_shared(str | None, "--timeout", metavar="DURATION", help=_TIMEOUT_HELP), None),
        "debug": (_shared(bool, "--debug", help="Print a traceback if the command fails."), False),
    }


class SharedCommand(TyperCommand):
    """A command whose help lists the shared options after its own."""

    def get_params(self, ctx: Any) -> Any:
        return quickened(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "option" and parameter.required:
                pieces.append(f"{parameter.opts[0]} {parameter.metavar or parameter.name.upper()}")
            if parameter.param_type_name == "argument":
                name = parameter.metavar or parameter.name.upper()
                name = f"{name}..." if parameter.nargs == -1 else name
                pieces.append(name if parameter.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[Any]] = {"Arguments": [], "Options": [], SHARED_PANEL: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                sections["Arguments"].append(record)
            else:
                sections[getattr(parameter, "rich_help_panel", None) or "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from querator.cli.shell import examples

        super().format_epilog(ctx, formatter)
        examples.write(ctx, formatter)


def command(
    app: typer.Typer, name: str, *, formats: type = Format, **settings: Any
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[Concatenate[Session, P], None]]:
    """Make a function a command of `app`. It gets a Session made from the shared options, then its own parameters."""

    def decorate(function: Callable[Concatenate[Session, P], None]) -> Callable[Concatenate[Session, P], None]:
        shared = _shared_parameters(formats)
        signature = inspect.signature(function, eval_str=True)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in list(signature.parameters.values())[1:]
        ]
        # A command may declare a shared option itself, such as a --timeout with another default.
        names = {parameter.name for parameter in own}
        added = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for key, (annotation, default) in shared.items()
            if key not in names
        ]

        def run(**values: Any) -> None:
            values.pop("debug", None)
            chosen = {key: values.pop(key) for key in shared if key in values and key not in names}
            function(Session(**chosen), **values)  # type: ignore[call-arg]

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        run.__signature__ = inspect.Signature(own + added)  # type: ignore[attr-defined]
        run.__annotations__ = {}
        app.command(name, cls=SharedCommand, **settings)(run)
        return function

    return decorate
