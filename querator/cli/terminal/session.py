"""The session of a command: its streams, its renderer, its settings and its client."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from querator.cli.terminal.render import Format, Renderer
from querator.cli.terminal.streams import Streams
from querator.errors import UsageError

if TYPE_CHECKING:
    from querator.client import BulkClient, Client
    from querator.config import ClientSettings

DEFAULT_TIMEOUT = "30s"
QUESTION_SECONDS = 10.0


class Session:
    def __init__(
        self,
        *,
        output: Format = Format.TABLE,
        quiet: bool = False,
        columns: str | None = None,
        endpoint: str | None = None,
        socket: str | None = None,
        context: str | None = None,
        token_file: str | None = None,
        ca_file: str | None = None,
        client_cert: str | None = None,
        client_key: str | None = None,
        timeout: str | None = None,
    ) -> None:
        self.streams = Streams()
        self.format = output
        # A command such as sql has more formats than the renderer, and prints those itself.
        form = Format(output.value) if output.value in set(Format) else Format.JSON
        self.output = Renderer(self.streams, form, quiet=quiet, columns=columns)
        self.quiet = quiet
        self.timeout_given = timeout is not None
        self.timeout_seconds = duration(timeout or DEFAULT_TIMEOUT, "--timeout")
        self._has_told_standby = False
        self._connection: dict[str, Any] = {
            "endpoint": endpoint,
            "socket": socket,
            "context": context,
            "token_file": token_file,
            "ca_file": ca_file,
            "client_cert": client_cert,
            "client_key": client_key,
        }

    def prefer_socket(self, socket: str) -> None:
        """Connect to this socket, unless a flag names a daemon. Called before the settings are read."""
        if not any(self._connection[name] for name in ("endpoint", "socket", "context")):
            self._connection["socket"] = socket

    @cached_property
    def settings(self) -> ClientSettings:
        """Which daemon to connect to, and where each setting came from."""
        from querator import config

        return config.client_settings(**self._connection)

    @cached_property
    def client(self) -> Client:
        return self.make_client()

    def make_client(self, *, patient: bool = False) -> Client:
        """A client of the daemon that the settings name.

        It fails at once if the daemon does not answer, unless --timeout is given or it is `patient`.
        """
        from querator.client import Client

        settings = self.settings
        client = Client(
            str(settings.address.value),
            token=settings.token(),
            tls=settings.tls,
            timeout=self.timeout_seconds,
            patient=patient or self.timeout_given,
        )
        client.on_standby(self._tell_standby)
        return client

    def make_bulk_client(self) -> BulkClient:
        """A client of the bulk endpoints of the same daemon, for one thread."""
        from querator.client import BulkClient

        settings = self.settings
        client = BulkClient(
            str(settings.address.value), token=settings.token(), tls=settings.tls, patience=self.timeout_seconds
        )
        client.on_standby(self._tell_standby)
        return client

    def _tell_standby(self, owner: str, seconds: str) -> None:
        """Say once that a standby answered, and how far it was behind."""
        if not self._has_told_standby:
            self._has_told_standby = True
            self.note(f"answered by a standby, {seconds}s behind its owner {owner}")

    def waiting_limit(self) -> float | None:
        """The time limit of a command that waits, or None. Each request still gets at least QUESTION_SECONDS."""
        if self.client.timeout < QUESTION_SECONDS:
            self.client.timeout = QUESTION_SECONDS
            self.client.patient = False  # otherwise a request would wait for a missing daemon for longer than --timeout
        return self.timeout_seconds if self.timeout_given else None

    def done(self, text: str, record: Mapping[str, Any], *, name: str) -> None:
        """Report a change: a record if a format was chosen, otherwise a remark."""
        if self.format is Format.TABLE:
            self.note(text)
        else:
            self.output.record(record, name=name)

    @property
    def for_a_script(self) -> bool:
        """Whether the output is JSON. Then failures are part of it, and standard error has only the error object."""
        return self.output.form in (Format.JSON, Format.NDJSON)

    def note(self, text: str) -> None:
        """Print a remark to standard error, unless --quiet is given."""
        if not self.quiet:
            self.streams.note(text)


def duration(text: str, option: str) -> float:
    """The seconds of a duration as in the wire contract: 90s, 1m30s, 24h."""
    from querator import durations

    try:
        nanoseconds = durations.parse(text)
    except ValueError:
        raise UsageError(
            f"{option}: '{text}' is not a duration", hint="durations look like 900ms, 30s, 1m30s, 24h"
        ) from None
    if nanoseconds < 0:
        raise UsageError(f"{option}: '{text}' is negative")
    return nanoseconds / 1_000_000_000


def moment(text: str, option: str) -> int:
    """The microseconds since 1970 of a time in RFC 3339."""
    from querator import times

    try:
        return times.parse(text)
    except ValueError:
        raise UsageError(f"{option}: '{text}' is not a time", hint="times look like 2026-01-31T08:00:00Z") from None
