"""The pages: results as Markdown tables and charts. The text around them is written by hand and stays unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.compare.backlog import Moment
from bench.compare.cell import Direction
from bench.compare.chart import Bars, bar_chart
from bench.compare.results import PRODUCE_P99_MS_MAX, Cell, Run, cpu_us, figures

PAGE = "benchmarks.md"
CLIENT_BUSY_MAX = 0.9
"""If the load process uses more of a core than this, it may limit the cell, and the table says so."""
OTHERS_BUSY_MAX = 0.25
"""If other processes use more of a core than this, the cell is unreliable, and the table says so."""


def write(run: Run, docs: Path) -> None:
    """Writes the JSON, the charts and the section of the page into the documentation."""
    folder = docs / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_bytes(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
    (folder / "throughput.svg").write_text(throughput_chart(run))
    update_page(docs / PAGE, "compare", markdown(run))


def write_backlog(moments: Sequence[Moment], when: str, docs: Path) -> None:
    """Has its own section, because it is measured separately."""
    folder = docs / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "backlog.json").write_bytes(msgspec.json.format(msgspec.json.encode(moments)) + b"\n")
    update_page(docs / PAGE, "backlog", backlog_markdown(moments, when))


def update_page(page: Path, section: str, body: str) -> None:
    """Replaces the text between the markers of a section, or appends the section."""
    text = page.read_text() if page.exists() else "# Benchmarks\n"
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    block = f"{begin}\n{body.strip()}\n{end}"
    head, found, rest = text.partition(begin)
    if found:
        text = head + block + rest.partition(end)[2]
    else:
        text = f"{text.rstrip()}\n\n{block}\n"
    page.write_text(text)


def markdown(run: Run) -> str:
    parts = [
        _preamble(run),
        "### Figures to reach",
        _figures_table(run),
        "![items per second](benchmarks/throughput.svg)",
    ]
    for shape in dict.fromkeys(cell.shape for cell in run.cells):
        parts.append(f"### {shape} (items per request × clients)")
        parts.append(_cells_table([cell for cell in run.cells if cell.shape == shape], run.counts_fsyncs))
    parts.append("### What was compared")
    parts.append(_table(("peer", "version", "how"), _peer_rows(run)))
    if run.skipped:
        parts.append(f"Not installed here, and skipped: {', '.join(run.skipped)}.")
    return "\n\n".join(parts)


def backlog_markdown(moments: Sequence[Moment], when: str) -> str:
    header = ("queue", "waiting", "in /s", "p50 ms", "p99 ms", "highest ms", "applied meanwhile, times", "others", "")
    rows = []
    for moment in moments:
        is_reached = moment.p99_ms <= PRODUCE_P99_MS_MAX
        rows.append(
            (
                moment.what,
                f"{moment.waiting:,}",
                f"{moment.rate:,.0f}",
                f"{moment.p50_ms:.2f}",
                f"{moment.p99_ms:.2f}",
                f"{moment.highest_ms:.2f}",
                str(moment.applies),
                f"{moment.others_share:.0%}",
                "reached" if is_reached else "**not reached**",
            )
        )
    return (
        "## One produce while much is waiting\n\n"
        f"Run of {when}; 1×32 on the Unix socket. The figure to reach is a p99 below {PRODUCE_P99_MS_MAX:g} ms. "
        '"Applied" is how often something was moved from the journal into the partition file during the measurement; '
        '"others" is what the rest of the machine used, in shares of a core.\n\n' + _table(header, rows)
    )


def throughput_chart(run: Run) -> str:
    panels = []
    for shape in dict.fromkeys(cell.shape for cell in run.cells):
        rows = []
        for cell in run.cells:
            if cell.shape == shape and cell.result is not None:
                result = cell.result
                one = result.in_one.rate if result.in_one else 0.0
                rows.append((cell.system, (result.inward.rate, result.outward.rate, one)))
        panels.append(Bars(f"{shape} (items per request × clients)", rows))
    series = ("in: produce", "out: lease, complete", "out: complete_ids on the lease")
    return bar_chart("Durable items per second, one run", series, panels)


def _preamble(run: Run) -> str:
    machine = run.machine
    p50, p99 = run.fdatasync_us
    return (
        f"Run of {run.started_at} on {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, "
        f"kernel {machine['kernel']}, {run.filesystem}; fdatasync of 200 appended bytes: p50 {p50} µs, p99 {p99} µs; "
        f"load average before the run {run.load_average:.1f}. Payloads of {run.payload_bytes} bytes, "
        f"{run.rounds} rounds of about {run.round_seconds:g} s. Absolute numbers are this machine's; a ratio is the "
        "median of the ratios of single rounds, which take turns."
    )


def _figures_table(run: Run) -> str:
    rows = []
    for figure in figures(run):
        sign = "≤" if figure.is_ceiling else "≥"
        verdict = "reached" if figure.is_reached else "**not reached**"
        low, high = figure.spread
        spread = f"{low:.2f} to {high:.2f}" if high else ""
        rows.append((figure.shape, figure.what, f"{figure.value:.2f}", spread, f"{sign} {figure.bound:g}", verdict))
    return _table(("shape", "figure", "this run", "single rounds", "reach", ""), rows)


def _cells_table(cells: Sequence[Cell], counts_fsyncs: bool) -> str:
    header = (
        "system",
        "in /s",
        "out /s",
        "out /s, `complete_ids`",
        "produce p50 / p99 ms",
        "lease",
        "complete",
        "server CPU µs/item in + out",
        "peak MB",
        "fsyncs/item in / out",
        "client busy in / out",
        "others on the machine",
    )
    rows = []
    for cell in cells:
        result = cell.result
        if result is None:
            rows.append((cell.system, f"failed: {cell.failure}", *[""] * (len(header) - 2)))
            continue
        inward, outward = result.inward, result.outward
        rows.append(
            (
                cell.system,
                f"{inward.rate:,.0f}",
                f"{outward.rate:,.0f}",
                f"{result.in_one.rate:,.0f}" if result.in_one else "",
                _latency(inward, "produce"),
                _latency(outward, "lease"),
                _latency(outward, "complete"),
                f"{cpu_us(inward):.1f} + {cpu_us(outward):.1f}",
                f"{result.peak_memory_bytes / 1e6:.0f}",
                f"{_fsyncs(inward)} / {_fsyncs(outward)}" if counts_fsyncs else "",
                f"{_busy(inward)} / {_busy(outward)}",
                _others(inward, outward),
            )
        )
    return _table(header, rows)


def _peer_rows(run: Run) -> Iterator[tuple[str, ...]]:
    for peer, version in run.versions.items():
        yield peer, version, run.settings.get(peer, "")


def _latency(direction: Direction, operation: str) -> str:
    p50, p99, _ = direction.latencies_us.get(operation, (0, 0, 0))
    return f"{p50 / 1000:.2f} / {p99 / 1000:.2f}" if p50 else ""


def _fsyncs(direction: Direction) -> str:
    return f"{direction.fsyncs / direction.items:.2g}" if direction.items else ""


def _busy(direction: Direction) -> str:
    share = direction.client_cpu_seconds / direction.seconds if direction.seconds else 0.0
    return f"{share:.0%}{' (!)' if share > CLIENT_BUSY_MAX else ''}"


def _others(*directions: Direction) -> str:
    seconds = sum(direction.seconds for direction in directions)
    share = sum(direction.others_cpu_seconds for direction in directions) / seconds if seconds else 0.0
    return f"{share:.0%}{' (!)' if share > OTHERS_BUSY_MAX else ''}"


def _table(header: Sequence[str], rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
