"""A web page of another site cannot use a daemon through the browser of somebody who may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.access.guarded import MINE, Guarded

OTHER_SITE = "authentication required; the request comes from a web page of another site"
OTHER_HOST = "authentication required; without a token, use localhost or an IP address as the daemon's host name"
PRODUCE = {"queue_name": MINE, "request_timeout": "1m", "items": [{"utf8": "x"}]}


@pytest.fixture(scope="module")
def open_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("open"), tokens=False) as daemon:
        daemon.client.create_queue(MINE)
        yield daemon


class TestWithoutTokens:
    @pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "null", "http://["])
    @pytest.mark.parametrize("path", ["queue.produce", "queues.list", "tokens.create", "bulk/items.plan", "sql"])
    def test_a_page_of_another_site_is_nobody(self, open_daemon: Guarded, path: str, origin: str) -> None:
        answer = open_daemon.ask(f"/v1/{path}", PRODUCE, times=2, Origin=origin)
        assert (answer.status, answer.json["message"]) == (401, OTHER_SITE)

    def test_the_head_of_another_client_does_not_let_it_in(self, open_daemon: Guarded) -> None:
        assert open_daemon.ask("/v1/queue.produce", PRODUCE, times=3).status == 200
        assert open_daemon.ask("/v1/queue.produce", PRODUCE, Origin="https://evil.example").status == 401

    def test_a_page_of_the_daemon_itself_may_ask(self, open_daemon: Guarded) -> None:
        assert open_daemon.ask("/v1/queue.produce", PRODUCE, Origin=f"http://{open_daemon.http}").status == 200

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:2319", "localhost.evil.example", "127.0.0.1.nip.io"]
    )
    def test_a_site_whose_name_points_to_this_machine_is_nobody(self, open_daemon: Guarded, host: str) -> None:
        for path, body in (
            ("/v1/queue.produce", PRODUCE),
            ("/v1/queues.list", {}),
            ("/metrics", None),
            ("/health", None),
        ):
            answer = open_daemon.ask(path, body, Host=host, Origin=f"http://{host}")
            assert (answer.status, answer.json["message"]) == (401, OTHER_HOST), path

    def test_its_pages_do_not_see_the_console(self, open_daemon: Guarded) -> None:
        answer = open_daemon.ask("/console/", Host="evil.example")
        assert (answer.status, answer.headers["location"]) == (303, "/console/sign-in?to=%2F")
        assert b"use localhost or an IP address" in open_daemon.ask("/console/sign-in", Host="evil.example").body

    @pytest.mark.parametrize("host", ["localhost", "localhost:2319", "q.localhost", "127.0.0.2:1", "[::1]:2319", "box"])
    def test_names_that_no_site_can_have_are_served(self, open_daemon: Guarded, host: str) -> None:
        assert open_daemon.ask("/v1/queues.list", {}, Host=host).status == 200


class TestWithTokens:
    def test_a_token_counts_wherever_it_comes_from(self, daemon: Guarded) -> None:
        token = daemon.tokens["producer"]
        headers = {"Host": "queue.example", "Origin": "https://app.example"}
        assert daemon.ask("/v1/queue.produce", PRODUCE, token, **headers).status == 200

    @pytest.mark.parametrize("order", [1, -1])
    def test_the_console_refuses_two_authorization_headers_too(self, daemon: Guarded, order: int) -> None:
        lines = [b"Bearer " + daemon.tokens["admin"].encode(), b"Bearer x"][::order]
        connection = daemon.tcp()
        connection.putrequest("GET", "/console/")
        for line in lines:
            connection.putheader("Authorization", line)
        connection.endheaders()
        assert connection.getresponse().status == 303


class TestConsoleAttempts:
    def test_a_token_that_the_console_refuses_is_in_the_audit_log(self, daemon: Guarded) -> None:
        assert daemon.ask("/console/", Authorization="Bearer wrong").status == 303
        lines = daemon.admin("/v1/audit.list", {"limit": 100})["items"]
        assert any(line["call"] == "console" and line["outcome"] == "401 api key is invalid" for line in lines)


@pytest.mark.parametrize("host", ["x:abc", "[", "x:99999999", "x:-1", "é"])
def test_a_malformed_host_is_not_a_defect_of_the_console(open_daemon: Guarded, host: str) -> None:
    assert open_daemon.ask("/console/", Host=host).status in (200, 303)


def test_a_malformed_form_is_not_a_defect_of_the_console(open_daemon: Guarded) -> None:
    own = {"Cookie": f"querator_console_{open_daemon.http.rpartition(':')[2]}=x"}
    for origin in ("http://[", f"http://{open_daemon.http}"):
        answer = open_daemon.ask("/console/act/pause", "token=é".encode(), method="POST", Origin=origin, **own)
        assert answer.status == 403
