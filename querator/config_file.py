"""The tables of the TOML files, as structs: msgspec checks a file against them.

An error uses the words of the file: the name of the setting, what is wrong with it, and a hint. This module is separate
from `config`, because a completion must start without msgspec.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from querator import limits
from querator.errors import ConfigError

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]
T = TypeVar("T", bound="FileTable")


class FileTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a TOML file. Its fields are the keys that the file may have, and their types."""


class QueueConfig(FileTable, frozen=True):
    """A queue that the daemon creates at start unless it exists. The values are those of queues.create."""

    name: NotEmpty
    lease_timeout: str = "1m"
    expire_timeout: str = "24h"
    max_attempts: int = 0
    dead_queue: str = ""
    reference: str = ""
    partitions: int = 1
    retention: str = ""


class LimitsConfig(FileTable, frozen=True):
    """The bounds that an operator can change. The daemon's other bounds are in limits.py."""

    inbox_requests: Positive = limits.INBOX_REQUESTS_MAX
    ready_window_items: Positive = limits.READY_WINDOW_ITEMS_MAX
    ready_window_bytes: Positive = limits.READY_WINDOW_BYTES_MAX
    unapplied_bytes: Positive = limits.UNAPPLIED_BYTES_MAX
    keep_alive_seconds: Positive = limits.KEEP_ALIVE_SECONDS
    job_items_per_second: Positive = limits.JOB_ITEMS_PER_SECOND_MAX
    job_bytes_per_second: Positive = limits.JOB_BYTES_PER_SECOND_MAX


class StorageTable(FileTable, frozen=True):
    name: str = ""
    directory: str = ""
    affinity: float = 1.0


class LoggingTable(FileTable, frozen=True):
    level: str = ""
    format: str = ""
    file: str = ""


class TlsTable(FileTable, frozen=True):
    cert: str = ""
    key: str = ""
    client_ca: str = ""


class CertificateTable(FileTable, frozen=True):
    """What a client with a certificate of this name may do."""

    name: NotEmpty
    role: NotEmpty
    queues: tuple[NotEmpty, ...] = ("*",)


class AccessTable(FileTable, frozen=True):
    """Who may do what. Tokens are in the catalog, not here."""

    mode: str = ""
    insecure: bool = False
    socket_group: str = ""
    socket_role: str = "viewer"
    socket_queues: tuple[NotEmpty, ...] = ("*",)
    certificates: tuple[CertificateTable, ...] = ()
    audit_kept: str = "365d"


class ClientTable(FileTable, frozen=True):
    """How a client reaches a daemon: the table `[client]`, and each context."""

    endpoint: str = ""
    socket: str = ""
    token_file: str = ""
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""


class ArchiveTable(FileTable, frozen=True):
    """The copy of everything in an object store."""

    url: str = ""
    interval: str = "1s"
    wait: bool = False
    keep: str = "7d"
    heartbeat: str = "5s"
    takeover: str = ""
    options: dict[str, str] = {}


class ConfigFile(FileTable, frozen=True):
    data: str = ""
    socket: str = ""
    http: str | bool = False
    tls: TlsTable = TlsTable()
    logging: LoggingTable = LoggingTable()
    limits: LimitsConfig = LimitsConfig()
    storages: tuple[StorageTable, ...] = ()
    queues: tuple[QueueConfig, ...] = ()
    access: AccessTable | str = AccessTable()
    """A text is the short form of a table that has only a mode."""
    client: ClientTable = ClientTable()
    archive: ArchiveTable = ArchiveTable()


class ContextsFile(FileTable, frozen=True):
    current: str = ""
    contexts: dict[str, Any] = {}


_TYPE_NAMES: Final = {
    "object": "a table",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def convert(given: Any, kind: type[T], source: str, table: str = "") -> T:
    """Checks a table of the file `source`. `table` is the name of the table, empty for the whole file."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        explained = _explain(str(error), given, kind, table)
        raise ConfigError(f"{source}: {explained.message}", hint=explained.hint) from None


def _explain(error: str, given: Any, kind: type[FileTable], table: str) -> ConfigError:
    """Translates an error of msgspec, which names Python types, into the words of the TOML file."""
    what, _, place = error.partition(" - at `$")
    place = place.rstrip("`")
    name = (table + place).lstrip(".")
    value, fields = given, kind
    for key, number in re.findall(r"(\w+)|\[(\d+)\]", place):
        value = value[int(number) if number else key]
        if key:
            hint = get_type_hints(fields)[key]
            fields = (get_args(hint) or (hint,))[0]
    match what.split("`"):
        case ["Object contains unknown field ", key, _]:
            return _unknown_key(key, name, fields.__struct_fields__)
        case ["Object missing required field ", key, _]:
            return ConfigError(f"'{name}' has no {key}")
        case ["Expected ", "array", *_]:
            return ConfigError(f"'{name}' must be a list of tables ([[{name}]])")
        case ["Expected ", "object", *_]:
            return ConfigError(f"'{name}' must be a table")
        case ["Expected ", types, ", got ", *_]:
            wanted = " or ".join(_TYPE_NAMES[one] for one in types.split(" | "))
            return ConfigError(f"'{name}' must be {wanted}, not {value!r}")
        case ["Expected ", "str", " of length >= 1"]:
            return ConfigError(f"'{name}' must not be empty")
        case ["Expected ", "int", bound]:
            return ConfigError(f"'{name}' must be at least {bound.removeprefix(' >= ')}, not {value}")
    return ConfigError(f"'{name}' is wrong: {what}")


def _unknown_key(key: str, table: str, known: Sequence[str]) -> ConfigError:
    from difflib import get_close_matches

    close = get_close_matches(key, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(known)}"
    return ConfigError(f"unknown key '{table}.{key}'" if table else f"unknown key '{key}'", hint=hint)
