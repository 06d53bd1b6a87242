"""What every command has at hand: the streams, the renderer and, when it asks for it, the client."""

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
        timeout: str | None = None,
    ) -> None:
        self.streams = Streams()
        self.format = output
        # A command may know more formats than the renderer (sql); it writes those itself.
        form = Format(output.value) if output.value in set(Format) else Format.JSON
        self.output = Renderer(self.streams, form, quiet=quiet, columns=columns)
        self.quiet = quiet
        self.timeout_given = timeout is not None
        self.timeout_seconds = duration(timeout or DEFAULT_TIMEOUT, "--timeout")
        self._connection = (endpoint, socket, context, token_file)

    @cached_property
    def settings(self) -> ClientSettings:
        """Which daemon, and who said so."""
        from querator import config

        endpoint, socket, context, token_file = self._connection
        return config.client_settings(endpoint=endpoint, socket=socket, context=context, token_file=token_file)

    @cached_property
    def client(self) -> Client:
        return self.make_client()

    def make_client(self, *, patient: bool = False) -> Client:
        """A client of the daemon that the settings name.

        A command fails at once when no daemon is there, unless --timeout says how long to try.
        """
        from querator.client import Client

        settings = self.settings
        return Client(
            str(settings.address.value),
            token=settings.token(),
            timeout=self.timeout_seconds,
            patient=patient or self.timeout_given,
        )

    def make_bulk_client(self) -> BulkClient:
        """A client of the same daemon's bulk endpoints, for one thread."""
        from querator.client import BulkClient

        settings = self.settings
        return BulkClient(str(settings.address.value), token=settings.token(), patience=self.timeout_seconds)

    def waiting_limit(self) -> float | None:
        """For commands that wait: --timeout is for the waiting as a whole, and each question has time of its own."""
        if self.client.timeout < QUESTION_SECONDS:
            self.client.timeout = QUESTION_SECONDS
            self.client.patient = False  # a daemon that is away would be waited for longer than --timeout says
        return self.timeout_seconds if self.timeout_given else None

    def done(self, text: str, record: Mapping[str, Any], *, name: str) -> None:
        """A change was made: data for a script that asked for it, a remark for a person."""
        if self.format is Format.TABLE:
            self.note(text)
        else:
            self.output.record(record, name=name)

    @property
    def for_a_script(self) -> bool:
        """Whether what failed is told in a record, so that standard error has room for the error object alone."""
        return self.output.form in (Format.JSON, Format.NDJSON)

    def note(self, text: str) -> None:
        """A remark on standard error, unless silence was asked for."""
        if not self.quiet:
            self.streams.note(text)


def duration(text: str, option: str) -> float:
    """Seconds. The spelling is the wire contract's: 90s, 1m30s, 24h."""
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
    """Microseconds since 1970, from RFC 3339."""
    from querator import times

    try:
        return times.parse(text)
    except ValueError:
        raise UsageError(f"{option}: '{text}' is not a time", hint="times look like 2026-01-31T08:00:00Z") from None
