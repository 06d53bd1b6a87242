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
    "BROAD_WIDTH", "Series", "bars", "death", "line_chart", "nice_count", "nice_duration", "nice_rate", "sparkline",
    "stylesheet", "time_bars",
]  # fmt: skip


_DEATHS = {"client": "given up", "max_attempts": "attempts used up", "expired": "expired"}


def death(reason: str) -> str:
    """Why a queue gave an item up, in words."""
    return _DEATHS.get(reason, reason)


def stylesheet() -> str:
    return (Path(__file__).parent / "style.css").read_text()
