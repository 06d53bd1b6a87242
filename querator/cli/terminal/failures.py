"""Turns an error into a message with a hint for the user, and an exit code for the shell."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from querator.cli.terminal.streams import Streams
from querator.errors import Interrupted, QueratorError, RetryRequest, UsageError

EXIT_CODES: Final = {
    0: "ok",
    1: "error",
    2: "usage: the command line is wrong, or a confirmation is needed (--yes)",
    3: "partly done: some of it failed, see standard error",
    4: "not found",
    5: "conflict: something else is under way, such as another reload",
    6: "daemon unreachable",
    7: "timed out",
    8: "replaced: another daemon owns the archive",
    130: "interrupted",
}
BROKEN_PIPE_EXIT_CODE: Final = 141
"""The exit code of a process that SIGPIPE ended: the reader of our output has closed the pipe."""


class Wanted(NamedTuple):
    """How to report errors. It is read from the raw words, because parsing the command line may be what failed."""

    json: bool
    quiet: bool
    debug: bool


def wanted(arguments: Sequence[str]) -> Wanted:
    json = quiet = debug = False
    previous = ""
    for word in arguments:
        if word == "--":
            break
        if previous in ("-o", "--output"):
            json = word in ("json", "ndjson")
        elif word.startswith("--output="):
            json = word.partition("=")[2] in ("json", "ndjson")
        elif word.startswith("-o") and len(word) > 2:
            json = word[2:].lstrip("=") in ("json", "ndjson")
        quiet = quiet or word in ("-q", "--quiet")
        debug = debug or word == "--debug"
        previous = word
    return Wanted(json, quiet, debug)


_DUCKDB_INTERRUPTED = "Query interrupted"
"""What DuckDB raises, as a RuntimeError, if Ctrl-C comes while it runs a query."""


def as_querator_error(error: BaseException) -> QueratorError:
    """Any exception as a QueratorError with a message for the user."""
    if isinstance(error, QueratorError):
        return error
    if isinstance(error, KeyboardInterrupt) or (type(error) is RuntimeError and str(error) == _DUCKDB_INTERRUPTED):
        return Interrupted("interrupted")
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        if error.filename is not None:
            what = f"{error.filename}: {what}"
        hint = "free some space and repeat the command" if error.errno == errno.ENOSPC else ""
        return QueratorError(what, hint=hint)
    if isinstance(error, UnicodeEncodeError):
        return UsageError(
            f"{error.object!r} is not valid UTF-8", hint="names and texts are UTF-8; payloads may be anything"
        )
    if isinstance(error, MemoryError):
        return QueratorError("out of memory")
    return QueratorError(
        f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
        hint="this is a defect; the same command with --debug shows where",
    )


def usage_error(error: Any) -> QueratorError:
    """An error of typer about the command line, as a UsageError."""
    message = " ".join(str(error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "querator"
    return UsageError(message[:1].lower() + message[1:], hint=f"{path} --help")


def report(error: QueratorError, streams: Streams, want: Wanted) -> int:
    """Print an error to standard error. Returns the exit code."""
    if want.json:
        from querator.cli.terminal.render import json_line

        fields = {"message": error.message, "exit_code": error.exit_code}
        if error.code:
            fields |= {"code": error.code, "code_text": error.code_text}
        if hint := hint_for(error):
            fields["hint"] = hint
        streams.note(json_line({"error": fields}))
        return error.exit_code
    streams.note(one_line(error.message), label="\x1b[1;31merror:\x1b[0m " if streams.error_colour else "error: ")
    if (hint := hint_for(error)) and not want.quiet:
        streams.note("")
        streams.note(f"hint: {hint}")
    return error.exit_code


def one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def hint_for(error: QueratorError) -> str:
    """The hint of the error itself, or a command that usually helps."""
    if error.hint:
        return error.hint
    subject = error.message.partition(";")[0]
    if subject == "queue does not exist":
        return "querator queues list"
    if subject.startswith("cannot listen on"):
        return "--socket PATH and --http HOST:PORT name another place"
    if subject.startswith("data directory"):
        return "--data DIR names another one"
    if subject == "dead_queue does not exist":
        return "querator queues create NAME"
    if subject == "invalid queue" and "is the dead_queue of" in error.message:
        return "--force deletes it anyway"
    if subject == "query is invalid" and "Malformed JSON" in error.message:
        return "json(…) gives null for a text that is not JSON: json(lower(text))->>'field', text->>'field'"
    if subject == "query is invalid":
        return "the tables are items, leases and scheduled; querator sql QUEUE 'describe items' shows their columns"
    if subject == "invalid storage id":
        return "querator items list QUEUE"
    if subject == "partition not available" or "no partition is available" in error.message:
        return "querator partitions list QUEUE shows why"
    if error.message.endswith("is not a valid partition"):
        return "querator partitions list QUEUE"
    if subject.startswith("this daemon is a standby"):
        return "send it to the owner with --endpoint URL; if the owner is lost: querator daemon promote, here"
    if subject == "token does not exist":
        return "querator tokens list"
    if subject.startswith("token '") and subject.endswith("already exists"):
        return "querator tokens rotate NAME gives it a new secret"
    if subject == "job does not exist":
        return "querator partitions jobs"
    if subject in ("partition is busy", "backup is already running"):
        return "querator jobs list"
    if subject == "reload failed":
        return "querator partitions offline stops the attempts to open it; repair or restore its file and reload again"
    if isinstance(error, RetryRequest):
        return "the same command may succeed later; --timeout says how long to try"
    return ""
