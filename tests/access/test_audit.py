"""The audit log: every change and every denial is a line, durable before the answer, without payloads and secrets."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from querator import limits, times
from querator.client import BulkClient, Client
from querator.clock import ManualClock
from querator.config import AccessConfig
from querator.daemon.access import Access, Caller, CallerKind, Peer, audit
from querator.daemon.http.routes import AUDITED_STREAMS, routes_by_path
from querator.errors import Forbidden
from querator.items import Role
from querator.wire import arrow
from querator.wire import messages as m
from tests.access.guarded import MINE, OTHERS, Guarded
from tests.access.test_roles import CALLS, TABLE, harmless
from tests.waiting import until

SOMEBODY, HERE = Caller(CallerKind.TOKEN, "somebody", Role.OPERATOR), Peer("10.0.0.7:1")
YEAR_US = 365 * 24 * 3_600 * 1_000_000


def lines(daemon: Guarded) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (daemon.data / "audit.log").read_text().splitlines()]


class TestCalls:
    def test_what_changes_something_is_audited_and_nothing_else(self) -> None:
        audited = {path for path, route in TABLE.items() if route.audited}
        reads = {
            "queue.stats", "queues.list", "queues.info", "queues.history", "queues.overview", "storage/items.list",
            "storage/scheduled.list", "items.inspect", "sql", "partitions.list", "jobs.list", "jobs.show",
            "storages.list", "daemon.status", "tokens.list", "tokens.whoami", "audit.list",
        }  # fmt: skip
        hot = {"queue.produce", "queue.lease", "queue.complete", "queue.retry", "queue.extend"}
        tests = {"clock.advance", "clock.set"}
        unknown = {path for path, route in routes_by_path(test_clock=True).items() if route.refusal}
        refused = {path.removeprefix("/v1/") for path in unknown}
        assert audited == TABLE.keys() - reads - hot - tests - refused
        assert AUDITED_STREAMS == ("items.import",)

    @pytest.mark.parametrize("path", [path for path in CALLS if TABLE[path].audited])
    def test_each_of_them_is_a_line_before_its_answer(self, daemon: Guarded, path: str) -> None:
        before = len(lines(daemon))
        answer = daemon.ask(f"/v1/{path}", harmless(path, "mine-missing"), daemon.tokens["admin"])
        assert answer.status == 400
        (line,) = lines(daemon)[before:]
        assert (line["call"], line["who"], line["kind"]) == (path, "admin-all", "token")
        assert line["from"].startswith("127.0.0.1:")
        assert line["outcome"].startswith("400 ")
        assert line["ms"] >= 0 and line["at"].endswith("Z")

    def test_a_line_says_what_was_asked_and_never_a_payload(self, daemon: Guarded) -> None:
        daemon.client.produce(MINE, ["secret payload"] * 3)
        found = daemon.admin("/v1/storage/items.list", {"queue_name": MINE})["items"]
        ids = [item["id"] for item in found]
        daemon.admin("/v1/storage/items.import", {"queue_name": MINE, "items": [{"payload": "c2VjcmV0"}] * 2})
        daemon.admin("/v1/storage/items.delete", {"queue_name": MINE, "ids": ids, "purpose": "a test"})
        daemon.admin("/v1/partitions.pause", {"queue_name": MINE, "partitions": [0], "for": "1h"})
        daemon.admin("/v1/partitions.resume", {"queue_name": MINE})
        imported, deleted, paused, resumed = lines(daemon)[-4:]
        assert imported["asked"] == {"items_count": 2}
        assert deleted["asked"] == {"ids": ids, "purpose": "a test"}
        assert (paused["queue"], paused["partitions"], paused["asked"]) == (MINE, [0], {"for": "1h"})
        assert resumed["outcome"] == "done" and resumed["kind"] == "user" and resumed["from"].startswith("unix:")
        assert b"secret" not in (daemon.data / "audit.log").read_bytes()
        daemon.admin("/v1/queue.clear", {"queue_name": MINE, "queue": True})

    def test_a_token_is_audited_without_its_secret(self, daemon: Guarded) -> None:
        token = daemon.create_token("audited", "viewer", ["a*"])
        rotated = daemon.admin("/v1/tokens.rotate", {"name": "audited"})["token"]
        daemon.admin("/v1/tokens.revoke", {"name": "audited"})
        assert [line["call"] for line in lines(daemon)[-3:]] == ["tokens.create", "tokens.rotate", "tokens.revoke"]
        assert lines(daemon)[-3]["asked"] == {"name": "audited", "role": "viewer", "queues": ["a*"]}
        text = (daemon.data / "audit.log").read_text()
        assert not any(secret in text for secret in (token, rotated, *daemon.tokens.values()))

    def test_a_bulk_import_is_a_line_and_a_bulk_produce_is_none(self, daemon: Guarded) -> None:
        client = BulkClient(f"http://{daemon.http}", token=daemon.tokens["operator"])
        rows = pa.table({"payload": [b"x"]}, schema=pa.schema([arrow.PRODUCED.field("payload")]))
        before = len(lines(daemon))
        client.produce(MINE, rows.to_batches(), "p")
        assert lines(daemon)[before:] == []
        client.import_(MINE, rows.to_batches(), "i")
        (line,) = lines(daemon)[before:]
        assert (line["call"], line["queue"], line["who"], line["outcome"]) == (
            "bulk/items.import", MINE, "operator-all", "done",
        )  # fmt: skip
        daemon.admin("/v1/queue.clear", {"queue_name": MINE, "queue": True})

    def test_produce_lease_and_complete_are_not_audited(self, daemon: Guarded) -> None:
        before = len(lines(daemon))
        daemon.client.produce(MINE, ["x"])
        items = daemon.client.lease(MINE).items
        daemon.client.complete(MINE, [item.id for item in items])
        assert lines(daemon)[before:] == []

    def test_an_operator_who_takes_items_from_a_consumer_is_audited(self, daemon: Guarded) -> None:
        daemon.client.produce(MINE, ["x", "y"])
        items = daemon.client.lease(MINE, 2, client_id="worker-7").items
        client = Client(f"http://{daemon.http}", token=daemon.tokens["operator"])
        client.retry(MINE, [items[0].id])
        client.retry(MINE, [items[1].id], unused=True, purpose="release of worker-7")
        last = lines(daemon)[-1]
        assert (last["call"], last["who"], last["queue"]) == ("queue.release", "operator-all", MINE)
        assert last["asked"] == {"items_count": 1, "purpose": "release of worker-7"}
        assert "queue.retry" not in [line["call"] for line in lines(daemon)]
        daemon.admin("/v1/queue.clear", {"queue_name": MINE, "queue": True})

    def test_only_the_daemon_can_read_the_file(self, daemon: Guarded) -> None:
        assert stat.S_IMODE((daemon.data / "audit.log").stat().st_mode) == 0o600


@pytest.fixture(scope="module")
def denying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("denying")) as guarded:
        yield guarded


class TestDenials:
    def test_they_are_lines_of_every_way_in(self, denying: Guarded) -> None:
        narrow = denying.tokens["viewer of mine"]
        before = len(lines(denying))
        for path, sent in (("queue.produce", 1), ("queue.produce", 2), ("queues.info", 1), ("sql", 1)):
            assert denying.ask(f"/v1/{path}", {"queue_name": OTHERS}, narrow, times=sent).status == 403
        denying.ask("/v1/bulk/items.plan", {"queue_name": OTHERS}, narrow)
        denying.ask("/metrics", token=denying.tokens["producer"])
        denying.ask("/v1/queues.list", b"{}", "qtr-x-" + "0" * 43)
        denying.ask("/v1/queues.list", b"{}")
        expected = [
            *[("queue.produce", "viewer-mine", "403 access denied")] * 3,
            ("queues.info", "viewer-mine", "403 access denied"),
            ("sql", "viewer-mine", "403 access denied"),
            ("bulk/items.plan", "viewer-mine", "403 access denied"),
            ("/metrics", "producer-all", "403 access denied"),
            ("queues.list", "", "401 api key does not exist"),
            ("queues.list", "", "401 authentication required"),
        ]
        until(lambda: len(lines(denying)) == before + len(expected))
        found = lines(denying)[before:]
        assert [(line["call"], line["who"], line["outcome"]) for line in found] == expected
        assert found[0]["queue"] == OTHERS

    def test_an_attacker_cannot_fill_the_disk_with_them(self, denying: Guarded) -> None:
        for _ in range(5):
            denying.ask("/v1/queues.list", b"{}", times=20)
        size = len(lines(denying))
        assert size <= 20 + 20 * limits.AUDIT_DENIALS_PER_SOURCE_MAX  # a slow machine may need some minutes for this


class TestFile:
    """The log itself, with a clock that stands still."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(1_800_000_000_000_000)

    def write(self, access: Access, count: int, name: str = "q") -> None:
        async def run() -> None:
            for _ in range(count):
                done = asyncio.get_running_loop().create_future()
                request = m.QueuesDeleteRequest(queue_name=name)
                access.audit.changed(
                    SOMEBODY, HERE, "queues.delete", request, None, 0.001, lambda done=done: done.set_result(None)
                )
                await done

        asyncio.run(run())

    def test_it_is_rotated_by_size_and_kept_for_a_year(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "AUDIT_FILE_BYTES", 1_000)
        access = Access(AccessConfig(), clock, tmp_path)
        self.write(access, 30)
        first = sorted(tmp_path.glob("audit-*.log"))
        assert len(first) >= 3
        found = access.audit.read(0, 100, lambda line: True, oldest=True)
        moments = [times.parse(line.at) for line in found]
        assert len(found) == 30 and moments == sorted(set(moments))
        for block_bytes in (7, 100, 65_536):
            monkeypatch.setattr(audit, "_BLOCK_BYTES", block_bytes)
            assert access.audit.read(0, 17, lambda line: True, oldest=False) == found[-17:]
            assert access.audit.read(0, 99, lambda line: True, oldest=False) == found
        clock.set(clock.now_us() + YEAR_US + 1_000_000)
        self.write(access, 10, "later")
        assert not set(first) & set(tmp_path.glob("audit-*.log"))
        assert {line.queue for line in access.audit.read(0, 100, lambda line: True, oldest=True)} <= {"q", "later"}

    def test_a_line_that_a_crash_cut_off_spoils_no_other(self, tmp_path: Path, clock: ManualClock) -> None:
        access = Access(AccessConfig(), clock, tmp_path)
        self.write(access, 2)
        path = tmp_path / "audit.log"
        path.write_bytes(path.read_bytes()[:-20])
        self.write(access, 1, "after")
        assert [line.queue for line in access.audit.read(0, 9, lambda line: True, oldest=True)] == ["q", "after"]

    def test_a_log_that_cannot_be_written_is_told_and_tried_again(self, tmp_path: Path, clock: ManualClock) -> None:
        directory = tmp_path / "gone"
        access = Access(AccessConfig(), clock, directory)
        self.write(access, 1)
        assert "No such file" in access.audit.failure
        directory.mkdir()
        self.write(access, 1, "second")
        assert access.audit.failure == ""
        assert [line.queue for line in access.audit.read(0, 9, lambda line: True, oldest=True)] == ["q", "second"]

    def test_further_denials_are_counted(self, tmp_path: Path, clock: ManualClock) -> None:
        access = Access(AccessConfig(), clock, tmp_path)

        async def deny(count: int) -> None:
            for _ in range(count):
                access.audit.denied(SOMEBODY, HERE, "sql", ["q" * 10_000], Forbidden("access denied"))
            await access.audit.close()
            access.audit._is_closed = False

        asyncio.run(deny(limits.AUDIT_DENIALS_PER_SOURCE_MAX + 7))
        clock.set(clock.now_us() + limits.AUDIT_DENIALS_EVERY_US)
        access = _again(access, clock, tmp_path)
        asyncio.run(deny(1))
        found = access.audit.read(0, 100, lambda line: True, oldest=True)
        assert [line.unrecorded for line in found] == [0] * limits.AUDIT_DENIALS_PER_SOURCE_MAX + [7]
        assert len(found[0].queue) == limits.QUEUE_NAME_BYTES_MAX

    def test_a_flood_of_one_source_hides_no_other(self, tmp_path: Path, clock: ManualClock) -> None:
        access = Access(AccessConfig(), clock, tmp_path)
        flood, error = limits.AUDIT_DENIALS_MAX * 2, Forbidden("access denied")
        other = Caller(CallerKind.TOKEN, "other", Role.VIEWER)

        async def deny() -> None:
            for _ in range(flood):
                access.audit.denied(None, HERE, "sql", (), error)
                access.audit.denied(SOMEBODY, HERE, "sql", (), error)
            access.audit.denied(None, Peer("10.0.0.8:1"), "sql", (), error)
            for number in range(flood):
                access.audit.denied(None, Peer(f"10.0.1.{number}:1"), "sql", (), error)
            access.audit.denied(other, HERE, "sql", (), error)
            done = asyncio.get_running_loop().create_future()
            request = m.QueuesDeleteRequest(queue_name="q")
            access.audit.changed(other, HERE, "queues.delete", request, None, 0, lambda: done.set_result(None))
            await done

        asyncio.run(deny())
        found = access.audit.read(0, 1_000, lambda line: True, oldest=True)
        lines_by = Counter(line.who or line.address for line in found)
        assert lines_by["10.0.0.7:1"] == lines_by["somebody"] == limits.AUDIT_DENIALS_PER_SOURCE_MAX
        assert lines_by["10.0.0.8:1"] == 1 and lines_by["other"] == 2
        assert sum(not line.who for line in found) == limits.AUDIT_DENIALS_MAX
        assert len(found) + sum(line.unrecorded for line in found) == 3 * flood + 3


def _again(access: Access, clock: ManualClock, data: Path) -> Access:
    """The same counts, from a log whose thread still runs."""
    other = Access(AccessConfig(), clock, data)
    other.audit._unrecorded = access.audit._unrecorded
    return other


class TestReading:
    def test_it_can_be_asked_by_who_queue_and_time(self, daemon: Guarded) -> None:
        daemon.ask("/v1/queue.clear", {"queue_name": MINE, "queue": True}, daemon.tokens["operator"])
        daemon.ask("/v1/queue.clear", {"queue_name": OTHERS, "queue": True}, daemon.tokens["admin"])
        ours = daemon.client.list_audit(who="operator-*", queue=MINE, limit=1)
        assert [(one.who, one.call, one.queue_name) for one in ours] == [("operator-all", "queue.clear", MINE)]
        since = ours[0].at or 0
        later = daemon.client.list_audit(since=since + 1)
        assert [(one.who, one.queue_name) for one in later] == [("admin-all", OTHERS)]
        assert json.loads(later[0].asked) == {"queue": True}

    def test_the_log_survives_a_kill(self, tmp_path: Path) -> None:
        with Guarded(tmp_path) as daemon:
            daemon.admin("/v1/queues.delete", {"queue_name": OTHERS})
            daemon.kill()
            last = lines(daemon)[-1]
            assert (last["call"], last["queue"]) == ("queues.delete", OTHERS)
            assert os.path.getsize(daemon.data / "audit.log") > 0
