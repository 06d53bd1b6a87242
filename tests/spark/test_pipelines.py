"""`querator pipeline …` in this process, on the Spark session of the tests."""

from __future__ import annotations

import csv
import html
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from querator.cli.shell.tree import app
from querator.client.bulk_client import BulkClient
from querator.client.catalogue import produce_item
from querator.client.clients import Client
from querator.errors import RetryRequest
from tests.daemons import Daemon
from tests.spark.seen import numbers, payloads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Pipeline:
    def __init__(self, daemon: Daemon, home: Path) -> None:
        self._environment = {"HOME": str(home), "QUERATOR_ENDPOINT": daemon.endpoint, "XDG_STATE_HOME": str(home)}

    def __call__(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["pipeline", *words], env=self._environment)

    def json(self, *words: str) -> Any:
        result = self(*words, "-o", "json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
def pipeline(spark: SparkSession, daemon: Daemon, tmp_path: Path) -> Iterator[Pipeline]:
    yield Pipeline(daemon, tmp_path / "home")


def test_import_then_export_gives_the_same_rows(
    spark: SparkSession, pipeline: Pipeline, client: Client, queue: str, tmp_path: Path
) -> None:
    given = spark.range(20_000).selectExpr("id", "concat('text ', id) as text", "concat('k', id % 4) as family")
    given.write.parquet(str(tmp_path / "in"))
    words = ("import", queue, str(tmp_path / "in"), "--payload", "text", "--kind", "family", "--reference", "id")
    sample = pipeline(*words, "--dry-run")
    assert sample.exit_code == 0
    assert "payload" in sample.output and "text 1" in sample.output
    assert sum(p.total for q in client.stats(queue).logical_queues for p in q.partitions) == 0
    answer = pipeline.json(*words, "--request-id", "the import")
    assert (answer["items"], answer["repeated"]) == (20_000, 0)
    again = pipeline(*words, "--request-id", "the import")
    assert f"imported 0 items to '{queue}' (20,000 were there already) in " in again.stderr
    out = tmp_path / "out"
    assert pipeline.json("export", queue, "--to", str(out), "--partition-by", "kind")["items"] == 20_000
    exported = spark.read.parquet(str(out))
    assert {path.name for path in out.iterdir() if path.is_dir()} == {f"kind=k{n}" for n in range(4)}
    hashed = "bit_xor(xxhash64(cast({} as string), {}, cast({} as string)))"
    (before,) = given.selectExpr(hashed.format("text", "family", "id")).collect()[0]
    (after,) = exported.selectExpr(hashed.format("payload", "kind", "reference")).collect()[0]
    assert (before, exported.count()) == (after, 20_000)


def test_where_says_which_items_are_exported_and_copied(
    pipeline: Pipeline, client: Client, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    client.produce(queue, [produce_item(str(n), kind="ab"[n % 2]) for n in range(100)])
    client.create_queue(f"{queue}-copy")
    out = str(tmp_path / "out")
    assert pipeline.json("export", queue, "--to", out, "--where", "kind = 'a' and payload <> '4'::blob")["items"] == 49
    assert pipeline.json("copy", "--from", queue, "--to", f"{queue}-copy", "--where", "kind = 'b'")["items"] == 50
    assert numbers(bulk, f"{queue}-copy") == list(range(1, 100, 2))
    refused = pipeline("export", queue, "--to", str(tmp_path / "no"), "--where", "nope = 1")
    assert (refused.exit_code, "where is invalid" in refused.output) == (1, True), refused.output
    refused = pipeline("export", queue, "--to", str(tmp_path / "no"), "--where", "kind = 'a'", "--complete")
    assert (refused.exit_code, "--complete takes all ready items" in refused.output) == (2, True), refused.output
    assert not (tmp_path / "no").exists()


NASTY = ['say "hi"', "back\\slash", '\\"', "a,b", "two\nlines", "  spaces  ", "\ttab", "'", "", '"', "end\\"]


def test_every_reader_of_csv_understands_an_export(
    pipeline: Pipeline, client: Client, queue: str, tmp_path: Path
) -> None:
    client.produce(queue, [produce_item(text, kind="k", reference=text) for text in NASTY])
    pipeline.json("export", queue, "--to", str(tmp_path / "out"), "--format", "csv", "--only", "kind,reference,payload")
    rows = []
    for part in (tmp_path / "out").glob("part-*"):
        with part.open(newline="") as stream:
            rows += list(csv.DictReader(stream, strict=True))
    expected = [{"kind": "k", "reference": text, "payload": text} for text in NASTY]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    quoted = duckdb.sql(f"select payload from read_csv('{tmp_path}/out/*.csv', all_varchar = true, strict_mode = true)")
    assert sorted(row[0] or "" for row in quoted.fetchall()) == sorted(NASTY)


def test_csv_of_other_programs_is_read_as_they_mean_it(
    pipeline: Pipeline, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    one_line = [text for text in NASTY if "\n" not in text]
    with (tmp_path / "rows.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["text", "more"], *[[text, "x"] for text in one_line]])
    words = ("import", queue, str(tmp_path / "rows.csv"), "--format", "csv", "--payload", "coalesce(text, '')")
    pipeline.json(*words)
    assert payloads(bulk, queue) == sorted(one_line)


@pytest.mark.parametrize(
    ("form", "content", "expected"),
    [
        ("text", "one\ntwo\n", ["one", "two"]),
        ("json", '{"a": 1}\n{"a": 2}\n', ['{"a":1}', '{"a":2}']),
        ("csv", "a,b\n1,x\n", ['{"a":"1","b":"x"}']),
    ],
)
def test_other_formats(
    pipeline: Pipeline, bulk: BulkClient, queue: str, tmp_path: Path, form: str, content: str, expected: list[str]
) -> None:
    (tmp_path / "file").write_text(content)
    pipeline.json("import", queue, str(tmp_path / "file"), "--format", form)
    assert payloads(bulk, queue) == expected


def test_what_cannot_be_imported_is_told_in_a_line(
    pipeline: Pipeline, bulk: BulkClient, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("one\n")
    (tmp_path / "large").write_bytes(b"ok\n" + bytes([65]) * 5_000_001 + b"\n")
    (tmp_path / "half.json").write_text('{"a": 1}\nnot json\n')
    pq.write_table(pa.table({"payload": ["x", None]}), tmp_path / "nulls")
    pq.write_table(pa.table({"payload": ["x" * 100] * 50_000}), tmp_path / "torn")
    torn = bytearray((tmp_path / "torn").read_bytes())
    torn[4:1_000] = bytes(996)
    (tmp_path / "torn").write_bytes(torn)
    text = str(tmp_path / "file")
    for words, reason, code in (
        (("import", "no-such-queue", text), "no such queue", 4),
        (("import", queue, str(tmp_path / "nothing")), "does not exist", 2),
        (("import", queue, text), f"reading file file:{text}. Could not read footer", 1),
        (("import", queue, str(tmp_path / "torn")), f"{tmp_path / 'torn'}", 1),
        (("import", queue, str(tmp_path / "half.json"), "--format", "json"), "half.json, line 2: not json", 1),
        (("import", queue, str(tmp_path / "nulls")), "column 'payload' has rows without a value", 1),
        (("import", queue, text, "--format", "text", "--payload", "nope"), "nope", 2),
        (("import", queue, text, "--format", "text", "--payload", "value +"), "does not parse", 2),
        (("import", queue, text, "--format", "text", "--enqueue-at", "value"), "cannot be cast", 1),
        (("import", queue, text, "--format", "text", "--enqueue-at", "array(1)"), "cannot cast", 2),
        (("import", queue, text, "--format", "text", "--conf", "odd"), "KEY=VALUE", 2),
        (("import", queue, text, "--format", "text", "--conf", "=odd"), "KEY=VALUE", 2),
        (("import", queue, str(tmp_path / "large"), "--format", "text"), "5,000,001 bytes", 1),
        (("export", queue, "--to", text), "already exists", 2),
        (("export", queue, "--to", "/proc/nowhere"), "Mkdirs failed to create file:/proc/nowhere", 1),
        (("export", queue, "--to", str(tmp_path / "out"), "--only", "id,nope"), "column 'nope' is unknown", 2),
        (("export", queue, "--to", str(tmp_path / "out"), "--only", "id", "--partition-by", "day"), "'created_at'", 2),
        (("export", queue, "--to", str(tmp_path / "out"), "--state", "odd"), "odd", 2),
        (("copy", "--from", queue, "--to", "no-such-queue"), "no such queue", 4),
        (("copy", "--from", f"nowhere/{queue}", "--to", queue), "no context 'nowhere'", 4),
        (("redrive", queue, "--where", "nope"), "nope", 2),
        (("report", queue, "--html", str(tmp_path / "no" / "page.html")), "no directory", 2),
        (("stream", queue, "--to", str(tmp_path / "out"), "--trigger", "soon"), "not a duration", 2),
    ):
        result = pipeline(*words)
        assert (result.exit_code, reason in result.output) == (code, True), result.output
        assert len(result.stderr.splitlines()) <= 5, result.stderr
        assert "Traceback" not in result.output and "SQLSTATE" not in result.output, result.output
    assert "--request-id" in pipeline("import", queue, str(tmp_path / "large"), "--format", "text").output


def test_draining_with_a_consumer_on_the_same_queue(
    spark: SparkSession, pipeline: Pipeline, daemon: Daemon, client: Client, queue: str, tmp_path: Path
) -> None:
    for start in range(0, 6_000, 1_000):
        client.produce(queue, [str(start + n) for n in range(1_000)])
    consumed: list[int] = []
    done = threading.Event()

    def consume() -> None:
        with daemon.connect() as other:
            while not done.is_set():
                try:
                    items = other.lease(queue, 50, timeout=0.2).items
                except RetryRequest:
                    continue
                other.complete(queue, [item.id for item in items])
                consumed.extend(int(item.payload) for item in items)

    consumer = threading.Thread(target=consume)
    consumer.start()
    out = tmp_path / "lake"
    answer = pipeline("export", queue, "--to", str(out), "--complete")
    done.set()
    consumer.join()
    assert answer.exit_code == 0, answer.output
    written = [int(row.payload) for row in spark.read.parquet(str(out)).select("payload").collect()]
    assert sorted(written + consumed) == list(range(6_000))
    assert sum(p.total for q in client.stats(queue).logical_queues for p in q.partitions) == 0


def test_copy_keeps_the_past_and_can_be_repeated(
    spark: SparkSession, pipeline: Pipeline, client: Client, bulk: BulkClient, queue: str
) -> None:
    for start in range(0, 3_000, 1_000):
        client.produce(queue, [produce_item(str(start + n), kind="k", reference="r") for n in range(1_000)])
    client.produce(queue, [produce_item("-1", enqueue_at="2999-01-01T00:00:00Z")])
    target = f"{queue}-copy"
    client.create_queue(target)
    words = ("copy", "--from", queue, "--to", target)
    assert pipeline.json(*words)["items"] == 3_001
    assert numbers(bulk, target) == list(range(3_000))
    assert numbers(bulk, target, "scheduled") == [-1]
    taken = client.lease(target, 10).items  # a repeated copy does not add items that consumers have completed
    client.complete(target, [item.id for item in taken])
    again = pipeline.json(*words)
    assert (again["items"], again["repeated"]) == (0, 3_001)
    assert f"copied 0 items to '{target}' (3,001 were there already) in " in pipeline(*words).stderr
    assert len(numbers(bulk, target)) == 2_990
    assert pipeline("copy", "--from", queue, "--to", queue).exit_code == 2


@pytest.fixture
def dead(client: Client, queue: str) -> str:
    """A dead queue with items of two kinds, some of which cannot be repaired."""
    name = f"{queue}-dead"
    client.create_queue(name, partitions=2)
    settings = client.queue_info(queue)
    settings.dead_queue = name
    client.update_queue(settings)
    client.produce(queue, [produce_item(json.dumps({"n": n}), kind="good", reference="r1") for n in range(30)])
    client.produce(queue, [produce_item("not json", kind="bad", reference="r2") for _ in range(5)])
    while True:
        try:
            items = client.lease(queue, 100, timeout=0.2).items
        except RetryRequest:
            break
        client.retry(queue, [item.id for item in items], dead=True, reason="exit status 9\nno such table")
    return name


def test_redrive_repairs_what_it_can_and_leaves_the_rest(
    pipeline: Pipeline, bulk: BulkClient, queue: str, dead: str
) -> None:
    transform = "to_json(named_struct('n', get_json_object(text, '$.n') + 100)) "
    words = ("redrive", dead, "--transform", f"case when get_json_object(text, '$.n') is not null then {transform} end")
    shown = pipeline(*words, "--dry-run")
    assert shown.exit_code == 0 and "repaired" not in payloads(bulk, queue), shown.output
    result = pipeline(*words)
    assert (result.exit_code, "5 items stayed" in result.output) == (3, True), result.output
    back = sorted(float(json.loads(text)["n"]) for text in payloads(bulk, queue))
    assert back == [100 + n for n in range(30)]
    assert payloads(bulk, dead) == ["not json"] * 5
    assert pipeline(*words).exit_code == 3
    assert len(payloads(bulk, queue)) == 30


def test_redrive_with_an_expression_that_fails_for_some_payloads(
    pipeline: Pipeline, bulk: BulkClient, client: Client, queue: str, dead: str
) -> None:
    """A transform that fails gives null. The item then stays in the dead queue, and the result counts it separately."""
    words = ("redrive", dead, "--transform", "cast(1 / cast(get_json_object(text, '$.n') as int) as string)")
    result = pipeline(*words)
    assert result.exit_code == 3, result.output
    assert "redrove 29 items" in result.output and "6 items stayed" in result.output
    assert f"6 items of '{queue}' stayed: the transform failed" in result.output
    assert len(payloads(bulk, queue)) == 29
    assert sorted(payloads(bulk, dead)) == ["not json"] * 5 + ['{"n": 0}']
    broken = pipeline("redrive", dead, "--transform", "raise_error(concat('no way with ', text))")
    assert (broken.exit_code, "no way with" in broken.output) == (1, True), broken.output
    assert "the same command continues" in broken.output and len(broken.stderr.splitlines()) <= 3
    assert len(payloads(bulk, dead)) == 6
    assert pipeline.json("redrive", dead, "--where", "failure = 'another'")["items"] == 0
    assert pipeline.json("redrive", dead, "--where", "kind = 'good' and last_reason like '%table'")["items"] == 1
    assert len(payloads(bulk, queue)) == 30


def test_an_attempt_in_the_dead_queue_does_not_hide_how_an_item_died(
    pipeline: Pipeline, client: Client, queue: str, dead: str
) -> None:
    items = client.lease(dead, 100).items
    client.retry(dead, [item.id for item in items], reason="looked at")
    rows = pipeline.json("report", dead)
    counts = {(row["section"], row["value"]): row["items"] for row in rows}
    assert (counts["Reasons", "client"], counts["Origins", queue]) == (35, 35)
    assert counts["Failures", "looked at"] == len(items)


def test_report_counts_what_died_and_draws_it(pipeline: Pipeline, queue: str, dead: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    rows = pipeline.json("report", dead, "--html", str(page))
    counts = {(row["section"], row["value"]): row["items"] for row in rows}
    assert counts["Reasons", "client"] == 35
    assert counts["Failures", "exit status 9"] == 35
    assert counts["Kinds", "good"] == 30
    assert counts["References", "r2"] == 5
    assert counts["Origins", queue] == 35
    assert counts["Attempts", "1"] == 35
    assert sum(n for (section, _), n in counts.items() if section == "Time line") == 35
    text = page.read_text()
    assert text.count("<figure") == 1 and text.count('class="bars"') == 7
    (deaths,) = re.findall(r"<figure.*?</figure>", text)
    assert len(json.loads(html.unescape(re.findall(r'data-points="(.*?)"', deaths)[0]))) == 12  # of ten seconds
    assert "given up" in text and ">client<" not in text
    assert text.index("<h2>Time line") < text.index("<figure") < text.index("<h2>Reasons")
    assert deaths.count('<rect class="bar c0"') == 1 and "Deaths over time, by kind: good, " in deaths
    assert "http" not in text.replace("http-equiv", "")


def test_a_page_shows_names_as_they_are_and_runs_nothing(needs_spark: None) -> None:
    from querator.spark.reporting import Report, Section, page

    text = page(Report("<q>", 1, [Section("Kinds", ("kind", "items"), [("<script>alert(1)</script>", 1)])]), "now")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
