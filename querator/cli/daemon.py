"""`querator daemon`: run the daemon in the foreground, show its status, and stop it.

Only `run` imports the daemon itself. `status` and `stop` read the LOCK file of the data directory, which is right even
if the daemon does not answer.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from querator.cli.lookups.health import archive_lag, certificate_days
from querator.cli.shell.options import SharedCommand, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.render import Moment, short_duration
from querator.cli.terminal.session import Session
from querator.errors import QueratorError, TimedOut, Unreachable, UsageError
from querator.limits import NS_PER_US, SHUTDOWN_SECONDS_MAX, US_PER_SECOND

if TYPE_CHECKING:
    from querator.client import Client
    from querator.daemon.lock import Holder

app = noun(NOUNS["daemon"].help)

POLL_SECONDS: Final = 0.05
STATUS_TIMEOUT_SECONDS: Final = 5.0
START_SECONDS: Final = 10.0
"""A promotion waits this long for a daemon that was started a moment ago."""
CLOCKS_SECONDS: Final = 20.0
"""A promotion waits this long until the standby has seen two heartbeats of the owner. By default they are 5 s apart."""

Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Read the settings from this TOML file.")]
Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Keep all data in this directory.")]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help="Log from this level on: debug, info, warning or error."),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format", metavar="FORMAT", help="Log as text, as json, or auto: text on a terminal and else json."
    ),
]
LogFile = Annotated[
    Path | None, typer.Option("--log-file", metavar="FILE", help="Write the log to this file. SIGHUP opens it again.")
]


def with_http_value(arguments: Sequence[str]) -> list[str]:
    """Allow `--http` without a value for the default address, because typer has no optional values."""
    found = list(arguments)
    for index, word in enumerate(found):
        if word == "--http" and (index + 1 == len(found) or found[index + 1].startswith("-")):
            found[index] = "--http="
    return found


class RunCommand(SharedCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_http_value(args))


@app.command("run", cls=RunCommand)
def run(
    config: Config = None,
    data: Data = None,
    socket: Annotated[Path | None, typer.Option("--socket", metavar="PATH", help="Listen on this Unix socket.")] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="[HOST:PORT]", help="Listen on TCP too, at localhost:2319 if no address is given."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="FILE", help="Use TLS on TCP, with this certificate and its chain."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of the TLS certificate.")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", metavar="FILE", help="Accept client certificates that these CAs have signed."),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    log_file: LogFile = None,
    socket_group: Annotated[
        str | None,
        typer.Option(
            "--socket-group", metavar="GROUP", help="Let the members of this group use the Unix socket, as viewers."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen on TCP without tokens or TLS, and serve everybody.")
    ] = False,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive", metavar="URL", help="Copy everything to this object store, such as s3://bucket/queue."
        ),
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Only follow the archive, until `querator daemon promote`.")
    ] = False,
    claim: Annotated[bool, typer.Option("--claim", help="Take the archive over from the daemon that owns it.")] = False,
    start_over: Annotated[
        bool,
        typer.Option(
            "--start-over", help="Let this directory replace the last state of the archive, although it lacks that."
        ),
    ] = False,
    test_clock: Annotated[
        bool, typer.Option("--test-clock", help="For tests: use a clock that only /v1/clock.advance moves.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print a traceback if the command fails.")] = False,
) -> None:
    """Run the daemon until SIGTERM or Ctrl-C. The log goes to standard error, or to --log-file.

    SIGHUP opens the log file again, for logrotate, and reads the TLS files again. A daemon in the foreground of a
    terminal ends when the terminal is closed. In the background, under nohup or under systemd it keeps running.
    """
    from querator.config import daemon_config
    from querator.daemon import server

    server.run(
        daemon_config(
            config=config,
            data=data,
            socket=socket,
            http=http,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            log_level=log_level,
            log_format=log_format,
            log_file=log_file,
            socket_group=socket_group,
            insecure=insecure,
            test_clock=test_clock,
            archive=archive,
            standby=standby,
            claim=claim,
            start_over=start_over,
        )
    )


@command(app, "status")
def status(session: Session, config: Config = None, data: Data = None) -> None:
    """Show the daemon that runs on the data directory. The exit code is 6 if there is none.

    If --socket, --endpoint or a context names a daemon, that daemon is shown, even if it is on another machine.
    """
    from querator.cli.queues import all_queues
    from querator.client import Client
    from querator.daemon.lock import holder

    directory = data_directory(config, data)
    found = holder(directory)
    if config is None and data is None and not _is_meant(session, found):
        _status_elsewhere(session)
        return
    if found is None:
        raise Unreachable(f"no daemon runs on {directory}", hint="querator daemon run")
    uptime_seconds = max(0, time.time_ns() // NS_PER_US - found.started_at) // US_PER_SECOND if found.started_at else 0
    health: dict[str, Any] = {}
    queues: int | None = None
    if found.socket:
        timeout = session.timeout_seconds if session.timeout_given else STATUS_TIMEOUT_SECONDS
        with Client(f"unix:{found.socket}", timeout=timeout, patient=False) as client:
            try:
                health = client.health()
                queues = sum(1 for _ in all_queues(client))
            except QueratorError as error:
                session.note(f"the daemon does not answer properly: {error.message}")
    session.output.record(
        {
            "pid": found.pid,
            "version": found.version,
            "build": health.get("releaseId"),
            "health": health.get("status"),
            "uptime": short_duration(uptime_seconds),
            "started_at": Moment(found.started_at),
            "data": str(directory),
            "socket": found.socket,
            "http": ",".join(found.http),
            **_archive(health),
            "certificate_days": certificate_days(health),
            "insecure": found.insecure,
            "queues": queues,
        },
        name="pid",
    )


def _archive(health: dict[str, Any]) -> dict[str, Any]:
    """What a daemon says about its archive, and how far a copy is behind, for programs."""
    lag = archive_lag(health)
    return {
        "archive": "; ".join(health.get("archive", [])) or None,
        "lag_seconds": lag.seconds if lag else None,
        "lag_objects": lag.objects if lag and lag.role == "standby" else None,
    }


def _is_meant(session: Session, found: Holder | None) -> bool:
    """Whether flags, variables or a context name the daemon on this data directory, or no daemon at all."""
    address = session.settings.address
    return address.origin == "default" or (found is not None and address.value == f"unix:{found.socket}")


def _status_elsewhere(session: Session) -> None:
    """Show a daemon by its answers alone, because its LOCK file may be on another machine."""
    from querator.cli.queues import all_queues

    client = session.client
    if not session.timeout_given:
        client.timeout = STATUS_TIMEOUT_SECONDS
    health = client.health()
    session.output.record(
        {
            "address": str(session.settings.address.value),
            "version": health.get("version"),
            "build": health.get("releaseId"),
            "health": health.get("status"),
            **_archive(health),
            "certificate_days": certificate_days(health),
            "insecure": bool(health.get("notes")),
            "queues": sum(1 for _ in all_queues(client)),
        },
        name="address",
    )


@command(app, "stop")
def stop(session: Session, config: Config = None, data: Data = None) -> None:
    """Stop the daemon and wait until it has ended. The exit code is 6 if none runs, and 7 if it takes too long.

    If --socket, QUERATOR_SOCKET or a context names a socket, the daemon that listens there is stopped.
    """
    from querator.daemon.lock import holder

    directory = data_directory(config, data)
    if config is None and data is None:
        directory = _directory_of_socket(session) or directory
    found = holder(directory)
    if config is None and data is None and not _is_meant(session, found):
        address = session.settings.address
        hint = "on the machine of the daemon: querator daemon stop --data DIR, with its data directory"
        if found is None:
            raise Unreachable(
                f"no daemon of this machine and user answers at {address.value} ({address.origin})", hint=hint
            )
        raise UsageError(
            f"{address.value} ({address.origin}) is not the daemon on {directory}; nothing was done", hint=hint
        )
    if found is None:
        raise Unreachable(f"no daemon runs on {directory}")
    if not found.pid:
        raise QueratorError(f"the daemon on {directory} has not written its PID yet", hint="repeat the command")
    # The lock is held, so its PID belongs to a live daemon, and not to a later process with the same number.
    os.kill(found.pid, signal.SIGTERM)
    seconds = session.timeout_seconds if session.timeout_given else SHUTDOWN_SECONDS_MAX + 2
    deadline = time.monotonic() + seconds
    while (now := holder(directory)) is not None and now.pid == found.pid:
        if time.monotonic() > deadline:
            raise TimedOut(f"the daemon, PID {found.pid}, is still there after {seconds:g}s")
        time.sleep(POLL_SECONDS)
    session.done(f"stopped the daemon, PID {found.pid}", {"pid": found.pid, "stopped": True}, name="pid")


def _directory_of_socket(session: Session) -> Path | None:
    """The data directory of the daemon on the socket which flags, variables or a context name; None if none is known.

    The socket may be in that directory. If it is not, the daemon tells an admin. The LOCK file there must name the
    socket: a daemon in a container has another file system, and other PIDs.
    """
    from querator.client import parse_address
    from querator.daemon.lock import holder

    socket = parse_address(str(session.settings.address.value)).socket
    if not socket:
        return None
    directory = Path(socket).parent
    if not (directory / "LOCK").exists():
        session.client.patient = False
        try:
            data = session.client.daemon_status().data
        except QueratorError:
            return None
        directory = Path(data)
        if not data or not (directory / "LOCK").exists():
            return None
    found = holder(directory)
    return directory if found is not None and found.socket == socket else None


@command(app, "promote")
def promote(
    session: Session,
    config: Config = None,
    data: Data = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Take over even if the clocks differ too much, or if the archive is not complete."
        ),
    ] = False,
) -> None:
    """Make the standby on this data directory the owner of the archive, and wait until it serves.

    A standby that was just started is given time to start, and to compare its clock with the owner's. The daemon that
    owned the archive before acknowledges nothing from then on.
    """
    from querator.client import Client

    directory = data_directory(config, data)
    deadline = time.monotonic() + session.timeout_seconds
    found = _started(session, directory, deadline)
    with Client(f"unix:{found.socket}", timeout=STATUS_TIMEOUT_SECONDS, patient=False) as client:
        standby = _Standby(client)
        standby.wait_for_answer(deadline)
        if not standby.notes():
            raise UsageError(f"the daemon on {directory} is not a standby")
        # Half of the time is left for the take-over.
        clocks_end = time.monotonic() + min(CLOCKS_SECONDS, (deadline - time.monotonic()) / 2)
        if not force and standby.lacks_clock():
            session.note("waiting until the standby has compared its clock with the owner's")
            while standby.lacks_clock() and time.monotonic() < clocks_end:
                time.sleep(POLL_SECONDS)
        asked_before = standby.promotions
        os.kill(found.pid, signal.SIGUSR2 if force else signal.SIGUSR1)
        while notes := standby.notes():
            refused = [note for note in notes if note.startswith("not promoted")]
            if refused and standby.promotions > asked_before:
                reason, _, hint = refused[0].partition("; --force")
                raise QueratorError(reason, hint=f"--force{hint}" if hint else "")
            if time.monotonic() > deadline:
                raise TimedOut(f"the standby, PID {found.pid}, does not serve after {session.timeout_seconds:g}s")
            time.sleep(POLL_SECONDS)
    session.done(f"promoted the standby, PID {found.pid}", {"pid": found.pid, "promoted": True}, name="pid")


def _started(session: Session, directory: Path, deadline: float) -> Holder:
    """The daemon on a directory, once it can be asked. It may have been started a moment ago."""
    from querator.daemon.lock import holder

    start_end = min(deadline, time.monotonic() + START_SECONDS)
    has_told = False
    while (found := holder(directory)) is None or not found.socket:
        now = time.monotonic()
        if found is None and now > start_end:
            raise Unreachable(f"no daemon runs on {directory}", hint="querator daemon run --standby")
        if now > deadline:
            raise TimedOut(f"the daemon on {directory} does not answer yet", hint=_NOT_YET)
        if not has_told:
            session.note(f"waiting for a standby on {directory}")
            has_told = True
        time.sleep(POLL_SECONDS)
    return found


_NOT_YET: Final = "its log tells why; a standby waits until its archive can be read"


class _Standby:
    """What a standby says in `/health`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.promotions = 0
        """How often it was asked to take over before its last answer."""

    def wait_for_answer(self, deadline: float) -> None:
        """Wait until the daemon answers for the first time. It listens before it has read the archive."""
        while True:
            try:
                self._client.health()
                return
            except TimedOut:
                if time.monotonic() > deadline:
                    raise TimedOut("the daemon does not answer yet", hint=_NOT_YET) from None

    def notes(self) -> list[str]:
        """The notes of a standby; empty if the daemon serves."""
        health = self._client.health()
        self.promotions = health.get("lag", {}).get("promotions", 0)
        notes = [str(note) for note in health.get("archive", [])]
        return notes if any(note.startswith("standby of") for note in notes) else []

    def lacks_clock(self) -> bool:
        return any("has not compared its clock" in note for note in self.notes())


def data_directory(config: Path | None, data: Path | None) -> Path:
    from querator.config import daemon_config

    return daemon_config(config=config, data=data).data
