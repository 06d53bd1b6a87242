"""Tokens: their text, and how they begin and end. An end acts on the next request and on waiting leases."""

from __future__ import annotations

import asyncio
import contextlib
import json
import string
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from querator import times
from querator.clock import ManualClock
from querator.config import AccessConfig
from querator.daemon.access import Access, token_text
from querator.daemon.catalog import Catalog
from tests.access.guarded import MINE, Answer, Guarded
from tests.transport.front import Wire
from tests.waiting import PATIENCE_SECONDS, until

LEASE = {"queue_name": MINE, "batch_size": 1, "client_id": "c", "request_timeout": "5m"}
PRODUCE = {"queue_name": MINE, "request_timeout": "1m", "items": [{"utf8": "x"}]}


def error(answer: Answer) -> tuple[int, str, str]:
    assert answer.status == answer.json["code"]
    return answer.status, answer.json["code_text"], answer.json["message"]


def refused(text: str) -> tuple[int, str, str]:
    return 401, "Unauthorized", text


class TestText:
    def test_it_has_a_tag_43_characters_of_secret_and_a_checksum(self) -> None:
        text = token_text.generate("viewer")
        tag, secret = text.removeprefix("qtr-").split("-")
        assert (tag, len(secret)) == ("viewer", 49)
        assert set(secret) <= set(string.ascii_letters + string.digits)
        assert token_text.is_well_formed(text.encode())

    def test_no_two_are_the_same(self) -> None:
        assert len({token_text.generate("x") for _ in range(1_000)}) == 1_000

    def test_a_slip_of_the_hand_anywhere_is_found_without_a_look_up(self) -> None:
        text = token_text.generate("viewer")
        for place in range(len(text)):
            other = "a" if text[place] != "a" else "b"
            assert not token_text.is_well_formed((text[:place] + other + text[place + 1 :]).encode())
            assert not token_text.is_well_formed((text[:place] + text[place + 1 :]).encode())

    def test_a_key_of_the_original_service_is_well_formed(self) -> None:
        assert token_text.is_well_formed(b"qtr-prod-" + b"0" * 43)

    @pytest.mark.parametrize(
        "text", ["", "qtr", "qtr--" + "0" * 43, "qtr-UP-" + "0" * 43, "qtr-x-" + "0" * 42, "qtr-x-" + "é" * 43]
    )
    def test_anything_else_is_not(self, text: str) -> None:
        assert not token_text.is_well_formed(text.encode())


class TestHeader:
    @pytest.mark.parametrize(
        ("header", "text"),
        [
            ("Basic eA==", "invalid authorization header format"),
            ("Bearer", "invalid authorization header format"),
            ("bearer qtr-x-1", "invalid authorization header format"),
            ("Bearer x", "api key is invalid"),
            ("Bearer qtr-x-" + "0" * 42, "api key is invalid"),
            ("Bearer qtr-x-" + "0" * 43, "api key does not exist"),
            ("Bearer  qtr-x-" + "0" * 43, "api key is invalid"),
            ("Bearer " + "x" * 20_000, "api key is invalid"),
        ],
    )
    def test_a_bad_one_is_told_as_the_contract_says(self, daemon: Guarded, header: str, text: str) -> None:
        for path in ("queue.produce", "nonsense", "bulk/items.plan", "sql"):
            assert error(daemon.ask(f"/v1/{path}", b"{}", Authorization=header)) == refused(text)

    def test_a_token_of_another_daemon_does_not_exist(self, daemon: Guarded) -> None:
        foreign = token_text.generate("admin")
        assert error(daemon.ask("/v1/queues.list", b"{}", foreign)) == refused("api key does not exist")

    @pytest.mark.parametrize("order", [1, -1])
    def test_two_headers_are_refused_even_if_one_is_right(self, daemon: Guarded, order: int) -> None:
        right = f"Authorization: Bearer {daemon.tokens['admin']}"
        lines = [right, "authorization: Bearer x"][::order]
        for both in (lines, [right, right]):
            head = "\r\n".join(["POST /v1/queues.list HTTP/1.1", "Host: x", *both, "Content-Length: 2"])
            answer = _raw(daemon, head.encode() + b"\r\n\r\n{}")
            assert error(answer) == refused("invalid authorization header format")

    def test_a_megabyte_of_it_is_refused(self, daemon: Guarded) -> None:
        head = b"POST /v1/queues.list HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"x" * 1_000_000 + b"\r\n\r\n"
        assert _raw(daemon, head).status == 400

    def test_a_token_in_the_address_lets_nobody_in(self, daemon: Guarded) -> None:
        token = daemon.tokens["admin"]
        assert daemon.ask(f"/v1/queues.list?token={token}&access_token={token}", b"{}").status == 401


def _raw(daemon: Guarded, data: bytes) -> Answer:
    host, _, port = daemon.http.rpartition(":")
    wire = Wire((host, int(port)))
    with contextlib.closing(wire):
        with contextlib.suppress(ConnectionError):
            wire.send(data)
        answer = wire.answer()
        return Answer(answer.status, answer.body, answer.headers)


@pytest.fixture(scope="module")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("clocked"), "--test-clock") as guarded:
        yield guarded


def moment(daemon: Guarded, seconds: int) -> str:
    now = daemon.admin("/v1/clock.advance", {"by": "0s"})["now"]
    return times.text(times.parse(now) + seconds * 1_000_000)


def waiting_leases(daemon: Guarded) -> int:
    stats = daemon.admin("/v1/queue.stats", {"queue_name": MINE})
    return int(stats["logicalQueues"][0].get("lease_waiting", 0))


def parked(daemon: Guarded, token: str, way: str) -> tuple[threading.Thread, list[Answer]]:
    """A lease that waits on an empty queue, on the hot path or in the ASGI app."""
    answers: list[Answer] = []

    def lease() -> None:
        connection = daemon.tcp()
        headers = {"Authorization": f"Bearer {token}"}
        if way == "hot":
            short = json.dumps({**LEASE, "client_id": way, "request_timeout": "11ms"})
            connection.request("POST", "/v1/queue.lease", short, headers)
            connection.getresponse().read()
        connection.request("POST", "/v1/queue.lease", json.dumps({**LEASE, "client_id": way}), headers)
        response = connection.getresponse()
        answers.append(Answer(response.status, response.read(), dict(response.getheaders())))
        connection.close()

    thread = threading.Thread(target=lease)
    thread.start()
    return thread, answers


class TestEnds:
    @pytest.mark.parametrize("way", ["hot", "asgi"])
    def test_revoking_ends_the_next_request_and_a_waiting_lease(self, daemon: Guarded, way: str) -> None:
        token = daemon.create_token(f"gone-{way}", "consumer")
        connection = daemon.tcp()
        headers = {"Authorization": f"Bearer {token}"}

        def complete() -> Any:
            connection.request("POST", "/v1/queue.complete", json.dumps({"queue_name": MINE}), headers)
            return json.loads(connection.getresponse().read())

        for _ in range(3):
            assert complete()["code"] == 400
        thread, answers = parked(daemon, token, way)
        until(lambda: waiting_leases(daemon) == 1)
        daemon.admin("/v1/tokens.revoke", {"name": f"gone-{way}"})
        thread.join(PATIENCE_SECONDS)
        assert error(answers[0]) == refused("api key does not exist")
        assert waiting_leases(daemon) == 0
        assert complete()["message"] == "api key does not exist"
        connection.close()

    @pytest.mark.parametrize("way", ["hot", "asgi"])
    def test_expiry_does_the_same(self, clocked: Guarded, way: str) -> None:
        token = clocked.create_token(f"brief-{way}", "consumer", expires_at=moment(clocked, 3_600))
        thread, answers = parked(clocked, token, way)
        until(lambda: waiting_leases(clocked) == 1)
        me = clocked.ask("/v1/tokens.whoami", b"{}", token).json
        assert me["name"] == f"brief-{way}" and me["expires_at"]
        clocked.admin("/v1/clock.advance", {"by": "1h"})
        thread.join(PATIENCE_SECONDS)
        assert error(answers[0]) == refused("api key has expired")
        assert error(clocked.ask("/v1/tokens.whoami", b"{}", token)) == refused("api key has expired")
        states = {one["name"]: one["state"] for one in clocked.admin("/v1/tokens.list", {})["items"]}
        assert states[f"brief-{way}"] == "expired"

    def test_expired_tokens_are_looked_for_when_the_next_one_expires(self, tmp_path: Path) -> None:
        clock = ManualClock()
        access, catalog = Access(AccessConfig(), clock, tmp_path), Catalog(tmp_path / "catalog.duckdb")
        access.load(catalog)
        assert access.seconds_until_check() == 1.0
        for name, seconds in (("soon", 0.25), ("later", 3_600.0)):
            ends_at = clock.now_us() + int(seconds * 1_000_000)
            asyncio.run(access.create(name, "viewer", [], ends_at, "test"))
        assert access.seconds_until_check() == 0.25
        catalog.close()

    def test_a_body_that_arrives_after_its_token_ended_is_not_carried_out(self, daemon: Guarded) -> None:
        host, _, port = daemon.http.rpartition(":")
        body = json.dumps(PRODUCE).encode()
        for is_learnt in (False, True):
            token = daemon.create_token("slow", "producer")
            lines = ["POST /v1/queue.produce HTTP/1.1", "Host: x", f"Authorization: Bearer {token}"]
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "\r\n"]).encode()
            with contextlib.closing(Wire((host, int(port)))) as wire:
                if is_learnt:
                    wire.send(head + body)
                    assert wire.answer().status == 200
                before = _total(daemon)
                wire.send(head + body[:10])
                daemon.admin("/v1/tokens.revoke", {"name": "slow"})
                with contextlib.suppress(ConnectionError):
                    wire.send(body[10:])
                assert wire.answer().status == 401
                assert _total(daemon) == before
        daemon.admin("/v1/queue.clear", {"queue_name": MINE, "queue": True})

    def test_a_rotated_token_has_two_secrets_until_the_grace_period_ends(self, clocked: Guarded) -> None:
        old = clocked.create_token("turning", "viewer", ["mine*"])
        new = clocked.admin("/v1/tokens.rotate", {"name": "turning", "grace": "1h"})["token"]
        for token in (old, new):
            assert clocked.ask("/v1/tokens.whoami", b"{}", token).json["queues"] == ["mine*"]
        listed = [one for one in clocked.admin("/v1/tokens.list", {})["items"] if one["name"] == "turning"]
        assert [one["state"] for one in listed] == ["replaced", "valid"]
        clocked.admin("/v1/clock.advance", {"by": "1h"})
        assert error(clocked.ask("/v1/tokens.whoami", b"{}", old)) == refused("api key has expired")
        assert clocked.ask("/v1/tokens.whoami", b"{}", new).status == 200

    def test_without_a_grace_period_the_old_secret_ends_at_once(self, daemon: Guarded) -> None:
        old = daemon.create_token("swapped", "viewer")
        new = daemon.admin("/v1/tokens.rotate", {"name": "swapped"})["token"]
        assert error(daemon.ask("/v1/tokens.whoami", b"{}", old)) == refused("api key does not exist")
        assert daemon.ask("/v1/tokens.whoami", b"{}", new).status == 200


def _total(daemon: Guarded) -> int:
    stats = daemon.admin("/v1/queue.stats", {"queue_name": MINE})
    return sum(one.get("total", 0) for one in stats["logicalQueues"][0]["partitions"])


class TestCalls:
    @pytest.mark.parametrize(
        ("body", "text"),
        [
            ({"name": "", "role": "viewer"}, "token name is invalid; cannot be empty"),
            ({"name": "a b", "role": "viewer"}, "token name is invalid; it can have letters"),
            ({"name": "x" * 65, "role": "viewer"}, "token name is invalid; cannot be greater than '64' characters"),
            ({"name": "n", "role": "king"}, "role is invalid; 'king' is none of viewer, producer"),
            ({"name": "n", "role": "admin", "queues": ["a"]}, "queues is invalid; an admin may do everything"),
            ({"name": "n", "role": "viewer", "queues": [""]}, "queues is invalid; a pattern has 1 to 512 bytes"),
            ({"name": "n", "role": "viewer", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at is invalid"),
            ({"name": "viewer-all", "role": "viewer"}, "token 'viewer-all' already exists"),
        ],
    )
    def test_a_bad_request_creates_nothing(self, daemon: Guarded, body: dict[str, Any], text: str) -> None:
        before = daemon.admin("/v1/tokens.list", {})
        status, answer = daemon.call("/v1/tokens.create", body)
        assert status == 400 and answer["message"].startswith(text), answer
        assert daemon.admin("/v1/tokens.list", {}) == before

    def test_what_does_not_exist_can_be_neither_revoked_nor_rotated(self, daemon: Guarded) -> None:
        for call in ("tokens.revoke", "tokens.rotate"):
            status, answer = daemon.call(f"/v1/{call}", {"name": "nobody"})
            assert (status, answer["message"]) == (400, "token does not exist; no such token 'nobody'")

    def test_a_list_shows_no_secret_and_the_last_use(self, daemon: Guarded) -> None:
        token = daemon.create_token("listed", "viewer", ["a", "b*"])
        daemon.ask("/v1/queues.list", {}, token)
        text = json.dumps(daemon.admin("/v1/tokens.list", {}))
        (one,) = (one for one in json.loads(text)["items"] if one["name"] == "listed")
        assert token not in text and token_text.digest(token.encode()) not in text
        assert one["prefix"] == token[: len("qtr-viewer-") + 8]
        assert (one["role"], one["queues"], one["created_by"]) == ("viewer", ["a", "b*"], "root")
        assert one["last_used_at"] >= one["created_at"]

    def test_the_secret_is_stored_nowhere(self, daemon: Guarded) -> None:
        secrets = [token.encode() for token in daemon.tokens.values()]
        for path in daemon.data.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not any(secret in content for secret in secrets), path
        log = daemon.output
        assert not any(secret.decode() in log for secret in secrets)


class TestRestart:
    def test_tokens_survive_and_a_daemon_that_had_tokens_stays_closed(self, tmp_path: Path) -> None:
        with Guarded(tmp_path, tokens=False) as daemon:
            assert daemon.ask("/v1/queues.list", b"{}").status == 200
            token = daemon.create_token("first", "viewer")
            assert daemon.ask("/v1/queues.list", b"{}").status == 401
            daemon.restart()
            assert daemon.ask("/v1/queues.list", b"{}").status == 401
            assert daemon.ask("/v1/queues.list", b"{}", token).status == 200
            daemon.admin("/v1/tokens.revoke", {"name": "first"})
            daemon.restart()
            assert daemon.ask("/v1/queues.list", b"{}").status == 401
            assert daemon.ask("/v1/queues.list", b"{}", token).json["message"] == "api key does not exist"

    def test_the_first_token_ends_what_came_in_without_one(self, tmp_path: Path) -> None:
        with Guarded(tmp_path, tokens=False) as daemon:
            daemon.client.create_queue(MINE)
            connection = daemon.tcp()

            def produce() -> int:
                connection.request("POST", "/v1/queue.produce", json.dumps(PRODUCE))
                response = connection.getresponse()
                response.read()
                return response.status

            assert [produce(), produce(), produce()] == [200, 200, 200]
            daemon.create_token("first", "viewer")
            assert produce() == 401
