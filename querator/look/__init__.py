"""What the console and the report on dead items look like: one stylesheet, and charts as SVG text.

Charts carry no style of their own, only classes, so that they obey a strict Content-Security-Policy. Every label is
escaped here.
"""

from pathlib import Path

from querator.look.charts import (
    BROAD_WIDTH,
    Series,
    bars,
    line_chart,
    nice_count,
    nice_duration,
    nice_rate,
    sparkline,
    time_bars,
)

__all__ = [
    "BROAD_WIDTH", "Series", "bars", "line_chart", "nice_count", "nice_duration", "nice_rate", "sparkline",
    "stylesheet", "time_bars",
]  # fmt: skip


def stylesheet() -> str:
    return (Path(__file__).parent / "style.css").read_text()
