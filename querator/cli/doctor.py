"""`querator doctor`: check what usually goes wrong, and say what to do about it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from querator import __version__, config, times
from querator.cli.lookups.health import CERTIFICATE_WARN_DAYS, certificate_days
from querator.cli.shell.options import command
from querator.cli.terminal.failures import as_querator_error
from querator.cli.terminal.render import Format, short_duration, state_style
from querator.cli.terminal.session import Session
from querator.client import parse_address
from querator.errors import QueratorError
from querator.items import Room
from querator.limits import ROOM_PROBE_BELOW_BYTES, US_PER_SECOND
from querator.texts import visible

app = typer.Typer(add_completion=False, rich_markup_mode=None)

OK, WARN, FAIL = "ok", "warn", "fail"
SKEW_WARN_SECONDS: Final = 5.0
JAVA_MIN: Final = 17


class Finding(NamedTuple):
    check: str
    status: str
    what: str
    todo: str = ""


@command(app, "doctor")
def doctor(
    session: Session,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Check the daemon on this data directory.")
    ] = None,
) -> None:
    """Find out what is wrong on this machine.

    The exit code is 1 if something fails.
    """
    if data is not None:
        session.prefer_socket(_socket_of(data))
    findings: list[Finding] = []
    for check in (_settings, _socket, _daemon, _lock, _space, _archive, _pipelines):
        try:
            findings += check(session, data)
        except (QueratorError, OSError) as error:
            known = as_querator_error(error)
            findings.append(Finding(check.__name__.strip("_"), FAIL, known.message, known.hint))
    if session.quiet:
        findings = [finding for finding in findings if finding.status != OK]
    if session.streams.fancy and session.output.form is Format.TABLE and session.output.columns is None:
        _write_lines(session, findings)
    else:
        records = [finding._asdict() for finding in findings]
        session.output.records(records, ("status", "check", "what", "todo"), name="check")
    failed = dict.fromkeys(finding.check for finding in findings if finding.status == FAIL)
    if failed:
        raise QueratorError(f"checks failed: {', '.join(failed)}")


def _socket_of(data: Path) -> str:
    """The socket of the daemon on a data directory, or the one that it would have."""
    from querator.daemon.lock import holder

    settings = config.daemon_config(data=data)
    found = holder(settings.data) if settings.data.is_dir() else None
    return found.socket if found is not None and found.socket else str(settings.socket)


def _write_lines(session: Session, findings: list[Finding]) -> None:
    """Print findings for a person: nothing is cut, and the remedy follows on its own line."""
    from rich.text import Text

    console = session.output.console()
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        line = Text(f"{finding.status:<4}", style=state_style(finding.status))
        console.print(line.append(f"  {finding.check:<{width}}  {visible(finding.what)}", style=""), soft_wrap=True)
        if finding.todo:
            console.print(Text(f"      {'':<{width}}  → {visible(finding.todo)}"), soft_wrap=True)


def _settings(session: Session, data: Path | None) -> Iterator[Finding]:
    address = session.settings.address
    yield Finding("settings", OK, f"{address.value} ({address.origin})")
    if session.settings.token():
        yield Finding("token", OK, f"from {session.settings.token_file.value or session.settings.token_file.origin}")
    key = str(session.settings.client_key.value)
    if key and stat.S_IMODE(os.stat(os.path.expanduser(key)).st_mode) & 0o077:
        yield Finding("client key", WARN, f"{key} can be read by others", f"chmod 600 {key}")


def _socket(session: Session, data: Path | None) -> Iterator[Finding]:
    path = parse_address(str(session.settings.address.value)).socket
    if not path:
        return
    try:
        status = os.stat(path)
    except FileNotFoundError:
        yield Finding("socket", FAIL, f"{path} does not exist", "querator daemon run")
        return
    except PermissionError:
        yield Finding("socket", FAIL, f"{path} cannot be accessed", "run as the user who runs the daemon")
        return
    if not stat.S_ISSOCK(status.st_mode):
        yield Finding("socket", FAIL, f"{path} is not a socket", "choose another --socket")
    elif not os.access(path, os.R_OK | os.W_OK):
        yield Finding("socket", FAIL, f"{path} may not be used by you", "run as the user who runs the daemon")
    elif stat.S_IMODE(status.st_mode) & 0o077:
        yield Finding("socket", WARN, f"{path} is open to other users", f"chmod 600 {path}")
    else:
        yield Finding("socket", OK, path)


def _daemon(session: Session, data: Path | None) -> Iterator[Finding]:
    try:
        started = time.monotonic()
        health = session.client.health()
        seconds = time.monotonic() - started
    except QueratorError as error:
        yield Finding("daemon", FAIL, error.message, error.hint)
        return
    version = str(health.get("version"))
    answers = f"answers in {seconds * 1000:.0f} ms, version {version}"
    if health.get("status") == "pass":
        yield Finding("daemon", OK, answers)
    else:
        outputs = "; ".join(str(one.get("output")) for checks in health.get("checks", {}).values() for one in checks)
        level = WARN if health.get("status") == "warn" else FAIL
        yield Finding("daemon", level, f"{answers}; {health.get('status')}: {outputs}", "querator partitions list")
    for note in health.get("notes", []):
        yield Finding("access", WARN, str(note), "create tokens, give the daemon TLS, and start it without --insecure")
    if version != __version__:
        yield Finding(
            "version", WARN, f"this command is {__version__}, the daemon {version}", "install the same version of both"
        )
    yield from _clock(health)
    yield from _certificate(health)
    yield from _partitions(session)


def _clock(health: dict[str, Any]) -> Iterator[Finding]:
    for checks in health.get("checks", {}).values():
        for check in checks:
            theirs = times.parse(check["time"]) / US_PER_SECOND
            skew = abs(time.time() - theirs)
            # The daemon sends whole seconds.
            if skew > SKEW_WARN_SECONDS + 1:
                yield Finding(
                    "clock", WARN, f"differs from the daemon's by {short_duration(skew)}", "check NTP on both"
                )
            else:
                yield Finding("clock", OK, "agrees with the daemon's")
            return


def _certificate(health: dict[str, Any]) -> Iterator[Finding]:
    days = certificate_days(health)
    if days is not None:
        level = OK if days > CERTIFICATE_WARN_DAYS else WARN if days > 0 else FAIL
        todo = "" if level == OK else "put a new certificate in place of the old one; the daemon notices it"
        yield Finding("certificate", level, f"expires in {days:.1f} days" if days > 0 else "has expired", todo)


def _partitions(session: Session) -> Iterator[Finding]:
    from querator.cli.lookups import metrics

    views = metrics.queues(session.client.metrics()).values()
    broken = [
        f"{view.name}/{number}" for view in views for number, one in view.partitions.items() if one.state == "error"
    ]
    if broken:
        yield Finding("partitions", FAIL, f"{', '.join(broken)} in error", "querator partitions list shows the reasons")
    else:
        # The daemon does not open files with an unknown schema version, so this also checks the schema.
        yield Finding("partitions", OK, f"{sum(len(view.partitions) for view in views)} partitions, none in error")


def _lock(session: Session, data: Path | None) -> Iterator[Finding]:
    from querator.daemon.lock import holder

    directory = config.daemon_config(data=data).data
    if not directory.is_dir():
        yield Finding(
            "data",
            WARN,
            f"{directory} does not exist on this machine",
            "the daemon creates it; --data names another one",
        )
        return
    found = holder(directory)
    if found is None:
        yield Finding("lock", WARN, f"no daemon runs on {directory}", "querator daemon run")
    else:
        yield Finding("lock", OK, f"PID {found.pid} runs on {directory}")


def _space(session: Session, data: Path | None) -> Iterator[Finding]:
    settings = config.daemon_config(data=data)
    directories = {settings.data, *(storage.directory for storage in settings.storages)}
    for directory in sorted(directories):
        if not directory.is_dir():
            continue
        usage = shutil.disk_usage(directory)
        room = Room(usage.free, usage.total)
        text = f"{room}, below {directory}"
        if room.free_bytes < ROOM_PROBE_BELOW_BYTES:
            yield Finding("disk space", FAIL, text, "free some space")
        elif room.is_low:
            yield Finding("disk space", WARN, text, "free some space before it runs out")
        else:
            yield Finding("disk space", OK, text)
        if not os.access(directory, os.W_OK):
            yield Finding("permissions", WARN, f"{directory} is not writable for you", "run the daemon as its owner")


def _archive(session: Session, data: Path | None) -> Iterator[Finding]:
    """Check that the object store can be reached, gives access, and refuses to create an object twice."""
    settings = config.daemon_config(data=data).archive
    if settings is None:
        return
    from querator.daemon.archive import Away, Bucket, care

    try:
        care.try_store(Bucket(settings.url, settings.options))
    except Away as error:
        todo = "check the URL, the network and what the credentials allow: create, read, list and delete objects"
        yield Finding("archive", FAIL, f"{settings.url} cannot be reached, or refuses: {error}", todo)
        return
    yield Finding("archive", OK, f"{settings.url} can be written, and creates no object twice")


def _pipelines(session: Session, data: Path | None) -> Iterator[Finding]:
    try:
        spark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        yield Finding(
            "spark", WARN, "pyspark is not installed; only pipelines need it", "pip install 'querator[spark]'"
        )
        return
    yield Finding("spark", OK, f"pyspark {spark}")
    java = java_version()
    if java is None:
        yield Finding("java", WARN, "not found; only pipelines need it", "install openjdk-17-jre-headless")
    elif java < JAVA_MIN:
        yield Finding("java", WARN, f"version {java}; pipelines need {JAVA_MIN}", "install openjdk-17-jre-headless")
    else:
        yield Finding("java", OK, f"version {java}")


def java_version() -> int | None:
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else "java"
    try:
        command = [program, "-XX:-UsePerfData", "-version"]  # otherwise Java leaves a directory behind
        output = subprocess.run(command, capture_output=True, text=True, timeout=20).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_java_version(output)


def parse_java_version(output: str) -> int | None:
    """`openjdk version "17.0.9" …` is 17, and `"1.8.0_392"` is 8."""
    parts = output.split('"')
    numbers = parts[1].split(".") if len(parts) > 1 else []
    digits = numbers[1] if numbers[:1] == ["1"] and len(numbers) > 1 else numbers[0] if numbers else ""
    return int(digits) if digits.isdigit() else None
