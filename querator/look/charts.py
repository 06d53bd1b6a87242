"""Charts as SVG or HTML text: a line of depths, lines over time, bars over time, and bars side by side."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 520
BROAD_WIDTH: Final = 880
HEIGHT: Final = 170
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 8, 22
COLOURS: Final = 8
"""The stylesheet has this many colours, `.c0` and on. Further series use them again."""
_STEPS: Final = (1, 2, 4, 6, 8, 10)
_SHARES: Final = (0.0, 0.5, 1.0)
"""Where the lines of the grid are, as shares of the height."""
LABEL_CHARACTERS: Final = 30


class Series(NamedTuple):
    name: str
    values: Sequence[float | None]
    """One value per time of the chart. None is a gap."""


def sparkline(values: Sequence[int], label: str, width: int = 120, height: int = 26) -> str:
    """A small line without axes. The lowest line is 0."""
    if not values:
        return ""
    top = max(values) or 1
    step = width / max(1, len(values) - 1)
    points = [
        f"{number * step:.1f},{height - 2 - (height - 4) * value / top:.1f}" for number, value in enumerate(values)
    ]
    if len(points) == 1:
        points.append(f"{width},{points[0].split(',')[1]}")
    line = " ".join(points)
    return (
        f'<svg class="spark" role="img" viewBox="0 0 {width} {height}" aria-label="{escape(label)}">'
        f'<polygon class="area" points="0,{height} {line} {width},{height}"/>'
        f'<polyline class="line" points="{line}"/></svg>'
    )


def line_chart(
    title: str,
    times: Sequence[int],
    series: Sequence[Series],
    begin: int,
    end: int,
    step: int,
    tell: Callable[[float], str],
    nice: Callable[[float], float],
    width: int = WIDTH,
) -> str:
    """Lines over time, in seconds since 1970. Times that are more than a step and a half apart are not connected.

    `nice` gives the top of the axis for the largest value: `nice_count`, `nice_rate` or `nice_duration`.
    """
    top = nice(max((value for one in series for value in one.values if value is not None), default=0.0))
    parts = [_grid(top, width), _ticks(top, tell), _time_axis(begin, end, width)]
    for number, one in enumerate(series):
        for run in _runs(times, one.values, step):
            points = " ".join(f"{_x(at, begin, end, width):.1f},{_y(value, top):.1f}" for at, value in run)
            if len(run) == 1:
                x, y = points.split(",")
                parts.append(f'<circle class="dot c{number % COLOURS}" cx="{x}" cy="{y}" r="2"/>')
            else:
                parts.append(f'<polyline class="line c{number % COLOURS}" points="{points}"/>')
    rows = [
        [at, *("–" if one.values[place] is None else tell(one.values[place] or 0.0) for one in series)]
        for place, at in enumerate(times)
    ]
    return _figure(title, "".join(parts), [one.name for one in series], rows, begin, end, width)


def time_bars(
    title: str, times: Sequence[int], counts: Mapping[str, Sequence[int]], step: int, tell: Callable[[float], str]
) -> str:
    """Bars over time, one per step, stacked by name. `times` are the start times of the steps."""
    if not times:
        return ""
    begin, end = times[0], times[-1] + step
    top = nice_count(max((sum(values) for values in zip(*counts.values(), strict=True)), default=0))
    width = (BROAD_WIDTH - LEFT - RIGHT) * step / (end - begin)
    parts = [_grid(top, BROAD_WIDTH), _time_axis(begin, end, BROAD_WIDTH)]
    for place, at in enumerate(times):
        below = 0
        for number, values in enumerate(counts.values()):
            value = values[place]
            if value:
                x, y = _x(at, begin, end, BROAD_WIDTH) + width * 0.08, _y(below + value, top)
                parts.append(
                    f'<rect class="bar c{number % COLOURS}" x="{x:.1f}" y="{y:.1f}"'
                    f' width="{width * 0.84:.1f}" height="{max(0.5, _y(below, top) - y):.1f}"/>'
                )
                below += value
    parts.append(_ticks(top, tell))  # last: on a narrow page they stand inside of the chart, and no bar may cover them
    rows = [[at, *(tell(values[place]) for values in counts.values())] for place, at in enumerate(times)]
    return _figure(title, "".join(parts), list(counts), rows, begin, end, BROAD_WIDTH)


def bars(title: str, rows: Sequence[tuple[str, float]], tell: Callable[[float], str]) -> str:
    """Bars side by side, each with its label and its figure, which are text of the page: they do not shrink with it."""
    largest = max((value for _, value in rows), default=0) or 1
    parts = []
    for label, value in rows:
        share = max(0.3, 100 * value / largest) if value > 0 else 0.0
        parts.append(
            f'<span class="label" title="{escape(label)}">{escape(_short(label))}</span>'
            f'<svg aria-hidden="true"><rect class="bar c0" width="{share:.1f}%" height="100%"/></svg>'
            f"<span>{escape(tell(value))}</span>"
        )
    return f'<div class="bars" role="group" aria-label="{escape(title)}">{"".join(parts)}</div>'


def nice_count(value: float) -> float:
    """A round number that is at least the value, for the top of an axis. Its half is a whole number, too."""
    return max(2.0, nice_rate(value))


def nice_rate(value: float) -> float:
    """A round number that is at least the value. It may be below 1."""
    if value <= 0:
        return 1.0
    power = 0.001
    while power * 10 < value:
        power *= 10
    return next(round(step * power, 6) for step in _STEPS if step * power >= value * (1 - 1e-9))


def nice_duration(milliseconds: float) -> float:
    """A round duration that is at least this long, and whose half is also round."""
    if milliseconds <= 0:
        return 1_000.0
    if milliseconds <= 1_000:
        return nice_count(milliseconds)
    for unit, steps in ((1_000, (1, 2, 4, 10, 20, 30)), (60_000, (1, 2, 4, 10, 20, 30)), (3_600_000, (1, 2, 4, 8, 12))):
        for step in steps:
            if milliseconds <= step * unit:
                return float(step * unit)
    return nice_count(milliseconds / 86_400_000) * 86_400_000


def _figure(
    title: str, drawing: str, names: Sequence[str], rows: Sequence[Sequence[object]], begin: int, end: int, width: int
) -> str:
    """The chart with its legend. `data-points` has the values that the script shows under the pointer."""
    keys = "".join(
        f'<li title="{escape(name)}"><span class="key c{number % COLOURS}"></span>{escape(_short(name))}'
        f' <b data-series="{number}"></b></li>'
        for number, name in enumerate(names)
    )
    points = escape(json.dumps(rows, ensure_ascii=False))
    return (
        f'<figure class="chart{" broad" if width == BROAD_WIDTH else ""}">'
        f'<figcaption><span class="title">{escape(title)}</span><ul class="legend">{keys}</ul>'
        f'<span class="at"></span></figcaption><svg role="img" tabindex="0" viewBox="0 0 {width} {HEIGHT}"'
        f' aria-label="{escape(title)}: {escape(", ".join(names))}" data-begin="{begin}" data-end="{end}"'
        f' data-left="{LEFT}" data-right="{RIGHT}" data-points="{points}">{drawing}'
        f'<line class="cursor" x1="-9" x2="-9" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></svg></figure>'
    )


def _grid(top: float, width: int) -> str:
    heights = [_y(top * share, top) for share in _SHARES]
    return "".join(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>' for y in heights)


def _ticks(top: float, tell: Callable[[float], str]) -> str:
    """The figures of the lines of the grid."""
    return "".join(
        f'<text class="tick{" y" if share else ""}" x="{LEFT - 6}" y="{_y(top * share, top) + 4:.1f}"'
        f' text-anchor="end">{escape(tell(top * share))}</text>'
        for share in _SHARES
    )


def _time_axis(begin: int, end: int, width: int) -> str:
    """Five times below the chart, in UTC. The script writes them in the reader's own time zone."""
    form = "%H:%M" if end - begin <= 2 * 86_400 else "%d %b"
    kind = "minute" if end - begin <= 2 * 86_400 else "day"
    parts = []
    for number in range(5):
        at = begin + (end - begin) * number // 4
        anchor = ("start", "middle", "middle", "middle", "end")[number]
        text = datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(form)
        parts.append(
            f'<text class="tick" x="{_x(at, begin, end, width):.1f}" y="{HEIGHT - 5}" text-anchor="{anchor}"'
            f' data-at="{at}" data-form="{kind}">{text}</text>'
        )
    return "".join(parts)


def _runs(times: Sequence[int], values: Sequence[float | None], step: int) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = []
    last = None
    for at, value in zip(times, values, strict=True):
        if value is None:
            last = None
            continue
        if last is None or at - last > 1.5 * step:
            runs.append([])
        runs[-1].append((at, value))
        last = at
    return runs


def _short(label: str) -> str:
    return label if len(label) <= LABEL_CHARACTERS else label[: LABEL_CHARACTERS - 1] + "…"


def _x(at: float, begin: int, end: int, width: int) -> float:
    return LEFT + (width - LEFT - RIGHT) * (at - begin) / max(1, end - begin)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(1.0, value / top)
