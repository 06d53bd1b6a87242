"""Settings of the daemon and of clients. Order: flag > QUERATOR_* > context > file > default.

Every value keeps its origin, so that `config show` and error messages can name it. The daemon and its clients read
the same TOML file: a command finds the daemon of its own machine without any setting. Contexts describe daemons on
other machines. They have a file of their own, because commands write that file.
"""

from __future__ import annotations

import os
import stat
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from querator import durations, limits
from querator.errors import ConfigError, NotFound, UsageError

if TYPE_CHECKING:
    from querator.config_file import AccessTable, ArchiveTable, LimitsConfig, QueueConfig, StorageTable

TOKEN_FILE_BYTES_MAX: Final = 4_096
HTTP_ADDRESS_DEFAULT: Final = "localhost:2319"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("auto", "text", "json")
ACCESS_MODES: Final = ("open", "required")
ROLES: Final = ("viewer", "producer", "consumer", "operator", "admin")
TRUE_WORDS: Final = ("1", "true", "yes", "on")
FALSE_WORDS: Final = ("0", "false", "no", "off")

Environment = Mapping[str, str]


class Setting(NamedTuple):
    """A value and its origin: `flag`, `QUERATOR_DATA`, `context prod`, the path of the file, or `default`."""

    value: Any
    origin: str


class HttpAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class StorageConfig:
    """A directory that holds partitions. New partitions are spread over storages in proportion to their affinity."""

    name: str
    directory: Path
    affinity: float = 1.0


@dataclass(frozen=True)
class TlsConfig:
    """The files for TLS on TCP. Clients may present a certificate that a CA in `client_ca` has signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class CertificateRole:
    """What a client with a certificate of this name may do."""

    name: str
    role: str
    queues: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class AccessConfig:
    required: bool = False
    """Whether TCP clients need a token even before the first one is created."""
    insecure: bool = False
    """Whether the daemon listens on TCP even without tokens or TLS, and serves clients that have no token."""
    socket_group: str = ""
    """The members of this group of the system may use the Unix socket, with the following role."""
    socket_role: str = "viewer"
    socket_queues: tuple[str, ...] = ("*",)
    certificates: tuple[CertificateRole, ...] = ()
    audit_kept_ns: int = 365 * 24 * 3_600 * limits.NS_PER_SECOND
    """Rotated files of the audit log are deleted after this time."""


@dataclass(frozen=True)
class ArchiveConfig:
    """The archive that everything is copied to. Durations are in seconds."""

    url: str
    interval: float = 1.0
    wait: bool = False
    """Whether nothing is acknowledged before the archive has it."""
    keep: float = 7 * 86_400.0
    heartbeat: float = 5.0
    takeover: float | None = None
    """A standby takes over when the owner's last heartbeat is older than this; None if it does not."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings for the object store, such as its endpoint."""


@dataclass(frozen=True)
class DaemonConfig:
    data: Path
    socket: Path
    http: HttpAddress | None
    storages: tuple[StorageConfig, ...]
    limits: LimitsConfig
    tls: TlsConfig | None = None
    access: AccessConfig = AccessConfig()
    queues: tuple[QueueConfig, ...] = ()
    log_level: str = "info"
    log_format: str = "auto"
    log_file: Path | None = None
    test_clock: bool = False
    archive: ArchiveConfig | None = None
    standby: bool = False
    """Whether the daemon only follows the archive until it is promoted."""
    claim: bool = False
    """Whether the daemon takes the archive over from another data directory."""
    start_over: bool = False
    """Whether a data directory that lacks what the archive has may become the archive's last state."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The same values by dotted name, with their origins, for `config show`."""


@dataclass(frozen=True)
class Context:
    """How to reach one daemon, and the files with the token and the certificates for it."""

    endpoint: str = ""
    socket: str = ""
    token_file: str = ""
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""


@dataclass
class Contexts:
    current: str = ""
    by_name: dict[str, Context] = field(default_factory=dict)


class ClientTls(NamedTuple):
    """The files of a client for TLS. Without a `ca_file`, the client trusts the CAs of the system."""

    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""
    """May be empty if the key is in the file of the certificate."""


SYSTEM_TLS: Final = ClientTls()


@dataclass(frozen=True)
class ClientSettings:
    address: Setting
    """`http://host:port` or `unix:/path`."""
    token_file: Setting
    """A path, `-` for standard input, or empty."""
    ca_file: Setting
    client_cert: Setting
    client_key: Setting
    context: Setting
    """The name of the context in use, or empty."""
    token_variable: str = field(default="", repr=False)
    """The token in QUERATOR_TOKEN, if that is where it comes from."""

    @property
    def tls(self) -> ClientTls:
        return ClientTls(str(self.ca_file.value), str(self.client_cert.value), str(self.client_key.value))

    def token(self) -> str:
        """The token to send; empty if none is configured."""
        if self.token_variable:
            return checked_token(self.token_variable, "QUERATOR_TOKEN")
        path = str(self.token_file.value)
        return read_token(path, self.token_file.origin) if path else ""


def read_token(path: str, origin: str) -> str:
    """The token in a file that nobody else can read; `-` is standard input. Errors never show what is in it."""
    if path == "-":
        return _token_from_stdin()
    try:
        with open(Path(path).expanduser(), encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"token file {path} can be read by others, its mode is {mode:04o} ({origin})",
                    hint=f"chmod 600 {path}",
                )
            return checked_token(file.read(TOKEN_FILE_BYTES_MAX), f"token file {path}")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"token file {path} cannot be read: {why} ({origin})", hint="querator config show") from None


@cache
def _token_from_stdin() -> str:
    """The first line of standard input. It can be read only once, and several clients may need it."""
    return checked_token(sys.stdin.readline(), "standard input")


def checked_token(text: str, origin: str) -> str:
    """A token without surrounding white space. Raises, without showing the token, if a header cannot carry it."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"there is no token in {origin}", hint="a token is one word that begins with qtr-")
    return token


# Directories


def state_directory(environ: Environment) -> Path:
    base = environ.get("XDG_STATE_HOME") or str(_home(environ) / ".local" / "state")
    return Path(base) / "querator"


def config_directory(environ: Environment) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or str(_home(environ) / ".config")) / "querator"


def contexts_path(environ: Environment | None = None) -> Path:
    return config_directory(os.environ if environ is None else environ) / "contexts.toml"


def config_path(flag: str | Path | None = None, environ: Environment | None = None) -> Setting:
    """The path of the config file. A path from a flag or a variable must exist; the default path may be missing."""
    environ = os.environ if environ is None else environ
    if flag is not None:
        return Setting(Path(flag), "flag")
    if named := environ.get("QUERATOR_CONFIG"):
        return Setting(Path(named), "QUERATOR_CONFIG")
    return Setting(config_directory(environ) / "config.toml", "default")


def _home(environ: Environment) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


# The file


def load_file(path: Setting) -> dict[str, Any]:
    """The content of the config file. Every key is known, and every value has the right type."""
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
    from querator.config_file import ConfigFile, convert

    convert(content, ConfigFile, f"config file {path.value}")
    return content


class _Resolver:
    """Looks a setting up in flags, environment and file, in that order, and keeps the origin of each value."""

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

    def path(self, name: str, variable: str, default: Path) -> Path:
        """An absolute path. A path in the file is relative to the file's directory, any other to the current one."""
        value, origin = self._find(name, variable, default)
        path = Path(value).expanduser()
        path = (self._path.absolute().parent / path if origin == str(self._path) else path).absolute()
        self.settings[name] = Setting(path, origin)
        return path

    def optional_path(self, name: str, variable: str) -> Path | None:
        return self.path(name, variable, Path()) if str(self.get(name, variable, "")) else None

    def data_and_socket(self) -> tuple[Path, Path]:
        data = self.path("data", "QUERATOR_DATA", state_directory(self._environ))
        return data, self.path("socket", "QUERATOR_SOCKET", data / "querator.sock")


# The daemon


def daemon_config(
    *,
    config: str | Path | None = None,
    data: str | Path | None = None,
    socket: str | Path | None = None,
    http: str | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    tls_client_ca: str | Path | None = None,
    log_level: str | None = None,
    log_format: str | None = None,
    log_file: str | Path | None = None,
    socket_group: str | None = None,
    insecure: bool | None = None,
    test_clock: bool = False,
    archive: str | None = None,
    standby: bool = False,
    claim: bool = False,
    start_over: bool = False,
    environ: Environment | None = None,
) -> DaemonConfig:
    """The settings of `daemon run`. An `http` of "" stands for the default address."""
    from querator.config_file import AccessTable, ConfigFile, LimitsConfig, convert

    environ = os.environ if environ is None else environ
    path = config_path(config, environ)
    file = load_file(path)
    checked = convert(file, ConfigFile, f"config file {path.value}")
    flags = {
        "data": data,
        "socket": socket,
        "http": http,
        "tls.cert": tls_cert,
        "tls.key": tls_key,
        "tls.client_ca": tls_client_ca,
        "logging.level": log_level,
        "logging.format": log_format,
        "logging.file": log_file,
        "access.socket_group": socket_group,
        "access.insecure": insecure or None,
        "archive.url": archive,
    }
    if isinstance(checked.access, str):
        file = {**file, "access": {"mode": checked.access}}
    ask = _Resolver(flags, environ, file, path.value)
    data_path, socket_path = ask.data_and_socket()
    http_address = _http(ask.get("http", "QUERATOR_HTTP", False))
    ask.settings["http"] = Setting(str(http_address or "off"), ask.settings["http"].origin)
    tls = _tls(ask)
    level = _one_of("logging.level", ask.get("logging.level", "QUERATOR_LOG_LEVEL", "info"), LOG_LEVELS)
    style = _one_of("logging.format", ask.get("logging.format", "QUERATOR_LOG_FORMAT", "auto"), LOG_FORMATS)
    log_file_path = ask.optional_path("logging.file", "QUERATOR_LOG_FILE")
    for name in LimitsConfig.__struct_fields__:
        ask.get(f"limits.{name}", "", getattr(checked.limits, name))
    return DaemonConfig(
        data=data_path,
        socket=socket_path,
        http=http_address,
        tls=tls,
        storages=_storages(checked.storages, data_path, Path(path.value).absolute().parent),
        queues=_queues(checked.queues),
        limits=checked.limits,
        access=_access(ask, AccessTable() if isinstance(checked.access, str) else checked.access),
        log_level=level,
        log_format=style,
        log_file=log_file_path,
        test_clock=test_clock,
        archive=_archive(ask, checked.archive),
        standby=standby,
        claim=claim,
        start_over=start_over,
        settings={"config": path} | ask.settings,
    )


def parse_http(text: str) -> HttpAddress:
    """Parses `HOST:PORT`, `:PORT` (every interface) or `[::1]:PORT`. Port 0 stands for any free port."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"'{text}' is not an address", hint=f"an address is HOST:PORT, such as {HTTP_ADDRESS_DEFAULT}"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"'{text}' is not an address", hint="write an IPv6 address in brackets: [::1]:2319")
    return HttpAddress(host, int(port))


def _http(value: str | bool) -> HttpAddress | None:
    if value is False or (isinstance(value, str) and value.lower() in FALSE_WORDS):
        return None
    if value is True or value == "" or value.lower() in TRUE_WORDS:
        return parse_http(HTTP_ADDRESS_DEFAULT)
    return parse_http(value)


def _tls(ask: _Resolver) -> TlsConfig | None:
    cert = ask.optional_path("tls.cert", "QUERATOR_TLS_CERT")
    key = ask.optional_path("tls.key", "QUERATOR_TLS_KEY")
    client_ca = ask.optional_path("tls.client_ca", "QUERATOR_TLS_CLIENT_CA")
    return TlsConfig(cert, key, client_ca) if cert is not None and key is not None else None


def check_tls(config: DaemonConfig) -> None:
    """Raises ConfigError if settings about TLS contradict each other. Only a daemon that starts has all of them: other
    commands read the file alone."""
    if config.tls is None and any(str(config.settings[f"tls.{name}"].value) for name in ("cert", "key", "client_ca")):
        raise ConfigError("TLS needs a certificate and its key", hint="give both: --tls-cert FILE --tls-key FILE")
    if config.tls is not None and config.http is None:
        raise ConfigError("TLS needs a TCP address", hint=f"--http HOST:PORT, such as {HTTP_ADDRESS_DEFAULT}")
    if config.access.certificates and (config.tls is None or config.tls.client_ca is None):
        raise ConfigError("'access.certificates' needs TLS and the CA of clients", hint="--tls-client-ca FILE")


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value.lower() not in allowed:
        raise ConfigError(f"'{name}' is '{value}'", hint=f"it can be {', '.join(allowed)}")
    return value.lower()


def _access(ask: _Resolver, table: AccessTable) -> AccessConfig:
    mode = _one_of("access", ask.get("access.mode", "QUERATOR_ACCESS", "open"), ACCESS_MODES)
    insecure = str(ask.get("access.insecure", "QUERATOR_INSECURE", False)).lower()
    if insecure not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ConfigError(f"'access.insecure' is '{insecure}'", hint="it can be true or false")
    names = [certificate.name for certificate in table.certificates]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two of 'access.certificates' have the name '{twice}'", hint="a name has one role")
    for certificate in table.certificates:
        _one_of(f"role of the certificate '{certificate.name}", certificate.role, ROLES)
    return AccessConfig(
        required=mode == "required",
        insecure=insecure in TRUE_WORDS,
        socket_group=str(ask.get("access.socket_group", "QUERATOR_SOCKET_GROUP", "")),
        socket_role=_one_of("access.socket_role", ask.get("access.socket_role", "", "viewer"), ROLES),
        socket_queues=table.socket_queues,
        certificates=tuple(CertificateRole(one.name, one.role, one.queues) for one in table.certificates),
        audit_kept_ns=_kept(str(ask.get("access.audit_kept", "", table.audit_kept))),
    )


def _kept(text: str) -> int:
    from querator import durations

    try:
        kept_ns = durations.parse_days(text)
    except ValueError as error:
        raise ConfigError(f"'access.audit_kept' is '{text}': {error}", hint="such as 365d") from None
    if kept_ns <= 0:
        raise ConfigError(f"'access.audit_kept' is '{text}'", hint="it must be above 0, such as 365d")
    return kept_ns


def _storages(tables: Sequence[StorageTable], data: Path, beside: Path) -> tuple[StorageConfig, ...]:
    if not tables:
        return (StorageConfig("default", data / "partitions"),)
    storages = []
    for number, table in enumerate(tables):
        name, affinity = table.name, table.affinity
        if not name or not all(c.isalnum() or c in "-_." for c in name):
            raise ConfigError(f"'storages[{number}].name' must be letters, digits, '-', '_' and '.', not '{name}'")
        if not table.directory:
            raise ConfigError(f"storage '{name}' has no directory")
        if not 0 <= affinity < float("inf"):
            raise ConfigError(f"storage '{name}' has an affinity of {affinity:g}; it cannot be negative")
        storages.append(StorageConfig(name, (beside / Path(table.directory).expanduser()).absolute(), affinity))
    for what in ("name", "directory"):
        values = [str(getattr(storage, what)) for storage in storages]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise ConfigError(f"two storages have the {what} '{twice}'")
    return tuple(storages)


def _archive(ask: _Resolver, table: ArchiveTable) -> ArchiveConfig | None:
    url = str(ask.get("archive.url", "QUERATOR_ARCHIVE", ""))
    if not url or url.lower() in FALSE_WORDS:
        return None
    if "://" not in url:
        raise ConfigError(
            f"'archive.url' is '{url}'", hint="it is a URL, such as s3://bucket/queue or file:///srv/archive"
        )
    seconds = {}
    for name in ("interval", "keep", "heartbeat", "takeover"):
        text = str(ask.get(f"archive.{name}", "", getattr(table, name)))
        if name == "takeover" and not text:
            continue
        try:
            seconds[name] = durations.parse_days(text.removeprefix("-")) / limits.NS_PER_SECOND
        except ValueError as error:
            raise ConfigError(f"'archive.{name}' is '{text}'", hint=str(error)) from None
        if seconds[name] <= 0 or text.startswith("-"):
            raise ConfigError(f"'archive.{name}' must be more than 0, not '{text}'")
    takeover = seconds.get("takeover")
    if takeover is not None and takeover < 3 * seconds["heartbeat"]:
        raise ConfigError(
            "'archive.takeover' must be at least three times 'archive.heartbeat'",
            hint="otherwise one heartbeat that comes late makes a standby take over",
        )
    return ArchiveConfig(
        url,
        takeover=takeover,
        interval=seconds["interval"],
        wait=bool(ask.get("archive.wait", "", table.wait)),
        keep=seconds["keep"],
        heartbeat=seconds["heartbeat"],
        options=table.options,
    )


def check_archive_place(config: DaemonConfig) -> None:
    """Refuses an archive in a directory that would be lost together with what it is a copy of."""
    from urllib.parse import unquote

    if config.archive is None or not config.archive.url.startswith("file://"):
        return
    place = Path(unquote(config.archive.url.removeprefix("file://"))).resolve()
    for directory in (config.data, *(storage.directory for storage in config.storages)):
        if place.is_relative_to(directory.resolve()):
            raise ConfigError(
                f"the archive {place} is inside the data directory {directory}, and would be lost with it",
                hint="put it on another disk, or into an object store",
            )


def _queues(queues: tuple[QueueConfig, ...]) -> tuple[QueueConfig, ...]:
    for number, queue in enumerate(queues):
        if not 1 <= queue.partitions <= limits.PARTITIONS_MAX:
            raise ConfigError(
                f"'queues[{number}].partitions' must be between 1 and {limits.PARTITIONS_MAX}, not {queue.partitions}"
            )
    return queues


# Clients


def client_settings(
    *,
    endpoint: str | None = None,
    socket: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    client_cert: str | None = None,
    client_key: str | None = None,
    context: str | None = None,
    config: str | Path | None = None,
    environ: Environment | None = None,
) -> ClientSettings:
    """How a command reaches its daemon. Raises NotFound for an unknown context."""
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
        ask = _Resolver({}, environ, file, path.value)
        _, local_socket = ask.data_and_socket()
        address = Setting(f"unix:{local_socket}", ask.settings["socket"].origin)
    elif address.origin != from_file:
        # A stored token is only for the daemon it was stored with. Any other address could be a stranger's.
        client = {}
        if address.origin != from_context:
            chosen = Context()

    def file_setting(name: str, flag: str | None, variable: str) -> Setting:
        levels = (
            Setting(flag, "flag"),
            Setting(environ.get(variable), variable),
            Setting(getattr(chosen, name), from_context),
            Setting(client.get(name), from_file),
        )
        return next((setting for setting in levels if setting.value), Setting("", "default"))

    token = file_setting("token_file", token_file, "QUERATOR_TOKEN_FILE")
    variable = environ.get("QUERATOR_TOKEN", "") if token.origin not in ("flag", "QUERATOR_TOKEN_FILE") else ""
    return ClientSettings(
        address,
        token_file=Setting("", "QUERATOR_TOKEN") if variable else token,
        ca_file=file_setting("ca_file", ca_file, "QUERATOR_CA_FILE"),
        client_cert=file_setting("client_cert", client_cert, "QUERATOR_CLIENT_CERT"),
        client_key=file_setting("client_key", client_key, "QUERATOR_CLIENT_KEY"),
        context=named,
        token_variable=variable,
    )


def _address(endpoint_origin: str, socket_origin: str, endpoint: str | None, socket: str | None) -> Setting | None:
    if endpoint and socket:
        where = endpoint_origin if endpoint_origin == socket_origin else f"{endpoint_origin} and {socket_origin}"
        raise UsageError(f"both an endpoint and a socket are given ({where})", hint="give one of them")
    if endpoint:
        return Setting(endpoint, endpoint_origin)
    return Setting(f"unix:{Path(socket).expanduser().absolute()}", socket_origin) if socket else None


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
            f"contexts file {path} is not TOML: {error}", hint="repair it, or remove it and add the contexts again"
        ) from None
    from querator.config_file import ClientTable, ContextsFile, convert

    contexts = convert(content, ContextsFile, str(path)).contexts
    for name, table in contexts.items():
        convert(table, ClientTable, str(path), f"contexts.{name}")
    return Contexts(content.get("current", ""), {name: Context(**table) for name, table in contexts.items()})


def save_contexts(contexts: Contexts, environ: Environment | None = None) -> None:
    """Replaces the contexts file atomically. Only its owner can read it."""
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
    """A TOML basic string. JSON escapes the same characters in the same way, except DEL."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
