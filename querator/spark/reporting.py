"""The report on a dead queue: counts by reason, age and more, and an HTML page with charts that works offline."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from querator.spark.redriving import dead_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP: Final = 20
BAR_HEIGHT, LABEL_WIDTH, BAR_WIDTH = 22, 200, 460
_AGES: Final = (
    (3_600, "under 1 hour"),
    (86_400, "1 to 24 hours"),
    (604_800, "1 to 7 days"),
    (2_592_000, "7 to 30 days"),
)


class Section(NamedTuple):
    title: str
    labels: Sequence[str]
    """The titles of the two columns."""
    rows: Sequence[tuple[str, int]]


class Report(NamedTuple):
    queue: str
    items: int
    sections: Sequence[Section]


def report(spark: SparkSession, options: Mapping[str, str], splits: int) -> Report:
    columns = "partition,id,kind,reference,created_at,state,history"
    dead = dead_items(spark, options, columns=columns, splits=str(splits)).cache()
    try:
        sections = [
            _counted(dead, "Reasons", "reason"),
            _counted(dead, "Failures", "failure"),
            _counted(dead, "Kinds", "kind"),
            _counted(dead, "References", "reference"),
            _counted(dead, "Origins", "origin"),
            _ages(dead),
            _attempts(dead),
            _time_line(dead),
        ]
        return Report(options["queue"], dead.count(), sections)
    finally:
        dead.unpersist()


def _counted(dead: DataFrame, title: str, column: str) -> Section:
    from pyspark.sql import functions as f

    rows = dead.groupBy(column).agg(f.count("*").alias("n")).orderBy(f.desc("n"), column).limit(TOP).collect()
    return Section(title, (column, "items"), [(row[column] or "(none)", row["n"]) for row in rows])


def _ages(dead: DataFrame) -> Section:
    from pyspark.sql import functions as f

    seconds = f.unix_timestamp(f.current_timestamp()) - f.unix_timestamp("created_at")
    bucket = f.lit(len(_AGES))
    for number, (limit, _) in reversed(list(enumerate(_AGES))):
        bucket = f.when(seconds < limit, f.lit(number)).otherwise(bucket)
    found = {row["bucket"]: row["n"] for row in _count_by(dead.withColumn("bucket", bucket), "bucket")}
    names = [name for _, name in _AGES] + ["over 30 days"]
    return Section("Age", ("since they died", "items"), [(n, found.get(i, 0)) for i, n in enumerate(names)])


def _attempts(dead: DataFrame) -> Section:
    """Attempts before the death. In the dead queue, the attempts of an item start at 0 again."""
    rows = _count_by(dead, "tried")[:TOP]
    return Section("Attempts", ("attempts", "items"), [(str(row["tried"]), row["n"]) for row in rows])


def _time_line(dead: DataFrame) -> Section:
    """Deaths by day, or by hour if all of them are within two days."""
    from pyspark.sql import functions as f

    known = dead.where("died_at is not null")
    bounds = known.agg(f.min("died_at").alias("first"), f.max("died_at").alias("last")).collect()[0]
    if bounds["first"] is None:
        return Section("Time line", ("died", "items"), [])
    hourly = (bounds["last"] - bounds["first"]).total_seconds() < 2 * 86_400
    text = f.date_format("died_at", "yyyy-MM-dd HH:00" if hourly else "yyyy-MM-dd")
    rows = _count_by(known.withColumn("when", text), "when")
    return Section("Time line", ("died (UTC)", "items"), [(row["when"], row["n"]) for row in rows])


def _count_by(rows: DataFrame, column: str) -> list[Any]:
    from pyspark.sql import functions as f

    return rows.groupBy(column).agg(f.count("*").alias("n")).orderBy(column).collect()


# The page

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
svg { width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: currentColor; }
.bar { fill: #3568b8; } table { border-collapse: collapse; } td, th { padding: .1rem .8rem .1rem 0; text-align: left; }
td:last-child, th:last-child { text-align: right; }
@media (prefers-color-scheme: dark) { body { background: #14181f; color: #dde3ec; } .bar { fill: #6c9be8; } }
"""


def page(report: Report, made_at: str) -> str:
    """The report as one HTML file."""
    name = html.escape(report.queue)
    sections = "\n".join(_section(section) for section in report.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Dead items of {name}</title><style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>Dead items of “{name}”</h1>\n<p>{report.items:,} items, {html.escape(made_at)}</p>\n{sections}\n"
        "</body></html>\n"
    )


def _section(section: Section) -> str:
    title = f"<h2>{html.escape(section.title)}</h2>"
    if not section.rows:
        return f"{title}\n<p>Nothing to show.</p>"
    cells = "".join(f"<tr><td>{html.escape(label)}</td><td>{count:,}</td></tr>" for label, count in section.rows)
    head = "".join(f"<th>{html.escape(label)}</th>" for label in section.labels)
    return (
        f"{title}\n{chart(section)}\n<details><summary>Figures</summary><table><tr>{head}</tr>{cells}</table></details>"
    )


def chart(section: Section) -> str:
    """Horizontal bars, each with its label and its count."""
    largest = max(count for _, count in section.rows) or 1
    height = BAR_HEIGHT * len(section.rows)
    parts = [
        f'<svg role="img" viewBox="0 0 {LABEL_WIDTH + BAR_WIDTH + 80} {height}" '
        f'aria-label="{html.escape(section.title)}, bar chart">'
    ]
    for number, (label, count) in enumerate(section.rows):
        top = number * BAR_HEIGHT
        width = max(1.0, BAR_WIDTH * count / largest) if count else 0.0
        short = label if len(label) <= 28 else label[:27] + "…"
        parts.append(
            f'<text x="{LABEL_WIDTH - 8}" y="{top + 15}" text-anchor="end">{html.escape(short)}'
            f"<title>{html.escape(label)}</title></text>"
            f'<rect class="bar" x="{LABEL_WIDTH}" y="{top + 3}" width="{width:.1f}" height="{BAR_HEIGHT - 6}"/>'
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{top + 15}">{count:,}</text>'
        )
    return "".join([*parts, "</svg>"])
