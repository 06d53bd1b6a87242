"""`querator check`: checks for Nagios and similar systems.

A check prints one line, and exits with 0 for ok, 1 for warning, 2 for critical and 3 for unknown.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from querator.cli.lookups import metrics
from querator.cli.lookups.health import (
    CERTIFICATE_CRITICAL_DAYS,
    CERTIFICATE_WARN_DAYS,
    archive_lag,
    certificate_days,
)
from querator.cli.shell.options import Queue, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.render import json_line, short_duration
from querator.cli.terminal.session import Session, duration
from querator.errors import QueratorError, Unreachable
from querator.texts import visible

app = noun(NOUNS["check"].help)


class Severity(enum.IntEnum):
    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class CheckFormat(enum.StrEnum):
    NAGIOS = "nagios"
    PROMETHEUS = "prometheus"
    JSON = "json"


Form = Annotated[CheckFormat, typer.Option("--format", help="Print the result in this format.")]


DepthWarn = Annotated[
    int | None, typer.Option("--depth-warn", min=0, metavar="N", help="Warn if at least this many items are ready.")
]
DepthCritical = Annotated[
    int | None,
    typer.Option("--depth-critical", min=0, metavar="N", help="Be critical if at least this many items are ready."),
]
AgeWarn = Annotated[
    str | None,
    typer.Option("--age-warn", metavar="DURATION", help="Warn if the oldest waiting item has at least this age."),
]
AgeCritical = Annotated[
    str | None,
    typer.Option(
        "--age-critical", metavar="DURATION", help="Be critical if the oldest waiting item has at least this age."
    ),
]
CertWarn = Annotated[
    int,
    typer.Option("--cert-warn", min=0, metavar="DAYS", help="Warn if the TLS certificate expires within this time."),
]
CertCritical = Annotated[
    int,
    typer.Option(
        "--cert-critical",
        min=0,
        metavar="DAYS",
        help="Be critical if the TLS certificate expires within this time.",
    ),
]


LagWarn = Annotated[
    str | None,
    typer.Option("--lag-warn", metavar="DURATION", help="Warn if the archive or the standby is this far behind."),
]
LagCritical = Annotated[
    str | None,
    typer.Option(
        "--lag-critical", metavar="DURATION", help="Be critical if the archive or the standby is this far behind."
    ),
]


@dataclass
class Measure:
    """A measured value and its thresholds."""

    name: str
    value: float
    unit: str = ""
    warn: float | None = None
    critical: float | None = None

    @property
    def severity(self) -> Severity:
        if self.critical is not None and self.value >= self.critical:
            return Severity.CRITICAL
        return Severity.WARNING if self.warn is not None and self.value >= self.warn else Severity.OK

    def performance(self) -> str:
        limits = ";".join("" if one is None else f"{one:.15g}" for one in (self.warn, self.critical))
        return f"{self.name}={self.value:.15g}{self.unit};{limits}"


class Floor(Measure):
    """A measured value that must stay above its thresholds."""

    @property
    def severity(self) -> Severity:
        if self.critical is not None and self.value <= self.critical:
            return Severity.CRITICAL
        return Severity.WARNING if self.warn is not None and self.value <= self.warn else Severity.OK

    def performance(self) -> str:
        return f"{self.name}={self.value:.15g}{self.unit};{self.warn:.15g}:;{self.critical:.15g}:"


@dataclass
class Verdict:
    check: str
    subject: str
    severity: Severity
    text: str
    measures: list[Measure] = field(default_factory=list)

    def print(self, session: Session, form: CheckFormat) -> None:
        write = session.streams.stdout.write
        if form is CheckFormat.JSON or (session.for_a_script and form is CheckFormat.NAGIOS):
            values = {one.name: one.value for one in self.measures}
            write(json_line({**self._labels(), "status": self.severity.name, "message": self.text, **values}) + "\n")
        elif form is CheckFormat.PROMETHEUS:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in self._labels().items())
            write(f"# TYPE querator_check_status gauge\nquerator_check_status{{{labels}}} {int(self.severity)}\n")
            for one in self.measures:
                name = f"querator_check_{one.name}"
                write(f"# TYPE {name} gauge\n{name}{{{labels}}} {one.value:.15g}\n")
        else:
            figures = " ".join(one.performance() for one in self.measures)
            line = f"QUERATOR {self.check.upper()} {self.severity.name} - {self.text}"
            write(visible(line) + (f" | {figures}\n" if figures else "\n"))
        raise typer.Exit(int(self.severity))

    def _labels(self) -> dict[str, str]:
        return {"check": self.check} | ({"queue": self.subject} if self.subject else {})


def _escaped(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"')


def _failed(check: str, subject: str, error: QueratorError) -> Verdict:
    severity = Severity.CRITICAL if isinstance(error, Unreachable) else Severity.UNKNOWN
    return Verdict(check, subject, severity, error.message)


@command(app, "queue")
def queue(
    session: Session,
    name: Queue,
    depth_warn: DepthWarn = None,
    depth_critical: DepthCritical = None,
    age_warn: AgeWarn = None,
    age_critical: AgeCritical = None,
    form: Form = CheckFormat.NAGIOS,
) -> None:
    """Check how many items are ready in a queue, and how old the oldest is.

    A partition in error is critical. A partition whose storage is nearly full is a warning.
    """
    warn_seconds = None if age_warn is None else duration(age_warn, "--age-warn")
    critical_seconds = None if age_critical is None else duration(age_critical, "--age-critical")
    try:
        session.client.queue_info(name)
        view = metrics.queues(session.client.metrics()).get(name, metrics.QueueView(name))
    except QueratorError as error:
        _failed("queue", name, error).print(session, form)
        return
    depth = Measure("depth", view.ready, "", depth_warn, depth_critical)
    age = Measure("age", round(view.oldest_seconds, 3), "s", warn_seconds, critical_seconds)
    text = f"{name}: {view.ready:,} ready, oldest {short_duration(view.oldest_seconds)}, {view.leased:,} leased"
    measures = [depth, age, Measure("leased", view.leased), Measure("scheduled", view.scheduled)]
    severity = max(depth.severity, age.severity)
    if view.state == "error" or view.trouble:
        severity = max(severity, Severity.CRITICAL if view.state == "error" else Severity.WARNING)
        text += f"; {view.state}: {view.trouble}"
    Verdict("queue", name, severity, text, measures).print(session, form)


@command(app, "partitions")
def partitions(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Check only this queue.", show_default=False)
    ] = None,
    form: Form = CheckFormat.NAGIOS,
) -> None:
    """Check the states of partitions and their storages.

    A partition in error is critical. A partition that is not available, or whose storage is nearly full, is a warning.
    """
    try:
        if name is not None:
            session.client.queue_info(name)
        views = metrics.queues(session.client.metrics())
    except QueratorError as error:
        _failed("partitions", name or "", error).print(session, form)
        return
    found = [
        (queue.name, number, partition)
        for queue in views.values()
        if name in (None, queue.name)
        for number, partition in sorted(queue.partitions.items())
    ]
    bad = [
        f"{queue}/{number} {one.state}" + (f": {one.trouble}" if one.trouble else "")
        for queue, number, one in found
        if one.state != "available" or one.trouble
    ]
    available = sum(one.state == "available" for _, _, one in found)
    errors = sum(one.state == "error" for _, _, one in found)
    severity = Severity.CRITICAL if errors else Severity.WARNING if bad else Severity.OK
    text = f"{available} of {len(found)} available"
    if bad:
        text += "; " + ", ".join(bad)
    measures = [Measure("available", available), Measure("errors", errors)]
    Verdict("partitions", name or "", severity, text, measures).print(session, form)


@command(app, "daemon")
def daemon(
    session: Session,
    cert_warn: CertWarn = CERTIFICATE_WARN_DAYS,
    cert_critical: CertCritical = CERTIFICATE_CRITICAL_DAYS,
    lag_warn: LagWarn = None,
    lag_critical: LagCritical = None,
    form: Form = CheckFormat.NAGIOS,
) -> None:
    """Check that the daemon answers, and that its partitions, its storages and its certificate are in order.

    The result is critical if no partition works. It is a warning if some partitions fail, or if a storage is nearly
    full. A TLS certificate that expires soon is a warning, and then critical. An archive that cannot be reached is a
    warning, and critical with `wait = true`. An archive that has lost objects is critical. On a standby, the lag is the
    time by which its files are behind the owner. On any other daemon with an archive, it is the time by which the
    archive is behind.
    """
    lag_limits = [
        None if text is None else duration(text, option)
        for text, option in ((lag_warn, "--lag-warn"), (lag_critical, "--lag-critical"))
    ]
    started = time.monotonic()
    try:
        health: dict[str, Any] = session.client.health()
    except QueratorError as error:
        _failed("daemon", "", error).print(session, form)
        return
    seconds = time.monotonic() - started
    status = str(health.get("status"))
    severity = {"pass": Severity.OK, "warn": Severity.WARNING}.get(status, Severity.CRITICAL)
    outputs = [str(one["output"]) for checks in health.get("checks", {}).values() for one in checks if "output" in one]
    measures = [Measure("time", round(seconds, 4), "s")]
    days = certificate_days(health)
    if days is not None:
        certificate = Floor("certificate_days", days, "", cert_warn, cert_critical)
        severity = max(severity, certificate.severity)
        measures.append(certificate)
        outputs.append(f"TLS certificate expires in {days:.1f} days" if days > 0 else "TLS certificate has expired")
    lag = archive_lag(health)
    if lag is not None:
        behind = Measure("lag", lag.seconds, "s", *lag_limits)
        severity = max(severity, behind.severity, Severity.CRITICAL if lag.is_damaged else Severity.OK)
        measures += [behind, *([Measure("lag_objects", lag.objects)] if lag.role == "standby" else [])]
    elif any(one is not None for one in lag_limits):
        outputs.append("it has no archive")
        severity = severity or Severity.UNKNOWN
    notes = [*health.get("notes", []), *health.get("archive", [])]
    text = "; ".join([f"{status}, version {health.get('version')}", *outputs, *notes])
    Verdict("daemon", "", severity, text, measures).print(session, form)
