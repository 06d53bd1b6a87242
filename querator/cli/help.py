"""`querator help`: help on a command or a topic."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from querator.cli.shell.options import SharedCommand
from querator.cli.shell.tree import unknown_command
from querator.cli.terminal.failures import EXIT_CODES

app = typer.Typer(add_completion=False, rich_markup_mode=None)

TOPICS: Final = {
    "exit-codes": "What the exit codes mean.",
    "environment": "Environment variables that commands read.",
    "output": "Output formats.",
}
ENVIRONMENT: Final = {
    "QUERATOR_ENDPOINT": "the daemon, as http://host:port or https://host:port",
    "QUERATOR_SOCKET": "the daemon, by its Unix socket",
    "QUERATOR_CONTEXT": "the daemon, by the name of a context",
    "QUERATOR_CA_FILE": "file with the CAs to trust, for https endpoints",
    "QUERATOR_CLIENT_CERT": "file with the certificate of this client",
    "QUERATOR_CLIENT_KEY": "file with the private key of that certificate",
    "QUERATOR_TOKEN_FILE": "file that holds the token",
    "QUERATOR_TOKEN": "the token itself",
    "QUERATOR_CONFIG": "config file (TOML)",
    "QUERATOR_DATA": "data directory of the daemon",
    "QUERATOR_ARCHIVE": "the archive, as s3://bucket/path or file:///path",
    "QUERATOR_HTTP": "address of the daemon on TCP",
    "QUERATOR_TLS_CERT": "daemon: certificate for TLS on TCP",
    "QUERATOR_TLS_KEY": "daemon: private key of that certificate",
    "QUERATOR_TLS_CLIENT_CA": "daemon: CAs whose client certificates it accepts",
    "QUERATOR_ACCESS": "required: TCP clients need a token even before the first one is created",
    "QUERATOR_INSECURE": "if true, the daemon listens on TCP without tokens or TLS",
    "QUERATOR_SOCKET_GROUP": "the group whose members may use the daemon's Unix socket",
    "QUERATOR_LOG_LEVEL": "what the daemon logs: debug, info, warning or error",
    "QUERATOR_LOG_FORMAT": "how the daemon logs: text, json or auto",
    "QUERATOR_LOG_FILE": "the file that the daemon logs to",
    "QUERATOR_NO_PROGRESS": "if set, commands show no progress",
    "NO_COLOR": "if set, commands use no colour",
}
OUTPUT: Final = {
    "-o table": "a table; on a terminal with boxes, colour and relative times, in a pipe never cut",
    "-o json": "one JSON document; errors are an object on standard error",
    "-o ndjson": "one JSON document per line, printed as soon as it is known",
    "-o csv": "only for querator sql; in a pipe it keeps control characters, so that programs read values unchanged",
    "-o name": "only names or ids",
    "-q": "a command that lists prints only ids, and a command that changes something or waits prints only errors",
    "--columns a,b": "only these fields, in this order",
}


def topic_text(topic: str) -> str:
    entries: dict[str, str] = {
        "exit-codes": {str(code): text for code, text in EXIT_CODES.items()},
        "environment": ENVIRONMENT,
        "output": OUTPUT,
    }[topic]
    width = max(map(len, entries))
    return "".join(f"  {name:<{width}}  {text}\n" for name, text in entries.items())


@app.command("help", cls=SharedCommand)
def help_(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="COMMAND|TOPIC", show_default=False)] = None,
) -> None:
    """Show help on a command or a topic, such as exit-codes."""
    words = words or []
    if len(words) == 1 and words[0] in TOPICS:
        print(f"{TOPICS[words[0]]}\n\n{topic_text(words[0])}", end="")
        return
    parent: Any = context.parent
    command, current = parent.command, parent
    for word in words:
        lookup = getattr(command, "get_command", None)
        found = lookup(current, word) if lookup else None
        if found is None:
            known = command.list_commands(current) if lookup else []
            raise unknown_command(word, [*known, *TOPICS], current.command_path)
        current = type(current)(found, info_name=word, parent=current)
        command = found
    print(command.get_help(current))
    if not words:
        print("\nTopics:")
        for topic, text in TOPICS.items():
            print(f"  querator help {topic:<12} {text}")
