"""The answers to calls, on the fast path and on the ASGI path (wire contract 1.2 to 1.6)."""

from __future__ import annotations

import json

import pytest

from querator.daemon.http import routes
from querator.daemon.http.routes import over_limit_text
from querator.wire import messages, protobuf
from tests.transport.front import Front, produce, request

JSON, PROTOBUF = "application/json", "application/protobuf"
REPLY_OK = b"\x08\xc8\x01"


def error(code: int, text: str, message: str) -> dict[str, object]:
    return {"code": code, "code_text": text, "message": message}


# Success and failure


def test_a_plain_success(front: Front) -> None:
    answer = front.ask(produce())
    assert (answer.status, answer.json) == (200, {"code": 200})
    assert answer.headers["content-type"] == JSON
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "date" in answer.headers and "server" not in answer.headers


def test_a_reply_with_data(front: Front) -> None:
    answer = front.ask(request("/v1/queue.lease", b'{"queue_name": "q"}'))
    assert answer.json == {"queue_name": "q", "partition": 3, "items": [{"id": "i", "bytes": "cGF5bG9hZA=="}]}


def test_protobuf_in_json_out(front: Front) -> None:
    body = protobuf.encode(messages.QueueProduceRequest(queue_name="bad"))
    answer = front.ask(request("/v1/queue.produce", body, f"Content-Type: {PROTOBUF}"))
    assert answer.headers["content-type"] == JSON
    assert (answer.status, answer.json) == (400, error(400, "Bad Request", "no good; 'é'"))


def test_json_in_protobuf_out(front: Front) -> None:
    answer = front.ask(produce("q", f"Accept: {PROTOBUF}"))
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, PROTOBUF, REPLY_OK)


def test_an_error_in_protobuf(front: Front) -> None:
    answer = front.ask(produce("bad", f"Accept: {PROTOBUF}"))
    reply = protobuf.decode(messages.Reply, answer.body)
    assert (answer.status, reply.code, reply.code_text, reply.message) == (400, 400, "Bad Request", "no good; 'é'")


def test_an_empty_protobuf_body_is_all_defaults(front: Front) -> None:
    assert front.ask(request("/v1/queue.produce", b"", f"Content-Type: {PROTOBUF}")).status == 200
    assert front.service.requests[-1] == ("queue.produce", messages.QueueProduceRequest())


def test_an_answer_that_comes_later(front: Front) -> None:
    assert front.ask(produce("later")).json == {"code": 200}


def test_a_second_answer_is_ignored(front: Front) -> None:
    wire = front.connect()
    for _ in range(3):
        wire.send(produce("twice"))
        assert wire.answer().json == {"code": 200}


@pytest.mark.parametrize("queue", ["boom", "unspeakable"])
def test_a_defect_is_an_internal_error_and_nothing_leaks(
    front: Front, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = front.ask(produce(queue))
    assert (answer.status, answer.json) == (500, error(500, "Internal Service Error", "Internal Error"))
    assert "Traceback" in caplog.text
    assert front.ask(produce()).status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"null", b'{"queue_name": 1}', b'{"nope": 1}', b'{"queue_name": "\xff"}'])
def test_a_body_that_cannot_be_decoded(front: Front, body: bytes) -> None:
    answer = front.ask(request("/v1/queue.produce", body))
    assert answer.status == 455
    assert answer.json["code_text"] == "Client Content Error" and answer.json["message"]
    assert front.service.requests == []


# Heads


@pytest.mark.parametrize(
    "header",
    [
        "",
        "*/*",
        "application/*",
        JSON,
        "Application/JSON; charset=utf-8",
        "  application/json  ; x",
        ";",
        ", text/html",
    ],
)
def test_content_types_that_mean_json(front: Front, header: str) -> None:
    assert front.ask(produce("q", f"Content-Type: {header}")).status == 200


@pytest.mark.parametrize("header", ["text/plain", "a/b; q=1", "application/jsonx", "text/*"])
def test_a_content_type_that_is_refused(front: Front, header: str) -> None:
    message = f"Content-Type header '{header}' is invalid format or unrecognized content type"
    answer = front.ask(produce("q", f"Content-Type: {header}"))
    assert (answer.status, answer.json["message"]) == (455, message)
    assert front.service.requests == []


@pytest.mark.parametrize(
    ("header", "shown"), [("text/html", "text/html"), ("text/html ; q=1", "text/html "), ("Text/X,*/*", "Text/X")]
)
def test_an_accept_that_is_refused_before_anything_is_done(front: Front, header: str, shown: str) -> None:
    answer = front.ask(produce("q", f"Accept: {header}"))
    assert answer.status == 455
    assert answer.json["message"] == (
        f"Accept header '{shown}' is invalid format or unrecognized content type, "
        "only [application/json,application/protobuf] are supported by this method"
    )
    assert front.service.requests == []


@pytest.mark.parametrize("header", ["Basic eA==", "Bearer", "Bearer ", "bearer x", "x"])
def test_an_authorization_of_the_wrong_form(front: Front, header: str) -> None:
    answer = front.ask(produce("q", f"Authorization: {header}"))
    assert (answer.status, answer.json) == (401, error(401, "Unauthorized", "invalid authorization header format"))


@pytest.mark.parametrize("header", ["Bearer x", ""])
def test_any_token_passes(front: Front, header: str) -> None:
    assert front.ask(produce("q", f"Authorization: {header}")).status == 200


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (request("/v1/nope", b"{", method="GET"), 400, "http method 'GET' not allowed; only POST"),
        (request("/health", method="PUT"), 400, "http method 'PUT' not allowed; only POST"),
        (request("/v1/queue.produce", method="post"), 400, "http method 'post' not allowed; only POST"),
        (request("/v1/queue.produce", method="CONNECT"), 400, "http method 'CONNECT' not allowed; only POST"),
        (request("/v1/queue.produce", method="FROB"), 400, "http method 'FROB' not allowed; only POST"),
        (request("/v1/nope", b"{", "Authorization: x"), 401, "invalid authorization header format"),
        (request("/v1/nope", b"{", "Content-Type: x"), 501, "no such method; /v1/nope"),
        (request("/v1/n%6Fpe?x=1"), 501, "no such method; /v1/nope"),
        (request("/v1/queue.produce/"), 501, "no such method; /v1/queue.produce/"),
        (request("//v1/queue.produce"), 501, "no such method; //v1/queue.produce"),
        (request("/v1/a%0Ab"), 501, "no such method; /v1/a\nb"),
        (request("/health"), 501, "no such method; /health"),
        (request("/metrics"), 501, "no such method; /metrics"),
        (request("/v1/clock.advance"), 501, "no such method; /v1/clock.advance"),
        (request("/v1/nope", b"{", "Accept: text/x", method="GET"), 455, None),
    ],
)
def test_which_error_wins(front: Front, data: bytes, status: int, message: str | None) -> None:
    answer = front.ask(data)
    assert answer.status == status
    assert message is None or answer.json["message"] == message
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_head_gets_the_headers_only(front: Front) -> None:
    wire = front.connect()
    wire.send(request("/health", b"", method="HEAD") + produce())
    answer = wire.answer(head_only=True)
    assert answer.status == 400 and int(answer.headers["content-length"]) > 0
    assert wire.answer().json == {"code": 200}


@pytest.mark.parametrize("path", ["/v1/queue%2Eproduce", "/v1/queue.produce?x=1", "/v1/queue.produce"])
def test_paths_are_percent_decoded_and_queries_ignored(front: Front, path: str) -> None:
    assert front.ask(request(path, b'{"queue_name": "q"}')).status == 200
    assert front.service.requests[-1][0] == "queue.produce"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("namespaces.list", "namespace storage not configured"),
        ("roles.create", "namespace storage not configured"),
        ("users.delete", "user storage not configured"),
        ("apikeys.create", "user storage not configured"),
        ("apikeys.list", "api key storage not configured"),
        ("roles.update", "role storage not configured"),
        ("rolebindings.create", "role storage not configured"),
        ("rolebindings.list", "role binding storage not configured"),
    ],
)
def test_access_control_is_not_there(front: Front, path: str, message: str) -> None:
    answer = front.ask(request(f"/v1/{path}"))
    assert (answer.status, answer.json) == (453, error(453, "Request Failed", message))
    assert front.ask(request(f"/v1/{path}", b'{"foo": 1}')).status == 455


# The table


def test_only_the_short_way_avoids_asgi(front: Front) -> None:
    front.familiar(produce())
    before = front.seen_by_asgi
    assert front.ask(produce()).status == 200
    assert (front.seen_by_asgi == before) == (front.way != "asgi")


@pytest.mark.parametrize("route", routes.routes_by_path().values(), ids=lambda route: route.path)
def test_every_call_reaches_the_service_with_its_message(front: Front, route: routes.Route) -> None:
    answer = front.ask(request(f"/v1/{route.path}"))
    if route.refusal:
        assert answer.status == 453
    else:
        assert answer.status == 200
        path, message = front.service.requests[-1]
        assert path == route.path and type(message) is route.message


def test_the_clock_is_there_only_when_asked_for() -> None:
    assert "/v1/clock.advance" not in routes.routes_by_path()
    assert {"/v1/clock.advance", "/v1/clock.set"} <= routes.routes_by_path(test_clock=True).keys()


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (512, "512B"),
        (256_000, "250.0KiB"),
        (512_000, "500.0KiB"),
        (64_000_000, "61.0MiB"),
        (5_000_000, "5.0MB"),
        (64_000, "64.0kB"),
        (1_048_576, "1.0MiB"),
        (999, "999B"),
    ],
)
def test_sizes_in_words(limit: int, text: str) -> None:
    assert over_limit_text(limit) == f"request body exceeds {text} limit"


# What is not a call


def test_health(front: Front) -> None:
    response = front.get("/health")
    text = response.read()
    body = json.loads(text)
    assert (response.status, response.headers["content-type"]) == (200, "application/health+json")
    assert text.endswith(b"\n") and response.headers["x-content-type-options"] is None
    assert (body["status"], list(body), list(body["checks"])) == (
        "pass",
        ["status", "version", "releaseId", "checks"],
        ["queues:storage"],
    )
    (check,) = body["checks"]["queues:storage"]
    assert (check["componentType"], check["status"], set(check)) == (
        "datastore",
        "pass",
        {"componentType", "status", "time"},
    )


@pytest.mark.parametrize(("is_healthy", "status", "code"), [(True, "warn", 200), (False, "fail", 503)])
def test_health_says_what_is_wrong(
    front: Front, monkeypatch: pytest.MonkeyPatch, is_healthy: bool, status: str, code: int
) -> None:
    monkeypatch.setattr(front.service, "health", lambda caller: (is_healthy, "q/0: No space left on device"))
    response = front.get("/health")
    body = json.loads(response.read())
    (check,) = body["checks"]["queues:storage"]
    assert (response.status, body["status"], check["status"]) == (code, status, status)
    assert check["output"] == "q/0: No space left on device"


def test_health_and_metrics_ignore_accept_and_authorization(front: Front) -> None:
    for path in ("/health", "/metrics"):
        answer = front.ask(request(path, b"", "Accept: text/x", "Authorization: x", method="GET"))
        assert answer.status == 200


def test_metrics_count_every_path_on_both_ways(front: Front) -> None:
    def count(path: str) -> float:
        found = [
            line
            for line in front.get("/metrics").read().decode().splitlines()
            if line.startswith(f'http_handler_duration_count{{path="{path}"}}')
        ]
        return float(found[0].split()[-1]) if found else 0.0

    before = {path: count(path) for path in ("/v1/queue.produce", "/v1/nope", "/health", "/metrics")}
    wire = front.connect()
    for _ in range(3):
        wire.send(produce())
        wire.answer()
    front.get("/health").read()
    wire.send(request("/v1/n%6Fpe"))
    wire.answer()
    assert count("/v1/queue.produce") == before["/v1/queue.produce"] + 3
    assert count("/v1/nope") == before["/v1/nope"] + 1
    assert count("/health") == before["/health"] + 1
    assert count("/metrics") > before["/metrics"]
    response = front.get("/metrics")
    text = response.read().decode()
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8; escaping=values"
    for series in (
        'http_handler_duration{path="/v1/nope",quantile="0.99"}',
        'promhttp_metric_handler_requests_total{code="503"} 0.0',
        "promhttp_metric_handler_requests_in_flight",
        "querator_pass_seconds_bucket",
        "process_cpu_seconds_total",
    ):
        assert series in text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (request("/v1/queue.produce", b"{"), "Client Content Error"),
        (produce("boom"), "Internal Service Error"),
        (produce("bad"), "Bad Request"),
        (produce(), "OK"),
    ],
)
def test_the_words_behind_the_status_are_the_same_on_both_paths(front: Front, data: bytes, reason: str) -> None:
    wire = front.connect()
    for _ in range(2):
        wire.send(data)
        assert wire.answer().reason == reason
