"""Charts as SVG text: bars for comparisons, and lines for values that depend on a size. Needs no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

COLOURS = ("#2563eb", "#f59e0b", "#059669", "#dc2626", "#7c3aed", "#0891b2")

_FONT = "font-family='system-ui, sans-serif' font-size='12'"
_BAR_PX, _GAP_PX, _LABEL_PX, _BARS_PX, _VALUE_PX = 9, 7, 190, 420, 90


class Bars(NamedTuple):
    """A panel of horizontal bars: one value per label and series. A value of 0 gets no bar."""

    title: str
    rows: Sequence[tuple[str, Sequence[float]]]


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


def bar_chart(title: str, series: Sequence[str], panels: Sequence[Bars]) -> str:
    """Panels below each other. Each has its own scale, which starts at 0."""
    width = _LABEL_PX + _BARS_PX + _VALUE_PX
    out, y = [], 24
    out.append(_text(10, y, title, "font-weight='bold' font-size='15'"))
    y += 22
    x = 10.0
    for index, name in enumerate(series):
        out.append(f"<rect x='{x}' y='{y - 9}' width='10' height='10' fill='{COLOURS[index]}'/>")
        out.append(_text(x + 15, y, name))
        x += 40 + 7 * len(name)
    for panel in panels:
        y += 30
        out.append(_text(10, y, panel.title, "font-weight='bold'"))
        y += 8
        highest = max((value for _, values in panel.rows for value in values), default=1.0) or 1.0
        for label, values in panel.rows:
            shown = [(index, value) for index, value in enumerate(values) if value]
            height = max(1, len(shown)) * _BAR_PX
            out.append(_text(_LABEL_PX - 8, y + height / 2 + 4, label, "text-anchor='end'"))
            for at, (index, value) in enumerate(shown):
                top, length = y + at * _BAR_PX, max(1.0, value / highest * _BARS_PX)
                out.append(
                    f"<rect x='{_LABEL_PX}' y='{top}' width='{length:.1f}' height='{_BAR_PX - 1}' "
                    f"fill='{COLOURS[index]}'/>"
                )
                out.append(_text(_LABEL_PX + length + 4, top + 8, short(value), "font-size='10'"))
            y += height + _GAP_PX
    return _svg(width, y + 10, out)


def line_chart(title: str, x_label: str, y_label: str, lines: Sequence[Line], *, log_y: bool = False) -> str:
    """Lines over a logarithmic x axis. The y axis starts at 0 unless it is logarithmic too."""
    width, height, left, right, top, bottom = 640, 360, 70, 20, 60, 45
    points = [point for line in lines for point in line.points]
    if not points:
        return _svg(width, height, [_text(10, 24, title)])
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_high = max(y for _, y in points) or 1.0
    y_low = min((y for _, y in points if y > 0), default=1.0) if log_y else 0.0
    if log_y:
        y_low, y_high = 10 ** math.floor(math.log10(y_low)), 10 ** math.ceil(math.log10(y_high))
        y_high = max(y_high, y_low * 10)

    def across(x: float) -> float:
        span = math.log(x_high / x_low) or 1.0
        return left + math.log(x / x_low) / span * (width - left - right)

    def up(y: float) -> float:
        share = math.log(max(y, y_low) / y_low) / math.log(y_high / y_low) if log_y else y / y_high
        return height - bottom - share * (height - top - bottom)

    out = [_text(10, 24, title, "font-weight='bold' font-size='15'")]
    for y in _ticks(y_low, y_high, log_y):
        out.append(f"<line x1='{left}' x2='{width - right}' y1='{up(y):.1f}' y2='{up(y):.1f}' stroke='#ddd'/>")
        out.append(_text(left - 6, up(y) + 4, short(y), "text-anchor='end' font-size='10'"))
    for x in sorted({x for x, _ in points}):
        out.append(_text(across(x), height - bottom + 16, short(x), "text-anchor='middle' font-size='10'"))
    out.append(_text(width / 2, height - 8, x_label, "text-anchor='middle'"))
    legend_x = float(left)
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
        out.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        out.extend(f"<circle cx='{across(x):.1f}' cy='{up(y):.1f}' r='3' fill='{colour}'/>" for x, y in line.points)
        out.append(f"<rect x='{legend_x}' y='38' width='10' height='10' fill='{colour}'/>")
        out.append(_text(legend_x + 14, 47, line.name))
        legend_x += 34 + 7 * len(line.name)
    out.append(_text(width - right, 24, y_label, "text-anchor='end' fill='#555'"))
    return _svg(width, height, out)


def short(value: float) -> str:
    """A short form that fits beside a bar: 1234567 → 1.2M."""
    for limit, divisor, suffix in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:.3g}"


def _ticks(low: float, high: float, is_log: bool) -> list[float]:
    if is_log:
        return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    step = 10 ** math.floor(math.log10(high / 4)) or 1.0
    step = next(step * factor for factor in (1, 2, 5, 10) if high / (step * factor) <= 6)
    return [step * index for index in range(int(high / step) + 1)]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(text)}</text>"


def _svg(width: float, height: float, elements: Sequence[str]) -> str:
    # Draw a background, so that the chart is readable on a dark page too.
    body = "\n".join(elements)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}' {_FONT}>\n"
        f"<rect width='100%' height='100%' fill='white'/>\n{body}\n</svg>\n"
    )
