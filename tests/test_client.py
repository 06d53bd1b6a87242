"""The client: what it sends, and what it does when the daemon is slow, busy or gone."""

# ruff: noqa: SIM117 - the outer "with" is the setting, the inner one what is tested

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from querator import AsyncClient, Client, errors
from querator.client import catalogue
from querator.client.attempts import Attempts, Call
from querator.client.clients import Method, _Calls
from querator.client.connection import Address, ConnectionLost, parse_address
from querator.errors import Conflict, NotFound, QueratorError, RetryRequest, TimedOut, Unreachable, UsageError
from querator.wire.messages import QueueProduceRequest, QueueStatsRequest
from tests.scripted import OK, Answer, Asked, Drop, ScriptedDaemon, refusal

NO_ITEMS = refusal(454, "request timeout; no items are in the queue, try again")
LEASE = (200, {"queue_name": "q", "partition": 1, "items": [{"id": "a", "bytes": "b25l"}, {"id": "b"}]})


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("querator.client.attempts.BACKOFF_SECONDS_MIN", 0.0)


def client_of(daemon: ScriptedDaemon, **settings: Any) -> Client:
    return Client(daemon.endpoint, **settings)


# What is sent


def test_a_produce_carries_its_items_a_timeout_and_a_request_id(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, OK) as daemon, client_of(daemon, timeout=20) as client:
        client.produce(
            "q", ["one", b"\xff", catalogue.produce_item("three", kind="k", enqueue_at="2030-01-01T00:00:00Z")]
        )
    (asked,) = daemon.asked
    assert asked.path == "/v1/queue.produce"
    assert asked.request["items"] == [
        {"bytes": "b25l"},
        {"bytes": "/w=="},
        {"bytes": "dGhyZWU=", "kind": "k", "enqueue_at": "2030-01-01T00:00:00Z"},
    ]
    assert len(asked.request["request_id"]) == 32
    assert asked.request["request_timeout"] in ("20s", "19.999s", "19.998s")


def test_a_single_payload_needs_no_list(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, OK) as daemon, client_of(daemon) as client:
        client.produce("q", "one", request_id="mine")
    assert daemon.asked[0].request["items"] == [{"bytes": "b25l"}]
    assert daemon.asked[0].request["request_id"] == "mine"


def test_a_token_travels_as_a_bearer_header(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, OK) as daemon, client_of(daemon, token="secret") as client:
        client.complete("q", ["a"])
    assert daemon.asked[0].headers["Authorization"] == "Bearer secret"


def test_one_connection_serves_many_calls(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, OK) as daemon, client_of(daemon) as client:
        client.complete("q", ["a"])
        first = client._pool._idle[0]
        client.complete("q", ["b"])
        assert client._pool._idle[0] is first


def test_every_call_is_a_method_of_both_clients() -> None:
    described = {
        name
        for name, value in vars(catalogue).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and "Call[" in str(value.__annotations__.get("return"))
    }
    offered = {name for name, value in vars(_Calls).items() if isinstance(value, Method)}
    assert offered == described


# What is repeated


def test_454_is_retried_with_the_same_request_id(tmp_path: Path) -> None:
    busy = refusal(454, "queue is overloaded; try again later")
    with ScriptedDaemon(tmp_path, busy, busy, OK) as daemon, client_of(daemon) as client:
        client.produce("q", "one")
    ids = {asked.request["request_id"] for asked in daemon.asked}
    assert len(daemon.asked) == 3
    assert len(ids) == 1


@pytest.mark.parametrize("trouble", [refusal(454, "try again"), refusal(453, "queue is shutting down"), Drop()])
def test_only_the_first_request_with_a_new_id_says_that_it_is_the_first(tmp_path: Path, trouble: Any) -> None:
    with ScriptedDaemon(tmp_path, trouble, OK, OK, OK) as daemon, client_of(daemon) as client:
        client.produce("q", "one")
        client.produce("q", "two")
        client.produce("q", "three", request_id="mine")
    said = [asked.request.get("first_attempt", False) for asked in daemon.asked]
    assert said == [True, False, True, False]


def test_a_request_that_was_never_sent_stays_the_first(tmp_path: Path) -> None:
    call = catalogue.produce("q", "one")
    attempts = Attempts(call, 10, patient=True)
    attempts.delay_after(Unreachable("nobody is there"))
    assert isinstance(call.request, QueueProduceRequest) and call.request.first_attempt
    attempts.delay_after(ConnectionLost("gone"))
    assert not call.request.first_attempt


def test_a_lost_connection_is_retried_when_that_does_no_harm(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, Drop(), OK) as daemon, client_of(daemon) as client:
        client.produce("q", "one")
    assert len(daemon.asked) == 2


def test_a_lost_connection_is_an_error_when_the_call_may_have_arrived(tmp_path: Path) -> None:
    with (
        ScriptedDaemon(tmp_path, Drop(), OK) as daemon,
        client_of(daemon) as client,
        pytest.raises(ConnectionLost),
    ):
        client.create_queue("q")
    assert len(daemon.asked) == 1


@pytest.mark.parametrize("what", ["service", "queue"])
def test_a_daemon_that_shuts_down_is_waited_for(tmp_path: Path, what: str) -> None:
    leaving = refusal(453, f"{what} is shutting down")
    with ScriptedDaemon(tmp_path, leaving, OK) as daemon, client_of(daemon) as client:
        client.produce("q", "one")
    assert len(daemon.asked) == 2


def test_an_impatient_client_says_at_once_that_nobody_is_there(tmp_path: Path) -> None:
    client = Client(f"unix:{tmp_path}/nothing.sock", patient=False)
    with pytest.raises(Unreachable, match="there is no such socket") as caught:
        client.list_queues()
    assert caught.value.exit_code == 6
    assert "daemon run" in caught.value.hint


def test_a_patient_client_gives_up_when_its_time_is_up(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        Client(f"unix:{tmp_path}/nothing.sock", timeout=0.05).list_queues()


def test_a_stale_connection_is_replaced(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, OK) as daemon:
        client = client_of(daemon)
        client.complete("q", ["a"])
    daemon.socket.unlink()
    with ScriptedDaemon(tmp_path, OK):
        client.complete("q", ["a"])


class ManualTime:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempts_of(clock: ManualTime, timeout: float, *, patient: bool = True, repeatable: bool = True) -> Attempts:
    call: Call[None] = Call("queue.stats", QueueStatsRequest(), lambda _: None, repeatable=repeatable)
    return Attempts(call, timeout, patient=patient, now=clock, jitter=lambda: 1.0)


def test_back_off_grows_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("querator.client.attempts.BACKOFF_SECONDS_MIN", 0.05)
    attempts = attempts_of(ManualTime(), 1000)
    delays = [attempts.delay_after(RetryRequest("busy")) for _ in range(8)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_nothing_is_tried_beyond_the_callers_timeout() -> None:
    clock = ManualTime()
    attempts = attempts_of(clock, 10)
    attempts.delay_after(RetryRequest("busy"))
    clock.now += 10
    with pytest.raises(RetryRequest):
        attempts.delay_after(RetryRequest("busy"))


@pytest.mark.parametrize("error", [NotFound("x"), errors.InternalError(), TimedOut("x")])
def test_other_errors_are_not_repeated(error: QueratorError) -> None:
    with pytest.raises(type(error)):
        attempts_of(ManualTime(), 10).delay_after(error)


# Errors


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (400, "queue does not exist; no such queue named 'q'", NotFound),
        (400, "invalid queue; 'q' already exists", Conflict),
        (400, "items cannot be empty", errors.InvalidRequest),
        (401, "no", errors.Unauthorized),
        (453, "namespace storage not configured", errors.RequestFailed),
        (455, "what", errors.ContentError),
        (500, "Internal Error", errors.InternalError),
        (501, "no such method; /v1/x", errors.UnknownMethod),
    ],
)
def test_refusals_become_errors_of_the_tree(tmp_path: Path, code: int, message: str, kind: type[QueratorError]) -> None:
    with ScriptedDaemon(tmp_path, refusal(code, message)) as daemon, client_of(daemon) as client:
        with pytest.raises(kind) as caught:
            client.queue_info("q")
    assert type(caught.value) is kind
    assert caught.value.message == message


def test_an_answer_that_is_not_ours_is_told_apart(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, (502, b"<html>")) as daemon, client_of(daemon) as client:
        with pytest.raises(QueratorError, match="without an error of the daemon"):
            client.queue_info("q")


# Leased


def test_leased_items_are_completed_when_the_block_ends(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, LEASE, OK) as daemon, client_of(daemon) as client:
        with client.leased("q", 2) as items:
            assert [item.bytes_ for item in items] == [b"one", b""]
    assert [asked.path for asked in daemon.asked] == ["/v1/queue.lease", "/v1/queue.complete"]
    assert daemon.asked[0].request["batch_size"] == 2
    assert daemon.asked[1].request["ids"] == ["a", "b"]


def test_leased_items_are_handed_back_when_the_block_raises(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, LEASE, OK) as daemon, client_of(daemon) as client:
        with pytest.raises(ZeroDivisionError), client.leased("q", 2):
            raise ZeroDivisionError
    assert daemon.asked[1].path == "/v1/queue.retry"
    assert daemon.asked[1].request["items"] == [
        {"id": "a", "reason": "ZeroDivisionError"},
        {"id": "b", "reason": "ZeroDivisionError"},
    ]


def test_the_blocks_own_exception_survives_a_failing_hand_back(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, LEASE, refusal(500, "Internal Error")) as daemon, client_of(daemon) as client:
        with pytest.raises(ZeroDivisionError), client.leased("q", 2):
            raise ZeroDivisionError


def test_leased_is_empty_when_nothing_came(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, NO_ITEMS) as daemon, client_of(daemon) as client:
        with client.leased("q", 2, timeout=0.02) as items:
            assert items == []


# Batches


def two_batches() -> Callable[[Asked], Answer]:
    leases = [LEASE, LEASE]

    def answer(asked: Asked) -> Answer:
        if asked.path == "/v1/queue.lease":
            return leases.pop(0) if leases else NO_ITEMS
        return OK

    return answer


def test_a_batch_is_completed_by_the_request_that_leases_the_next(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, two_batches()) as daemon, client_of(daemon, timeout=0.02) as client:
        assert [[item.id for item in items] for items in client.batches("q", 2)] == [["a", "b"], ["a", "b"]]
    leases = [asked.request.get("complete_ids", []) for asked in daemon.asked if asked.path == "/v1/queue.lease"]
    assert leases[:3] == [[], ["a", "b"], ["a", "b"]]
    assert daemon.asked[-1].path == "/v1/queue.complete"


def test_leaving_the_loop_hands_the_batch_back(tmp_path: Path) -> None:
    with ScriptedDaemon(tmp_path, LEASE, OK) as daemon, client_of(daemon) as client:
        for _ in client.batches("q", 2):
            break
    assert [asked.path for asked in daemon.asked] == ["/v1/queue.lease", "/v1/queue.retry"]


# AsyncClient


def test_the_async_client_does_the_same() -> None:
    """Connects the client to an ASGI app in this process, with a transport of httpx."""
    asked: list[dict[str, Any]] = []
    answers = [NO_ITEMS, LEASE, OK]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        asked.append({"path": scope["path"], **msgspec.json.decode(body)})
        code, content = answers.pop(0)  # type: ignore[misc]
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(content)})

    async def scenario() -> None:
        import httpx

        async with AsyncClient(transport=httpx.ASGITransport(application)) as client:
            async with client.leased("q", 2) as items:
                assert [item.id for item in items] == ["a", "b"]

    asyncio.run(scenario())
    assert [one["path"] for one in asked] == ["/v1/queue.lease", "/v1/queue.lease", "/v1/queue.complete"]


def test_the_async_client_speaks_to_a_socket(tmp_path: Path) -> None:
    async def scenario(endpoint: str) -> None:
        async with AsyncClient(endpoint) as client:
            await client.produce("q", "one")

    with ScriptedDaemon(tmp_path, Drop(), OK) as daemon:
        asyncio.run(scenario(daemon.endpoint))
    assert len(daemon.asked) == 2


def test_async_batches(tmp_path: Path) -> None:
    async def scenario(endpoint: str) -> list[str]:
        async with AsyncClient(endpoint, timeout=0.02) as client:
            return [item.id async for items in client.batches("q", 2) for item in items]

    with ScriptedDaemon(tmp_path, two_batches()) as daemon:
        assert asyncio.run(scenario(daemon.endpoint)) == ["a", "b", "a", "b"]
    assert daemon.asked[-1].path == "/v1/queue.complete"


def test_the_async_client_says_that_nobody_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncClient(f"unix:{tmp_path}/nothing.sock", patient=False) as client:
            await client.list_queues()

    with pytest.raises(Unreachable):
        asyncio.run(scenario())


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://localhost:2319", Address("", "http", "localhost", 2319)),
        ("http://localhost:2319/", Address("", "http", "localhost", 2319)),
        ("https://queue.example/prefix/", Address("", "https", "queue.example", 443, "/prefix")),
        ("unix:/run/q.sock", Address("/run/q.sock")),
        ("unix:///run/q.sock", Address("/run/q.sock")),
        ("/run/q.sock", Address("/run/q.sock")),
    ],
)
def test_addresses_are_understood(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "localhost:2319", "ftp://x", "http://", "unix:", "http://x:99999999"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    ["http://joe:secret@h:1", "http://secret@h", "joe:secret@h:2319", "http://h:x@secret:y", "https://h/?t=secret"],
)
def test_an_address_with_a_secret_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UsageError, match="no user, password or query") as caught:
        parse_address(text)
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"
