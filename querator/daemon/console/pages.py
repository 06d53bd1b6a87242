"""Renders pages: templates with automatic escaping, figures for people, and the command line beside every page."""

from __future__ import annotations

import datetime
import hashlib
import shlex
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from querator import look
from querator.daemon.console.visits import Visit, address
from querator.items import ZERO_TIME_US
from querator.limits import US_PER_SECOND

HERE: Final = Path(__file__).parent
FOREVER: Final = "public, max-age=31536000, immutable"
LIVE_SECONDS: Final = 5


class ConsolePage(NamedTuple):
    template: str
    title: str
    values: dict[str, Any] = {}
    commands: tuple[str, ...] = ()
    """The command lines that show or do the same."""
    queue: str = ""
    """The queue that the page is about."""
    tab: str = ""
    live_seconds: int = 0
    """After how many seconds the page is loaded again while somebody looks at it; 0 for never."""
    status: int = 200


class Redirect(NamedTuple):
    address: str


def render(visit: Visit, page: ConsolePage) -> str:
    remark = visit.desk.remark(visit.get("said")) if visit.get("said") else None
    return (
        _templates()
        .get_template(page.template)
        .render(
            **page.values,
            title=page.title,
            commands=page.commands,
            queue=page.queue,
            tab=page.tab,
            path=visit.path,
            live_seconds=page.live_seconds,
            remark=remark,
            token=visit.token,
            may_act=visit.may_operate(page.queue),
            visitor=visit.caller,
            is_signed_in=visit.sessions.is_signed_in(visit.visitor),
        )
    )


def command(*words: object) -> str:
    """A command line that can be pasted into a shell."""
    return shlex.join(["querator", *map(str, words)])


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "rate": rate,
        "span": span,
        "bytes": size,
        "when": when,
        "one_line": one_line,
        "death": death,
    }
    environment.globals |= {"address": address, "static": static_address, "sparkline": _sparkline}
    return environment


# Files


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """The static files, and their types."""
    script = (HERE / "static" / "console.js").read_bytes()
    icon = (HERE / "static" / "icon.svg").read_bytes()
    return {
        "style.css": (look.stylesheet().encode(), "text/css"),
        "console.js": (script, "text/javascript"),
        "icon.svg": (icon, "image/svg+xml"),
    }


def static(name: str) -> Response:
    found = _files().get(name)
    if found is None:
        return Response("there is no such file", 404, media_type="text/plain")
    return Response(found[0], media_type=found[1], headers={"cache-control": FOREVER})


@cache
def static_address(name: str) -> str:
    """The address of a static file, with a digest, so that a browser keeps the file until it changes."""
    return address(f"/static/{name}", v=hashlib.sha256(_files()[name][0]).hexdigest()[:12])


# Figures for people


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def rate(per_minute: float) -> str:
    """A rate per second, from a count per minute."""
    per_second = per_minute / 60
    if per_second >= 100:
        return f"{per_second:,.0f}/s"
    if not per_minute:
        return "0/s"
    return f"{per_second:.1f}/s" if per_second >= 0.05 else f"{per_minute}/min"


def span(milliseconds: float | None) -> str:
    """A duration with its two largest units."""
    if milliseconds is None:
        return "–"
    seconds = milliseconds / 1_000
    if not seconds:
        return "0s"
    if seconds < 1:
        return f"{milliseconds:.0f}ms" if milliseconds >= 1 else f"{milliseconds:.2f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s".replace(".0s", "s") if seconds < 10 else f"{int(seconds)}s"
    for unit, name, smaller, smaller_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= unit:
            rest = int(seconds % unit // smaller)
            return f"{int(seconds // unit)}{name} {rest}{smaller_name}" if rest else f"{int(seconds // unit)}{name}"
    return ""


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} TB"


def when(us: int | None) -> Markup:
    """A time in UTC. The script writes it in the visitor's time zone."""
    if us is None or us <= ZERO_TIME_US + US_PER_SECOND:
        return Markup("–")
    try:
        at = datetime.datetime.fromtimestamp(us / US_PER_SECOND, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return Markup("–")
    return Markup('<time datetime="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), at.strftime("%Y-%m-%d %H:%M:%S UTC")
    )


def one_line(text: str, length: int = 80) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def death(reason: str | None) -> str:
    """Why a queue gave an item up."""
    return look.death(reason) if reason else "–"


def _sparkline(values: list[int], label: str) -> Markup:
    return Markup(look.sparkline(values, label))


def chart(svg: str) -> Markup:
    """A chart, which has escaped its labels itself."""
    return Markup(svg)
