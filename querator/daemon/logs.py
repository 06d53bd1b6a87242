"""The daemon's log: lines for a person at a terminal, JSON objects for everything else; to a stream or to a file.

Callers use the standard library's logging. They pass what a record is about in `extra` (`queue`, `partition`,
`item_id`, ...). The line shows it as fields, so that nobody has to parse a sentence.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec

from querator.errors import QueratorError
from querator.limits import RECENT_WARNINGS_MAX, US_PER_SECOND
from querator.texts import visible, visible_json

_RECORD_ATTRIBUTES: Final = frozenset(
    logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys() | {"message", "asctime", "taskName", "color_message"}
)
_COLOURS: Final = {"DEBUG": "\x1b[2m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}
_DIM: Final = "\x1b[2m"
_RESET: Final = "\x1b[0m"


DEATHS: Final = "querator.deaths"
NO_DETAILS: Final[Mapping[str, Any]] = {}
_log: Final = logging.getLogger("querator.daemon")
_changes: Final = logging.getLogger("querator.changes")


def changed(what: str, queue: str, partitions: Iterable[int] = (), details: Mapping[str, Any] = NO_DETAILS) -> None:
    """Logs a change by an operator: what was done, in which queue and partitions, and the details that are not empty.
    Call it once the change is durable."""
    described = {"queue": queue, "partitions": ",".join(map(str, partitions)), **details}
    _changes.info(what, extra={name: value for name, value in described.items() if value != ""})


class LogFile(logging.FileHandler):
    """Appends to a file that can be reopened after it was renamed."""

    def reopen(self) -> None:
        """Raises OSError if the file cannot be opened. Logging then continues into the old file."""
        old = self.setStream(self._open())
        if old is not None:
            with contextlib.suppress(OSError):
                old.close()


class LoggedWarning(NamedTuple):
    at_us: int
    level: str
    message: str
    fields: Mapping[str, str]


class RecentWarnings(logging.Handler):
    """Keeps the last warnings and errors, so that the daemon can show them. Deaths of items are left out: there can be
    thousands of them, and each dead item has its own history.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[LoggedWarning] = deque(maxlen=RECENT_WARNINGS_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != DEATHS:
            texts = {name: str(value) for name, value in fields(record).items()}
            at_us = round(record.created * US_PER_SECOND)
            self._kept.append(LoggedWarning(at_us, record.levelname.lower(), record.getMessage(), texts))

    def latest(self) -> list[LoggedWarning]:
        """The latest warnings first. This takes a copy, because other threads log at the same time."""
        return list(reversed(list(self._kept)))


recent_warnings: Final = RecentWarnings()


def configure(level: str, style: str = "auto", stream: IO[str] | None = None, file: Path | None = None) -> None:
    """Sends all log records of the process to one file or stream. `auto` chooses text for a terminal, else JSON."""
    stream = sys.stderr if stream is None else stream
    is_terminal = file is None and stream.isatty()
    formatter: logging.Formatter
    if style == "text" or (style == "auto" and is_terminal):
        formatter = TextFormatter(colour=is_terminal and not os.environ.get("NO_COLOR"))
    else:
        formatter = JsonFormatter()
    try:
        handler = logging.StreamHandler(stream) if file is None else LogFile(file, encoding="utf-8")
    except OSError as error:
        raise QueratorError(
            f"log file {file} cannot be opened: {error.strerror}",
            hint="its directory must exist, and be yours to write",
        ) from None
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler, recent_warnings], force=True)
    logging.captureWarnings(True)
    # We log starts, stops and failures ourselves, so only warnings of uvicorn and asyncio are shown.
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def reopen() -> None:
    """Reopens the log file after it was renamed, and logs the outcome."""
    file = next((handler for handler in logging.getLogger().handlers if isinstance(handler, LogFile)), None)
    if file is None:
        _log.info("SIGHUP: there is no log file to reopen")
        return
    try:
        file.reopen()
        _log.info("log file reopened", extra={"file": file.baseFilename})
    except OSError as error:
        _log.error("log file cannot be reopened", extra={"file": file.baseFilename, "reason": str(error)})


def fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields that `extra` added to a record."""
    return {name: value for name, value in record.__dict__.items() if name not in _RECORD_ATTRIBUTES}


def _time(record: logging.LogRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC)


class JsonFormatter(logging.Formatter):
    """One JSON object per line. Our own names win over extra fields of the same name."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in fields(record).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return visible_json(msgspec.json.encode(line, enc_hook=str).decode())


class TextFormatter(logging.Formatter):
    """Time, level and message, then the fields as name=value."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._has_colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = _time(record).astimezone().isoformat(timespec="seconds")
        level = f"{record.levelname.lower():<7}"
        details = " ".join(f"{name}={_readable(value)}" for name, value in fields(record).items())
        if self._has_colour:
            colour = _COLOURS.get(record.levelname, "")
            level = f"{colour}{level}{_RESET}" if colour else level
            time = f"{_DIM}{time}{_RESET}"
            details = f"{_DIM}{details}{_RESET}" if details else ""
        line = f"{time} {level} {visible(record.getMessage())}"
        if details:
            line += f"  {details}"
        if record.exc_info:
            line += "".join(f"\n{visible(one)}" for one in self.formatException(record.exc_info).splitlines())
        return line


def _readable(value: Any) -> str:
    """Quotes a value unless it is one plain word, so that it cannot look like another field."""
    text = str(value)
    if text and text.isprintable() and not any(c in text for c in " =\"'"):
        return text
    return visible_json(msgspec.json.encode(text).decode())
