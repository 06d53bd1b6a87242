"""Where every setting comes from: flag > QUERATOR_* > context > file > default, each value with its origin.

The daemon and its clients read the same TOML file, so that a command finds the daemon of its own machine without
being told. Contexts, which name daemons elsewhere, have a file of their own because commands write it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from querator import limits
from querator.errors import NotFound, QueratorError, UsageError

HTTP_ADDRESS_DEFAULT: Final = "localhost:2319"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("auto", "text", "json")
TRUE_WORDS: Final = ("1", "true", "yes", "on")
FALSE_WORDS: Final = ("0", "false", "no", "off")

Environment = Mapping[str, str]


class Setting(NamedTuple):
    """A value and who said so: `flag`, `QUERATOR_DATA`, `context prod`, the path of the file, or `default`."""

    value: Any
    origin: str


class HttpAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class StorageConfig:
    """A directory that holds partitions. Affinity is its share when partitions are placed."""

    name: str
    directory: Path
    affinity: float = 1.0


@dataclass(frozen=True)
class QueueConfig:
    """A queue that is created at start unless it exists; values as queues.create takes them."""

    name: str
    lease_timeout: str = "1m"
    expire_timeout: str = "24h"
    max_attempts: int = 0
    dead_queue: str = ""
    reference: str = ""
    partitions: int = 1
    retention: str = ""


@dataclass(frozen=True)
class LimitsConfig:
    """The bounds that an operator may move; the rest are in limits.py."""

    inbox_requests: int = limits.INBOX_REQUESTS_MAX
    ready_window_items: int = limits.READY_WINDOW_ITEMS_MAX
    ready_window_bytes: int = limits.READY_WINDOW_BYTES_MAX
    unapplied_bytes: int = limits.UNAPPLIED_BYTES_MAX
    keep_alive_seconds: int = limits.KEEP_ALIVE_SECONDS
    job_items_per_second: int = limits.JOB_ITEMS_PER_SECOND_MAX
    job_bytes_per_second: int = limits.JOB_BYTES_PER_SECOND_MAX


@dataclass(frozen=True)
class DaemonConfig:
    data: Path
    socket: Path
    http: HttpAddress | None
    storages: tuple[StorageConfig, ...]
    queues: tuple[QueueConfig, ...] = ()
    limits: LimitsConfig = LimitsConfig()
    log_level: str = "info"
    log_format: str = "auto"
    log_file: Path | None = None
    test_clock: bool = False
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The same by dotted name with origins, for `config show`."""


@dataclass(frozen=True)
class Context:
    """A named daemon: how to reach it, and the file with the token to show it."""

    endpoint: str = ""
    socket: str = ""
    token_file: str = ""


@dataclass
class Contexts:
    current: str = ""
    by_name: dict[str, Context] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientSettings:
    address: Setting
    """`http://host:port` or `unix:/path`."""
    token_file: Setting
    context: Setting
    """The name of the context in use, or empty."""

    def token(self) -> str:
        """The token to show, read at the last moment; empty if none is configured."""
        path = str(self.token_file.value)
        if not path:
            return ""
        try:
            return Path(path).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(
                f"token file {path} cannot be read: {why} ({self.token_file.origin})", hint="querator config show"
            ) from None


# Directories


def state_directory(environ: Environment) -> Path:
    base = environ.get("XDG_STATE_HOME") or str(_home(environ) / ".local" / "state")
    return Path(base) / "querator"


def config_directory(environ: Environment) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or str(_home(environ) / ".config")) / "querator"


def contexts_path(environ: Environment | None = None) -> Path:
    return config_directory(os.environ if environ is None else environ) / "contexts.toml"


def config_path(flag: str | Path | None = None, environ: Environment | None = None) -> Setting:
    """Which file is read. One that was asked for must exist; the one in the usual place may be missing."""
    environ = os.environ if environ is None else environ
    if flag is not None:
        return Setting(Path(flag), "flag")
    if named := environ.get("QUERATOR_CONFIG"):
        return Setting(Path(named), "QUERATOR_CONFIG")
    return Setting(config_directory(environ) / "config.toml", "default")


def _home(environ: Environment) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


# The file

_QUEUE_KEYS: Final = {
    "name": str,
    "lease_timeout": str,
    "expire_timeout": str,
    "max_attempts": int,
    "dead_queue": str,
    "reference": str,
    "partitions": int,
    "retention": str,
}
_SCHEMA: Final[Mapping[str, Any]] = {
    "data": str,
    "socket": str,
    "http": (str, bool),
    "logging": {"level": str, "format": str, "file": str},
    "limits": {name: int for name in LimitsConfig.__dataclass_fields__},
    "storages": [{"name": str, "directory": str, "affinity": (int, float)}],
    "queues": [_QUEUE_KEYS],
    "client": {"endpoint": str, "socket": str, "token_file": str},
}
_TYPE_NAMES: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"}


class ConfigError(QueratorError):
    """The configuration makes no sense."""


def load_file(path: Setting) -> dict[str, Any]:
    """The file's content, with every key known and every value of the right type."""
    try:
        with open(path.value, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        if path.origin == "default":
            return {}
        raise ConfigError(
            f"config file {path.value} does not exist ({path.origin})", hint="make it, or name another one"
        ) from None
    except OSError as error:
        raise ConfigError(f"config file {path.value} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path.value} is not TOML: {error}") from None
    try:
        _check(content, _SCHEMA, "")
    except ConfigError as error:
        raise ConfigError(f"config file {path.value}: {error.message}", hint=error.hint) from None
    return content


def _check(value: Any, schema: Any, where: str) -> None:
    if isinstance(schema, Mapping):
        if not isinstance(value, dict):
            raise ConfigError(f"'{where}' must be a table")
        for key, inner in value.items():
            if key not in schema:
                raise _unknown_key(key, where, schema)
            _check(inner, schema[key], f"{where}.{key}" if where else key)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise ConfigError(f"'{where}' must be a list of tables ([[{where}]])")
        for number, inner in enumerate(value):
            _check(inner, schema[0], f"{where}[{number}]")
    else:
        allowed = schema if isinstance(schema, tuple) else (schema,)
        if type(value) not in allowed:
            wanted = " or ".join(_TYPE_NAMES[one] for one in allowed)
            raise ConfigError(f"'{where}' must be {wanted}, not {value!r}")


def _unknown_key(key: str, where: str, known: Mapping[str, Any]) -> ConfigError:
    from difflib import get_close_matches

    close = get_close_matches(key, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(known)}"
    return ConfigError(f"unknown key '{where}.{key}'" if where else f"unknown key '{key}'", hint=hint)


class _Resolver:
    """Asks flag, environment and file for one value after the other, and remembers who answered."""

    def __init__(self, flags: Mapping[str, Any], environ: Environment, file: Mapping[str, Any], path: Path) -> None:
        self._flags, self._environ, self._file, self._path = flags, environ, file, path
        self.settings: dict[str, Setting] = {}

    def get(self, name: str, variable: str, default: Any) -> Any:
        self.settings[name] = setting = self._find(name, variable, default)
        return setting.value

    def _find(self, name: str, variable: str, default: Any) -> Setting:
        if self._flags.get(name) is not None:
            return Setting(self._flags[name], "flag")
        if self._environ.get(variable):
            return Setting(self._environ[variable], variable)
        found: Any = self._file
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            return Setting(found, str(self._path))
        return Setting(default, "default")


# The daemon


def daemon_config(
    *,
    config: str | Path | None = None,
    data: str | Path | None = None,
    socket: str | Path | None = None,
    http: str | None = None,
    log_level: str | None = None,
    log_format: str | None = None,
    log_file: str | Path | None = None,
    test_clock: bool = False,
    environ: Environment | None = None,
) -> DaemonConfig:
    """What `daemon run` runs with. An `http` of "" asks for the usual address."""
    environ = os.environ if environ is None else environ
    path = config_path(config, environ)
    file = load_file(path)
    beside = Path(path.value).absolute().parent
    flags = {
        "data": data,
        "socket": socket,
        "http": http,
        "logging.level": log_level,
        "logging.format": log_format,
        "logging.file": log_file,
    }
    ask = _Resolver(flags, environ, file, path.value)

    data_path = _path(ask.get("data", "QUERATOR_DATA", str(state_directory(environ))), ask.settings["data"], beside)
    socket_default = str(data_path / "querator.sock")
    socket_path = _path(ask.get("socket", "QUERATOR_SOCKET", socket_default), ask.settings["socket"], beside)
    http_address = _http(ask.get("http", "QUERATOR_HTTP", False))
    level = _one_of("logging.level", ask.get("logging.level", "QUERATOR_LOG_LEVEL", "info"), LOG_LEVELS)
    style = _one_of("logging.format", ask.get("logging.format", "QUERATOR_LOG_FORMAT", "auto"), LOG_FORMATS)
    named = ask.get("logging.file", "QUERATOR_LOG_FILE", "")
    file_path = _path(named, ask.settings["logging.file"], beside) if str(named) else None
    bounds = {name: ask.get(f"limits.{name}", "", value) for name, value in LimitsConfig().__dict__.items()}
    for name, value in bounds.items():
        if value < 1:
            raise ConfigError(f"'limits.{name}' must be at least 1, not {value}")

    ask.settings["data"] = Setting(data_path, ask.settings["data"].origin)
    ask.settings["socket"] = Setting(socket_path, ask.settings["socket"].origin)
    ask.settings["logging.file"] = Setting(file_path or "", ask.settings["logging.file"].origin)
    ask.settings["http"] = Setting(str(http_address) if http_address else "off", ask.settings["http"].origin)
    return DaemonConfig(
        data=data_path,
        socket=socket_path,
        http=http_address,
        storages=_storages(file.get("storages"), data_path, beside),
        queues=_queues(file.get("queues", ())),
        limits=LimitsConfig(**bounds),
        log_level=level,
        log_format=style,
        log_file=file_path,
        test_clock=test_clock,
        settings={"config": path, **ask.settings},
    )


def parse_http(text: str) -> HttpAddress:
    """`HOST:PORT`, `:PORT` for every interface, `[::1]:PORT`; port 0 takes any free one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"'{text}' is not an address", hint=f"an address is HOST:PORT, such as {HTTP_ADDRESS_DEFAULT}"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"'{text}' is not an address", hint="an IPv6 address stands in brackets: [::1]:2319")
    return HttpAddress(host, int(port))


def _http(value: str | bool) -> HttpAddress | None:
    if value is False or (isinstance(value, str) and value.lower() in FALSE_WORDS):
        return None
    if value is True or value == "" or value.lower() in TRUE_WORDS:
        return parse_http(HTTP_ADDRESS_DEFAULT)
    return parse_http(value)


def _path(value: str | Path, setting: Setting, beside: Path) -> Path:
    """An absolute path. One that the file says is meant from where the file is, any other from here."""
    path = Path(value).expanduser()
    if setting.origin in ("flag", "default") or setting.origin.startswith("QUERATOR_"):
        return path.absolute()
    return (beside / path).absolute()


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value.lower() not in allowed:
        raise ConfigError(f"'{name}' is '{value}'", hint=f"it can be {', '.join(allowed)}")
    return value.lower()


def _storages(given: list[dict[str, Any]] | None, data: Path, beside: Path) -> tuple[StorageConfig, ...]:
    if not given:
        return (StorageConfig("default", data / "partitions"),)
    storages = []
    for number, table in enumerate(given):
        name = table.get("name", "")
        if not name or not all(c.isalnum() or c in "-_." for c in name):
            raise ConfigError(f"'storages[{number}].name' must be letters, digits, '-', '_' and '.', not '{name}'")
        if not table.get("directory"):
            raise ConfigError(f"storage '{name}' has no directory")
        affinity = float(table.get("affinity", 1))
        if not 0 <= affinity < float("inf"):
            raise ConfigError(f"storage '{name}' has an affinity of {affinity:g}; it cannot be negative")
        directory = (beside / Path(table["directory"]).expanduser()).absolute()
        storages.append(StorageConfig(name, directory, affinity))
    for what in ("name", "directory"):
        values = [str(getattr(storage, what)) for storage in storages]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise ConfigError(f"two storages have the {what} '{twice}'")
    return tuple(storages)


def _queues(given: Sequence[dict[str, Any]]) -> tuple[QueueConfig, ...]:
    for number, table in enumerate(given):
        if not table.get("name"):
            raise ConfigError(f"'queues[{number}]' has no name")
        if not 1 <= (partitions := table.get("partitions", 1)) <= limits.PARTITIONS_MAX:
            raise ConfigError(
                f"'queues[{number}].partitions' must be between 1 and {limits.PARTITIONS_MAX}, not {partitions}"
            )
    return tuple(QueueConfig(**table) for table in given)


# Clients


def client_settings(
    *,
    endpoint: str | None = None,
    socket: str | None = None,
    token_file: str | None = None,
    context: str | None = None,
    config: str | Path | None = None,
    environ: Environment | None = None,
) -> ClientSettings:
    """How a command reaches its daemon. A missing context is NotFound; nothing else is looked at on disk but files."""
    environ = os.environ if environ is None else environ
    contexts = load_contexts(environ)
    if context:
        named = Setting(context, "flag")
    elif environ.get("QUERATOR_CONTEXT"):
        named = Setting(environ["QUERATOR_CONTEXT"], "QUERATOR_CONTEXT")
    else:
        named = Setting(contexts.current, str(contexts_path(environ)) if contexts.current else "default")
    if named.value and named.value not in contexts.by_name:
        raise NotFound(f"there is no context '{named.value}' ({named.origin})", hint="querator context list")
    chosen = contexts.by_name[named.value] if named.value else Context()

    path = config_path(config, environ)
    file = load_file(path)
    client = file.get("client", {})
    from_context, from_file = f"context {named.value}", str(path.value)
    levels = (
        ("flag", "flag", endpoint, socket),
        ("QUERATOR_ENDPOINT", "QUERATOR_SOCKET", environ.get("QUERATOR_ENDPOINT"), environ.get("QUERATOR_SOCKET")),
        (from_context, from_context, chosen.endpoint, chosen.socket),
        (from_file, from_file, client.get("endpoint"), client.get("socket")),
    )
    address = next((found for level in levels if (found := _address(*level)) is not None), None)
    if address is None:
        daemon = daemon_config(config=config, environ=environ)
        address = Setting(f"unix:{daemon.socket}", daemon.settings["socket"].origin)
    tokens = (
        Setting(token_file, "flag"),
        Setting(environ.get("QUERATOR_TOKEN_FILE"), "QUERATOR_TOKEN_FILE"),
        Setting(chosen.token_file, from_context),
        Setting(client.get("token_file"), from_file),
    )
    token = next((setting for setting in tokens if setting.value), Setting("", "default"))
    return ClientSettings(address, token, named)


def _address(endpoint_origin: str, socket_origin: str, endpoint: str | None, socket: str | None) -> Setting | None:
    if endpoint and socket:
        where = endpoint_origin if endpoint_origin == socket_origin else f"{endpoint_origin} and {socket_origin}"
        raise UsageError(f"both an endpoint and a socket are given ({where})", hint="give one of them")
    if endpoint:
        return Setting(endpoint, endpoint_origin)
    return Setting(f"unix:{Path(socket).expanduser().absolute()}", socket_origin) if socket else None


_CONTEXTS_SCHEMA: Final = {"endpoint": str, "socket": str, "token_file": str}


def load_contexts(environ: Environment | None = None) -> Contexts:
    path = contexts_path(environ)
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"contexts file {path} is not TOML: {error}", hint="mend it, or remove it and add the contexts anew"
        ) from None
    contexts = content.get("contexts", {})
    try:
        _check(content, {"current": str, "contexts": {name: _CONTEXTS_SCHEMA for name in contexts}}, "")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None
    return Contexts(content.get("current", ""), {name: Context(**table) for name, table in contexts.items()})


def save_contexts(contexts: Contexts, environ: Environment | None = None) -> None:
    """Replaces the file in one step, readable by its owner alone."""
    lines = [f"current = {_toml(contexts.current)}", ""] if contexts.current else []
    for name, context in contexts.by_name.items():
        lines.append(f"[contexts.{_toml(name)}]")
        lines += [f"{key} = {_toml(value)}" for key, value in context.__dict__.items() if value]
        lines.append("")
    path = contexts_path(environ)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join(lines))
    draft.replace(path)


def _toml(text: str) -> str:
    """A TOML basic string; JSON spells every character that needs it the same way."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
