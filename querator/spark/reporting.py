"""The report on a dead queue: counts by reason, age and more, and an HTML page with charts that works offline."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from querator import look
from querator.spark.redriving import dead_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP: Final = 20
KINDS_SHOWN: Final = 7
STEPS: Final = (10, 60, 300, 1_800, 3_600, 4 * 3_600, 86_400, 7 * 86_400)
"""How many seconds a bar may cover: the shortest step that gives at most `BARS` bars."""
BARS: Final = 60
BARS_MIN: Final = 12
"""Deaths within a shorter time are drawn at the end of this many bars, so that one bar does not fill the chart."""
REASONS: Final = "Reasons"
TIME_LINE: Final = "Time line"
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


class Deaths(NamedTuple):
    """Deaths by kind, step by step."""

    times: Sequence[int]
    """When each step begins, in seconds since 1970."""
    step_seconds: int
    counts: Mapping[str, Sequence[int]]


class Report(NamedTuple):
    queue: str
    items: int
    sections: Sequence[Section]
    deaths: Deaths | None = None


def report(spark: SparkSession, options: Mapping[str, str], splits: int) -> Report:
    columns = "partition,id,kind,reference,created_at,state,history"
    dead = dead_items(spark, options, columns=columns, splits=str(splits)).cache()
    try:
        sections = [
            _counted(dead, REASONS, "reason"),
            _counted(dead, "Failures", "failure"),
            _counted(dead, "Kinds", "kind"),
            _counted(dead, "References", "reference"),
            _counted(dead, "Origins", "origin"),
            _ages(dead),
            _attempts(dead),
            _time_line(dead),
        ]
        return Report(options["queue"], dead.count(), sections, _deaths(dead))
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
        return Section(TIME_LINE, ("died", "items"), [])
    hourly = (bounds["last"] - bounds["first"]).total_seconds() < 2 * 86_400
    text = f.date_format("died_at", "yyyy-MM-dd HH:00" if hourly else "yyyy-MM-dd")
    rows = _count_by(known.withColumn("when", text), "when")
    return Section(TIME_LINE, ("died (UTC)", "items"), [(row["when"], row["n"]) for row in rows])


def _deaths(dead: DataFrame) -> Deaths | None:
    from pyspark.sql import functions as f

    second = f.unix_timestamp("died_at")
    known = dead.where("died_at is not null")
    bounds = known.agg(f.min(second).alias("first"), f.max(second).alias("last")).collect()[0]
    if bounds["first"] is None:
        return None
    first, last = bounds["first"], bounds["last"]
    step = next((one for one in STEPS if (last - first) // one < BARS), -(-(last - first + 1) // BARS))
    rows = known.groupBy("kind", f.floor(second / step).alias("step")).agg(f.count("*").alias("n")).collect()
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["kind"] or "(none)"] += row["n"]
    shown = [kind for kind, _ in totals.most_common(KINDS_SHOWN)]
    names = [*shown, "others"] if len(totals) > len(shown) else shown
    begin, end = min(first // step, last // step - BARS_MIN + 1), last // step + 1
    counts = {name: [0] * (end - begin) for name in names}
    for row in rows:
        kind = row["kind"] or "(none)"
        counts[kind if kind in shown else "others"][row["step"] - begin] += row["n"]
    return Deaths([number * step for number in range(begin, end)], step, counts)


def _count_by(rows: DataFrame, column: str) -> list[Any]:
    from pyspark.sql import functions as f

    return rows.groupBy(column).agg(f.count("*").alias("n")).orderBy(column).collect()


# The page


def page(report: Report, made_at: str) -> str:
    """The report as one HTML file that looks like the console and needs no other file."""
    name = html.escape(report.queue)
    picture = look.time_bars(
        "Deaths over time, by kind", report.deaths.times, report.deaths.counts, report.deaths.step_seconds, _number
    ) if report.deaths is not None else ""  # fmt: skip
    time_line = [section for section in report.sections if section.title == TIME_LINE]
    others = [section for section in report.sections if section.title != TIME_LINE]
    sections = "\n".join(
        [_section(one, picture) for one in time_line]
        + [_section(one, look.bars(one.title, one.rows, _number)) for one in map(_in_words, others)]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Dead items of {name}</title><style>{look.stylesheet()}</style></head>\n<body>\n<main>\n"
        f"<h1>Dead items of “{name}”</h1>\n<p>{report.items:,} items, {html.escape(made_at)}; times are UTC</p>\n"
        f"{sections}\n</main>\n</body></html>\n"
    )


def _in_words(section: Section) -> Section:
    """The section with the words of the console for the reasons of deaths."""
    if section.title != REASONS:
        return section
    return section._replace(rows=[(look.death(label), count) for label, count in section.rows])


def _section(section: Section, picture: str) -> str:
    title = f"<h2>{html.escape(section.title)}</h2>"
    if not section.rows:
        return f'<section class="card">{title}\n<p>Nothing to show.</p></section>'
    cells = "".join(
        f'<tr><td>{html.escape(label)}</td><td class="n">{count:,}</td></tr>' for label, count in section.rows
    )
    first, second = map(html.escape, section.labels)
    return (
        f'<section class="card">{title}\n{picture}\n<details><summary>Figures</summary>'
        f'<table><tr><th>{first}</th><th class="n">{second}</th></tr>{cells}</table></details></section>'
    )


def _number(value: float) -> str:
    return f"{value:,.0f}"
