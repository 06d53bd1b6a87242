"""The report of a benchmark run: its figures, its page and its charts."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import scale
from bench.compare import report
from bench.compare.__main__ import SYSTEMS
from bench.compare.backlog import Moment
from bench.compare.cell import CellResult, Direction
from bench.compare.chart import Bars, Line, bar_chart, line_chart, short
from bench.compare.querator_server import Querator
from bench.compare.results import Cell, Run, figures, round_ratios


def direction(rate: float, cpu_us: float = 5.0, p99_us: int = 2_000) -> Direction:
    items = 10_000
    return Direction(
        items=items,
        seconds=items / rate,
        rates=[rate, rate, rate],
        server_cpu_seconds=items * cpu_us / 1e6,
        latencies_us={"produce": (1_000, p99_us, 3 * p99_us)},
    )


def cell(
    system: str,
    batch: int,
    clients: int,
    rate_in: float,
    rate_out: float,
    rate_in_one: float = 0.0,
    cpu_us: float = 5.0,
) -> Cell:
    one = direction(rate_in_one) if rate_in_one else None
    inward, outward = direction(rate_in, cpu_us), direction(rate_out, cpu_us)
    result = CellResult(inward=inward, outward=outward, in_one=one, peak_memory_bytes=10**7)
    return Cell(system=system, peer=system.split()[0].rstrip(","), batch=batch, clients=clients, result=result)


def run_of(*cells: Cell) -> Run:
    return Run(
        started_at="2026-01-01 00:00 UTC",
        machine={"cpu": "some", "cores": 2, "memory_gib": 24, "kernel": "6"},
        filesystem="ext4",
        fdatasync_us=(250, 600),
        load_average=0.1,
        rounds=4,
        round_seconds=0.8,
        payload_bytes=200,
        versions={"redis": "7"},
        settings={"redis": "appendfsync always"},
        skipped=["rabbitmq"],
        counts_fsyncs=True,
        cells=list(cells),
    )


def test_ratios_are_against_redis_on_the_same_transport() -> None:
    run = run_of(
        cell("querator tcp, 1 partition", 1, 1, 900, 500, 1_300),
        cell("redis tcp", 1, 1, 1_000, 1_000),
        cell("redis unix", 1, 1, 9_000, 9_000),
    )
    found = {figure.what: (round(figure.value, 2), figure.is_reached) for figure in figures(run)}
    assert found == {
        "in, of Redis, tcp": (0.9, True),
        "out, of Redis, tcp": (0.5, False),
        "out with complete_ids, of Redis, tcp": (1.3, False),
    }


def test_asyncio_clients_are_compared_with_asyncio_clients() -> None:
    run = run_of(
        cell("querator unix, asyncio client", 100, 4, 1_500, 1_000),
        cell("redis unix, asyncio client", 100, 4, 1_000, 1_000),
        cell("redis unix", 100, 4, 9_000, 9_000),
    )
    found = {figure.what: (figure.value, figure.is_reached) for figure in figures(run)}
    assert found == {"in, of Redis, asyncio clients": (1.5, True), "out, of Redis, asyncio clients": (1.0, False)}


def test_ahead_of_all_others_means_ahead_of_the_best_of_them_in_each_direction() -> None:
    run = run_of(
        cell("querator tcp, 1 partition", 1000, 2, 300, 150),
        cell("postgres", 1000, 2, 250, 100),
        cell("sqlite", 1000, 2, 200, 200),
    )
    found = {figure.what: figure.is_reached for figure in figures(run)}
    assert found == {"in, of postgres": True, "out, of sqlite": False}


def test_a_ceiling_is_reached_from_below() -> None:
    run = run_of(
        cell("querator unix, 1 partition", 100, 4, 1_000, 1_000, cpu_us=5.0),
        cell("redis unix", 100, 4, 1_000, 1_000, cpu_us=10.0),
    )
    cpu = figures(run)[-1]
    assert cpu.value == pytest.approx(0.5)
    assert cpu.is_reached


def test_the_backlog_has_a_section_with_a_verdict(tmp_path: Path) -> None:
    quick = Moment(
        what="empty queue", waiting=0, rate=1, p50_ms=1, p99_ms=2, highest_ms=20, applies=0, others_share=0.1
    )
    slow = Moment(
        what="many wait", waiting=5_000_000, rate=1, p50_ms=1, p99_ms=11, highest_ms=20, applies=3, others_share=0.1
    )
    report.write(run_of(cell("redis tcp", 1, 1, 1_000, 500)), tmp_path)
    report.write_backlog([quick, slow], "now", tmp_path)
    text = (tmp_path / report.PAGE).read_text()
    assert "| redis tcp |" in text
    assert "| empty queue | 0 | 1 | 1.00 | 2.00 | 20.00 | 0 | 10% | reached |" in text
    assert "| many wait | 5,000,000 | 1 | 1.00 | 11.00 | 20.00 | 3 | 10% | **not reached** |" in text


def test_a_cell_that_failed_says_why() -> None:
    run = run_of(Cell(system="redis tcp", peer="redis", batch=1, clients=1, failure="it fell over"))
    assert "failed: it fell over" in report.markdown(run)
    assert figures(run) == []


def test_the_page_keeps_what_was_written_by_hand(tmp_path: Path) -> None:
    page = tmp_path / report.PAGE
    page.write_text("# Benchmarks\n\nby hand, before\n\n<!-- compare: begin -->\nold\n<!-- compare: end -->\n\nafter\n")
    report.update_page(page, "compare", "new")
    report.update_page(page, "scale", "more")
    text = page.read_text()
    assert "old" not in text
    assert text.index("by hand, before") < text.index("new") < text.index("after") < text.index("more")
    report.update_page(page, "scale", "more")
    assert page.read_text() == text


def test_a_report_is_written_with_its_json_and_chart(tmp_path: Path) -> None:
    report.write(run_of(cell("redis tcp", 1, 1, 1_000, 500)), tmp_path)
    assert "| redis tcp | 1,000 | 500 |" in (tmp_path / report.PAGE).read_text()
    assert "Not installed here, and skipped: rabbitmq." in (tmp_path / report.PAGE).read_text()
    ElementTree.parse(tmp_path / "benchmarks" / "throughput.svg")
    assert (tmp_path / "benchmarks" / "compare.json").exists()


def test_charts_are_well_formed_whatever_the_labels() -> None:
    ElementTree.fromstring(bar_chart("a < b", ["in & out"], [Bars("p", [("x > y", [5.0]), ("none", [0.0])])]))
    ElementTree.fromstring(line_chart("t", "x", "y", [Line("one", [(1, 0.0)])]))
    ElementTree.fromstring(line_chart("t", "x", "y", [Line("l", [(1, 2.0), (10_000, 3_000.0)])], log_y=True))
    ElementTree.fromstring(line_chart("t", "x", "y", []))


@pytest.mark.parametrize(("value", "text"), [(1_234_567, "1.23M"), (45_600, "45.6k"), (12, "12"), (0.25, "0.25")])
def test_numbers_are_short_beside_a_bar(value: float, text: str) -> None:
    assert short(value) == text


def test_every_sweep_has_a_table_and_a_chart() -> None:
    point = scale.Point(
        size=10,
        in_rate=1_000,
        out_rate=500,
        produce_p99=1,
        lease_p99=1,
        complete_p99=1,
        cpu_us_in=1,
        cpu_us_out=1,
        fsyncs_in=0.1,
        peak_mb=100,
    )
    for name in scale.SWEEPS:
        sweep = scale.Sweep(name=name, title=name.title(), axis=name, points=[point])
        text = scale.markdown([sweep])
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) == 1
        for file, svg in scale.charts(sweep).items():
            assert f"benchmarks/{file}" in text
            ElementTree.fromstring(svg)


def test_a_sweep_that_is_run_alone_leaves_the_others_on_the_page(tmp_path: Path) -> None:
    for name, axis in (("queues", "old"), ("partitions", "first"), ("queues", "new")):
        scale.write([scale.Sweep(name=name, title=name.title(), axis=axis, points=[])], tmp_path)
    text = (tmp_path / report.PAGE).read_text()
    assert "first" in text and "new" in text and "old" not in text


def test_ratios_are_taken_round_by_round() -> None:
    ours = Direction(rates=[10.0, 30.0, 100.0, 300.0])
    theirs = Direction(rates=[10.0, 100.0])
    assert round_ratios(ours, theirs) == [2.0, 2.0]
    assert round_ratios(ours, Direction()) == []


def test_both_clients_run_against_both_builds() -> None:
    ours = [system for system in SYSTEMS if system.server is Querator and system.transport == "unix"]
    assert {(system.is_asyncio, system.is_plain) for system in ours} == set(product((False, True), repeat=2))
