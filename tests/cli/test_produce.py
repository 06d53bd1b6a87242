"""querator queue produce"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from querator import Client
from querator.cli.terminal import lines
from querator.cli.terminal.lines import Lines, TooLong, read_lines
from querator.cli.terminal.streams import Terminals
from tests.cli.command_line import TERMINAL, CommandLine
from tests.scripted import OK, Answer, Asked, ScriptedDaemon, refusal

REPEATED: Answer = (200, {"code": 200, "details": {"repeated": "true"}})


def serving(*produced: Answer) -> Callable[[Asked], Answer]:
    """Answers each produce with the next answer, and repeats the last one. Every queue exists."""
    answers = list(produced)

    def answer(asked: Asked) -> Answer:
        if asked.path == "/v1/queues.info":
            return (200, {"queue_name": "q"})
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return answer


def payloads(client: Client, queue: str) -> list[bytes]:
    return [item.payload for item in client.list_items(queue, limit=10_000)]


# One payload


def test_a_payload_from_the_command_line(cli: CommandLine, client: Client, queue: str) -> None:
    result = cli("queue", "produce", queue, "hello", "--kind", "k", "--reference", "r", "--encoding", "text")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"produced 1 item to '{queue}'" in result.stderr
    (item,) = client.list_items(queue)
    assert (item.payload, item.kind, item.reference, item.encoding) == (b"hello", "k", "r", "text")


def test_a_payload_from_standard_input_and_from_a_file(
    cli: CommandLine, client: Client, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "payload").write_bytes(b"\xff\xfe\nfile")
    cli.ok("queue", "produce", queue, "-", input=b"two\nlines\n")
    cli.ok("queue", "produce", queue, input=b"piped")
    cli.ok("queue", "produce", queue, "--file", str(tmp_path / "payload"))
    cli.ok("queue", "produce", queue, "")
    assert payloads(client, queue) == [b"two\nlines\n", b"piped", b"\xff\xfe\nfile", b""]


def test_a_payload_that_is_not_utf8(cli: CommandLine, client: Client, queue: str) -> None:
    cli.ok("queue", "produce", queue, os.fsdecode(b"\xff\x00"[:1]))
    assert payloads(client, queue) == [b"\xff"]


def test_empty_standard_input_is_reported(cli: CommandLine, queue: str) -> None:
    result = cli("queue", "produce", queue, "-", input="")
    assert result.exit_code == 2
    assert "standard input is empty" in result.stderr
    assert "hint: " in result.stderr


def test_nothing_to_produce_on_a_terminal(cli: CommandLine, queue: str) -> None:
    result = cli("queue", "produce", queue, terminals=TERMINAL)
    assert result.exit_code == 2
    assert "nothing to produce" in result.stderr


def test_a_missing_file(cli: CommandLine, queue: str) -> None:
    result = cli("queue", "produce", queue, "--file", "/nowhere/x")
    assert result.exit_code == 1
    assert "error: /nowhere/x: No such file or directory" in result.stderr


def test_a_payload_that_is_too_large(cli: CommandLine, queue: str) -> None:
    result = cli("queue", "produce", queue, "-", input=b"x" * 5_000_000)
    assert result.exit_code == 2
    assert "larger than" in result.stderr


def test_scheduled_by_time_and_by_delay(cli: CommandLine, client: Client, queue: str) -> None:
    cli.ok("queue", "produce", queue, "a", "--delay", "1h")
    cli.ok("queue", "produce", queue, "b", "--enqueue-at", "2099-01-01T00:00:00Z")
    assert len(client.list_scheduled(queue)) == 2
    assert payloads(client, queue) == []


@pytest.mark.parametrize(
    "words",
    [
        ["x", "--lines"],
        ["-", "--lines", "--ndjson"],
        ["x", "--delay", "1s", "--enqueue-at", "2099-01-01T00:00:00Z"],
        ["x", "--enqueue-at", "noon"],
        ["x", "--request-id", ""],
        ["x", "--request-id", "i" * 250],
    ],
)
def test_nonsense_is_refused(cli: CommandLine, queue: str, words: list[str]) -> None:
    assert cli("queue", "produce", queue, *words, input="").exit_code == 2


def test_a_request_id_makes_it_safe_to_repeat(cli: CommandLine, client: Client, queue: str) -> None:
    words = ("queue", "produce", queue, "x", "--request-id", "once")
    assert cli(*words).stderr == f"produced 1 item to '{queue}'\n"
    assert cli(*words).stderr == f"produced 0 items to '{queue}' (1 was there already)\n"
    record = cli.json(*words)
    assert (record["produced"], record["repeated"]) == (0, 1)
    assert payloads(client, queue) == [b"x"]


def test_dry_run_produces_nothing(cli: CommandLine, client: Client, queue: str) -> None:
    assert "would produce an item of 1 byte" in cli("queue", "produce", queue, "x", "--dry-run").stderr
    lines_run = cli("queue", "produce", queue, "--lines", "--dry-run", input="a\nb\n")
    assert "would produce 2 items" in lines_run.stderr
    assert payloads(client, queue) == []


# Streams


def test_every_line_is_an_item_in_order(cli: CommandLine, client: Client, queue: str) -> None:
    text = "".join(f"{number}\n" for number in range(2_500))
    record = json.loads(cli.ok("queue", "produce", queue, "--lines", "-o", "json", input=text))
    assert (record["produced"], record["failed"], record["last_line"]) == (2_500, 0, 2_500)
    assert payloads(client, queue) == [str(number).encode() for number in range(2_500)]


def test_lines_keep_their_bytes(cli: CommandLine, client: Client, queue: str) -> None:
    cli.ok("queue", "produce", queue, "--lines", "--kind", "k", input=b"\xff\r\n\n  spaced \nlast")
    assert payloads(client, queue) == [b"\xff\r", b"", b"  spaced ", b"last"]
    assert {item.kind for item in client.list_items(queue)} == {"k"}


def test_no_lines_are_no_items(cli: CommandLine, queue: str) -> None:
    result = cli("queue", "produce", queue, "--lines", input="")
    assert result.exit_code == 0
    assert "produced 0 items" in result.stderr


def test_ndjson_lines_have_fields_of_their_own(cli: CommandLine, client: Client, queue: str) -> None:
    text = '{"utf8":"a","kind":"x"}\n\n{"bytes":"/w==","reference":"r"}\n'
    text += '{"utf8":"c","enqueue_at":"2099-01-01T00:00:00Z"}\n'
    cli.ok("queue", "produce", queue, "--ndjson", "--kind", "usual", input=text)
    items = client.list_items(queue)
    assert [(item.payload, item.kind, item.reference) for item in items] == [(b"a", "x", ""), (b"\xff", "usual", "r")]
    assert len(client.list_scheduled(queue)) == 1


def test_bad_lines_are_told_by_number_and_the_others_are_produced(cli: CommandLine, client: Client, queue: str) -> None:
    text = (
        '{"utf8":"a"}\n{"utf8":1}\nnonsense\n{"colour":"red"}\n{"utf8":"e"}\n{"bytes":"*"}\n{"utf8":"a","bytes":""}\n'
    )
    result = cli("queue", "produce", queue, "--ndjson", input=text)
    assert result.exit_code == 3
    for number in (2, 3, 4, 6, 7):
        assert f"line {number}: " in result.stderr
    assert f"error: produced 2 items to '{queue}', 5 lines failed" in result.stderr
    assert payloads(client, queue) == [b"a", b"e"]


def test_only_bad_lines_are_an_error(cli: CommandLine, queue: str) -> None:
    assert cli("queue", "produce", queue, "--ndjson", input="x\n").exit_code == 1


def test_many_bad_lines_do_not_flood_the_terminal(cli: CommandLine, queue: str) -> None:
    result = cli("queue", "produce", queue, "--ndjson", input="x\n" * 100)
    assert result.stderr.count("line ") <= 22
    assert "further errors are only counted" in result.stderr


def test_a_line_that_is_too_long_is_told_and_skipped(
    cli: CommandLine, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("querator.cli.queue.produce.PAYLOAD_BYTES_MAX", 10)
    result = cli("queue", "produce", queue, "--lines", input="short\n" + "x" * 11 + "\nlast\n")
    assert result.exit_code == 3
    assert "line 2: 11 bytes are too many for an item" in result.stderr
    assert payloads(client, queue) == [b"short", b"last"]


def test_a_stream_with_a_request_id_can_be_repeated(cli: CommandLine, client: Client, queue: str) -> None:
    text = "".join(f"{number}\n" for number in range(1_500))
    words = ("queue", "produce", queue, "--lines", "--request-id", "night")
    assert cli(*words, input=text).stderr == f"produced 1,500 items to '{queue}'\n"
    assert cli(*words, input=text).stderr == f"produced 0 items to '{queue}' (1,500 were there already)\n"
    assert len(payloads(client, queue)) == 1_500


def test_a_stream_that_broke_off_says_what_it_added_and_what_was_there(
    cli: CommandLine, client: Client, queue: str
) -> None:
    words = ("queue", "produce", queue, "--lines", "--request-id", "night", "-o", "json")
    cli.ok(*words, input="x\n" * 1_000)
    again = json.loads(cli.ok(*words, input="x\n" * 1_300))
    assert (again["produced"], again["repeated"]) == (300, 1_000)
    assert len(payloads(client, queue)) == 1_300


def test_an_answer_that_was_lost_does_not_make_new_items_old_ones(tmp_path: Path) -> None:
    """Without --request-id, request ids are new. Only an earlier attempt of the same command can have used them."""
    with ScriptedDaemon(tmp_path, serving(REPEATED)) as daemon:
        answer = CommandLine(tmp_path, daemon.socket).json("queue", "produce", "q", "--lines", input="a\nb\n")
    assert (answer["produced"], answer["repeated"]) == (2, 0)


def test_an_unknown_queue_is_told_before_anything_is_read(cli: CommandLine) -> None:
    assert cli("queue", "produce", "nope", "--lines", input="a\n").exit_code == 4


def test_batches_stay_below_the_limits_of_a_request(tmp_path: Path) -> None:
    text = (b"x" * 1_000_000 + b"\n") * 9
    with ScriptedDaemon(tmp_path, serving(OK)) as daemon:
        CommandLine(tmp_path, daemon.socket).ok("queue", "produce", "q", "--lines", "--request-id", "x", input=text)
    produced = [asked for asked in daemon.asked if asked.path == "/v1/queue.produce"]
    assert [len(asked.request["items"]) for asked in produced] == [3, 3, 3]
    assert all(int(asked.headers["Content-Length"]) <= 5_000_000 for asked in produced)


def test_every_batch_has_a_request_id_of_its_own(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serving(OK)) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        cli.ok("queue", "produce", "q", "--lines", input="x\n" * 2_000)
        cli.ok("queue", "produce", "q", "--lines", "--request-id", "mine", input="x\n" * 2_000)
    ids = [asked.request["request_id"] for asked in daemon.asked if asked.path == "/v1/queue.produce"]
    assert len(set(ids)) == len(ids) == 4
    assert ids[2:] == ["mine.1", "mine.2"]


def test_a_failing_daemon_is_reported_with_where_to_go_on(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serving(OK, refusal(500, "Internal Error"))) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        result = cli("queue", "produce", "q", "--lines", "--request-id", "x", input="x\n" * 5_000)
    assert result.exit_code == 3
    assert "produced 1,000 items to 'q', then: Internal Error" in result.stderr
    assert "continue with line 1001" in result.stderr


def test_a_refused_batch_is_told_by_its_lines(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, serving(refusal(400, "items is invalid"), OK)) as daemon:
        cli = CommandLine(tmp_path, daemon.socket)
        result = cli("queue", "produce", "q", "--lines", "--request-id", "x", input="x\n" * 1_500)
    assert result.exit_code == 3
    assert "lines 1-1000: items is invalid" in result.stderr
    assert "produced 500 items to 'q', 1,000 lines failed" in result.stderr


def test_ctrl_c_says_what_was_done(cli: CommandLine, client: Client, queue: str) -> None:
    process = cli.process("queue", "produce", queue, "--lines", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert client.lease(queue).items[0].payload == b"one"  # lines from a slow pipe are sent at once
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 130
    assert "interrupted: produced 1 item" in told
    assert "continue with line 2" in told


def test_progress_is_shown_on_a_terminal_only(cli: CommandLine, queue: str) -> None:
    text = "x\n" * 3_000
    looking = Terminals(stdout=True, stderr=True)
    assert "producing to" in cli("queue", "produce", queue, "--lines", input=text, terminals=looking).stderr
    assert "producing to" not in cli("queue", "produce", queue, "--lines", input=text).stderr
    quiet = cli("queue", "produce", queue, "--lines", input=text, terminals=looking, env={"QUERATOR_NO_PROGRESS": "1"})
    assert "producing to" not in quiet.stderr


# Lines


def chunked(*chunks: bytes) -> io.BufferedReader:
    remaining = list(chunks)

    class Raw(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            chunk = remaining.pop(0) if remaining else b""
            buffer[: len(chunk)] = chunk
            return len(chunk)

    return io.BufferedReader(Raw())


def test_lines_come_as_they_are_read() -> None:
    stream = chunked(b"a\nb", b"c\n", b"d")
    assert list(read_lines(stream, 100)) == [Lines(1, [b"a"]), Lines(2, [b"bc"]), Lines(3, [b"d"])]


def test_long_lines_cost_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "READ_BYTES", 4)
    stream = io.BytesIO(b"ok\n" + b"x" * 50 + b"\nyes\n" + b"y" * 20)
    found = list(read_lines(stream, 10))
    assert [one for one in found if isinstance(one, TooLong)] == [TooLong(2, 50), TooLong(4, 20)]
    assert [line for one in found if isinstance(one, Lines) for line in one.lines] == [b"ok", b"yes"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_way_of_cutting_a_stream_gives_the_same_lines(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "READ_BYTES", size)
    data = b"a\n\nbb\r\n" + b"c" * 12 + b"\nlast"
    found = [
        (one.first + at, line)
        for one in read_lines(io.BytesIO(data), 12)
        if isinstance(one, Lines)
        for at, line in enumerate(one.lines)
    ]
    assert found == [(1, b"a"), (2, b""), (3, b"bb\r"), (4, b"c" * 12), (5, b"last")]
