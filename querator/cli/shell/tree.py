"""The command tree. A noun's module is imported when the noun is used, so that `--help` stays fast."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

from querator.cli.shell.coercion import quickened
from querator.cli.terminal import failures
from querator.cli.terminal.streams import Streams, abandon_stdout
from querator.errors import Interrupted, QueratorError, UsageError


class Noun(NamedTuple):
    module: str
    help: str


NOUNS: Final = {
    "daemon": Noun("querator.cli.daemon", "Run the daemon, show its status, and stop it."),
    "queues": Noun("querator.cli.queues", "Create, list, change and delete queues."),
    "queue": Noun("querator.cli.queue", "Produce to a queue, lease from it, complete and retry."),
    "partitions": Noun("querator.cli.partitions", "Pause, drain, reload, migrate and back up partitions."),
    "storages": Noun("querator.cli.storages", "List the directories that hold partitions, and their free space."),
    "archive": Noun("querator.cli.archive", "Look at the copy in an object store, verify, prune and restore it."),
    "jobs": Noun("querator.cli.jobs", "List maintenance jobs, wait for them, and cancel them."),
    "items": Noun("querator.cli.items", "List, inspect, redrive, delete, export and import stored items."),
    "sql": Noun("querator.cli.sql", "Query the live partitions of a queue with SQL, read-only."),
    "pipeline": Noun("querator.cli.pipeline", "Import, export, copy, redrive, report and stream items with Spark."),
    "tokens": Noun("querator.cli.tokens", "Create, list, rotate and revoke the tokens that let clients in."),
    "audit": Noun("querator.cli.audit", "Show who changed what, and who was denied."),
    "top": Noun("querator.cli.top", "Watch queues and partitions live."),
    "console": Noun("querator.cli.console", "Open the web console of the daemon in a browser."),
    "check": Noun("querator.cli.check", "Check a queue or the daemon for a monitoring system."),
    "doctor": Noun("querator.cli.doctor", "Find out what is wrong on this machine."),
    "context": Noun("querator.cli.context", "Give names to the daemons you work with, and choose one."),
    "tls": Noun("querator.cli.tls", "Make certificates for a daemon and its clients, and renew them."),
    "config": Noun("querator.cli.config", "Show the settings and where each came from."),
    "version": Noun("querator.cli.version", "Print the version and the build."),
    "completion": Noun("querator.cli.completion", "Print the completion script for a shell."),
    "help": Noun("querator.cli.help", "Show help on a command or a topic, such as exit-codes."),
}

OTHER_FORM: Final = {"queue": "queues", "queues": "queue"}

VALUED_SHARED_OPTIONS: Final = (
    "-o",
    "--output",
    "--columns",
    "--endpoint",
    "--socket",
    "--context",
    "--token-file",
    "--ca-file",
    "--client-cert",
    "--client-key",
)
SHARED_FLAGS: Final = ("-q", "--quiet", "--debug")


def hoist_shared_options(arguments: Sequence[str]) -> list[str]:
    """Move shared options behind the command: `-o json queues list` becomes `queues list -o json`."""
    rest, hoisted = list(arguments), []
    while rest:
        word = rest[0]
        if word in SHARED_FLAGS or (word.partition("=")[0] in VALUED_SHARED_OPTIONS and "=" in word):
            hoisted.append(rest.pop(0))
        elif word in VALUED_SHARED_OPTIONS and len(rest) > 1:
            hoisted += [rest.pop(0), rest.pop(0)]
        else:
            break
    if not rest:
        return list(arguments)
    end = rest.index("--") if "--" in rest else len(rest)
    return rest[:end] + hoisted + rest[end:]


class Group(TyperGroup):
    """A command with commands below it."""

    def get_params(self, ctx: Any) -> Any:
        return quickened(super().get_params(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from querator.cli.shell import examples

        super().format_epilog(ctx, formatter)
        examples.write(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown_command(args[0], self.understood(ctx), ctx.command_path)
        return super().resolve_command(ctx, args)

    def understood(self, ctx: Any) -> list[str]:
        """All commands that work here, including those that the help does not list."""
        return self.list_commands(ctx)


class RootGroup(Group):
    """All nouns, imported when they are used. Every error of a command ends here and becomes an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, noun in NOUNS.items() if _exists(noun.module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            noun = NOUNS.get(cmd_name)
            if noun is None or not _exists(noun.module):
                return None
            module = importlib.import_module(noun.module)
            command = typer.main.get_command(module.app)
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, NOUNS[name].help) for name in self.list_commands(ctx)])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoist_shared_options(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None

    def main(self, args: Sequence[str] | None = None, *_: Any, **settings: Any) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        settings |= {"prog_name": "querator", "standalone_mode": False}
        raise SystemExit(self._run(arguments, settings))

    def _run(self, arguments: list[str], settings: dict[str, Any]) -> int:
        want = failures.wanted(arguments)
        try:
            code = super().main(args=arguments, **settings)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except BrokenPipeError:
            abandon_stdout()
            return failures.BROKEN_PIPE_EXIT_CODE
        except SystemExit as error:
            # Typer exits with code 1 only if the reader of our standard output has closed the pipe.
            abandon_stdout()
            return failures.BROKEN_PIPE_EXIT_CODE if error.code == 1 else int(error.code or 0)
        except typer.TyperException as error:
            failure = failures.usage_error(error)
        except typer.Abort:
            failure = UsageError("nobody answered the question", hint="--yes answers for you")
        except (QueratorError, Exception) as error:
            if want.debug:
                import traceback

                traceback.print_exc()
            failure = failures.as_querator_error(error)
        if isinstance(failure, UsageError) and not failure.hint:
            failure.hint = f"{self._path(arguments)} --help"
        return failures.report(failure, Streams(), want)

    def _path(self, arguments: list[str]) -> str:
        """The longest part of the command line that names a command."""
        path = "querator"
        command: Any = self
        for word in hoist_shared_options(arguments):
            lookup = getattr(command, "get_command", None)
            command = lookup(None, word) if lookup else None
            if command is None:
                break
            path += f" {word}"
        return path


class NounGroup(Group):
    """A noun with its verbs. `queue` also accepts the verbs of `queues` and the other way round; no verb is in both."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or self._verbs_of_the_other_form().get(cmd_name)

    def understood(self, ctx: Any) -> list[str]:
        return [*self.list_commands(ctx), *self._verbs_of_the_other_form()]

    def _verbs_of_the_other_form(self) -> dict[str, Any]:
        other = OTHER_FORM.get(self.name or "")
        if other is None:
            return {}
        return _verbs(other)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            print(ctx.get_help(), file=sys.stderr)
            raise typer.Exit(UsageError.exit_code)
        return super().parse_args(ctx, args)


def _verbs(noun: str) -> dict[str, Any]:
    group: Any = typer.main.get_command(importlib.import_module(NOUNS[noun].module).app)
    found: dict[str, Any] = group.commands
    return found


def unknown_command(word: str, known: Sequence[str], path: str) -> UsageError:
    from difflib import get_close_matches

    if path in ("querator queue", "querator queues") and word in _verbs("partitions"):
        return UsageError(f"there is no command '{path} {word}'", hint=f"did you mean 'querator partitions {word}'?")
    close = get_close_matches(word, known, n=1)
    hint = f"did you mean '{path} {close[0]}'?" if close else f"{path} --help"
    return UsageError(f"there is no command '{path} {word}'", hint=hint)


def _exists(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


app = typer.Typer(
    cls=RootGroup,
    name="querator",
    help="Querator: a durable lease queue for operators.",
    epilog="Options such as -o json go after any command. Exit codes: querator help exit-codes.",
    add_completion=False,
    no_args_is_help=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from querator.cli.version import sentence

        print(sentence())
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def noun(help: str) -> typer.Typer:
    """A new group for the verbs of a noun."""
    group = typer.Typer(cls=NounGroup, help=help, add_completion=False, rich_markup_mode=None)
    group.callback()(lambda: None)
    return group
