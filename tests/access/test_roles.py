"""Every call, stream and page, by every role: with a pattern that matches, with one that does not, and with no token.

The right that each of them needs is listed here a second time, by hand, so that a wrong entry in the table of routes is
found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from querator.daemon.http.routes import PAGES, STREAMS, routes_by_path
from tests.access.guarded import MINE, MISSING, OTHERS, ROLES, Answer, Guarded

DENIED = {"code": 403, "code_text": "Forbidden", "message": "access denied"}
NOBODY = {"code": 401, "code_text": "Unauthorized", "message": "authentication required"}

VIEWERS = frozenset(("viewer", "operator", "admin"))
PRODUCERS = frozenset(("producer", "operator", "admin"))
CONSUMERS = frozenset(("consumer", "operator", "admin"))
OPERATORS = frozenset(("operator", "admin"))
ADMINS = frozenset(("admin",))
NEEDS: dict[str, frozenset[str]] = {
    "queue.produce": PRODUCERS,
    **dict.fromkeys(("queue.lease", "queue.complete", "queue.retry", "queue.release", "queue.extend"), CONSUMERS),
    **dict.fromkeys(
        (
            "queue.stats",
            "queues.info",
            "queues.list",
            "queues.history",
            "queues.overview",
            "storage/items.list",
            "storage/scheduled.list",
            "items.inspect",
            "sql",
            "partitions.list",
            "jobs.list",
            "jobs.show",
            "storages.list",
            "daemon.status",
        ),
        VIEWERS,
    ),
    **dict.fromkeys(
        (
            "queue.clear",
            "queue.reload",
            "queues.create",
            "queues.update",
            "queues.delete",
            "storage/items.import",
            "storage/items.delete",
            "items.redrive",
            "items.delete",
            "partitions.pause",
            "partitions.resume",
            "partitions.drain",
            "partitions.offline",
            "partitions.verify",
            "partitions.compact",
            "partitions.reload",
            "partitions.accept_loss",
            "partitions.migrate",
            "jobs.cancel",
        ),
        OPERATORS,
    ),
    **dict.fromkeys(
        (
            "partitions.backup",
            "partitions.restore",
            "audit.list",
            "tokens.create",
            "tokens.list",
            "tokens.revoke",
            "tokens.rotate",
            "clock.advance",
            "clock.set",
        ),
        ADMINS,
    ),
    "tokens.whoami": frozenset(ROLES),
}
STREAMS_NEED = {
    "items.plan": VIEWERS,
    "items.scan": VIEWERS,
    "items.produce": PRODUCERS,
    "items.import": OPERATORS,
}
TABLE = {route.path: route for route in routes_by_path(test_clock=True).values()}
CALLS = sorted(path for path, route in TABLE.items() if not route.refusal and not route.only_with_test_clock)
REFUSED = sorted(path for path, route in TABLE.items() if route.refusal)


def test_every_call_is_in_this_table_and_every_stream_and_page() -> None:
    assert sorted(NEEDS) == sorted(path for path, route in TABLE.items() if not route.refusal)
    assert sorted(STREAMS_NEED) == sorted(STREAMS)
    assert sorted(PAGES) == ["/health", "/metrics"]


def harmless(path: str, queue: str) -> dict[str, Any]:
    """A request that names the queue and changes nothing: it is refused after the check of rights."""
    fields = TABLE[path].message.__struct_fields__
    body: dict[str, Any] = {"queue_name": queue} if "queue_name" in fields else {}
    if path == "queues.delete":
        body = {"queue_name": f"{queue} with a space"}
    if path in ("jobs.show", "jobs.cancel"):
        body = {"job_id": "nojob"}
    if path.startswith("tokens.") and "name" in fields:
        body = {"name": "no such token"}
    if path in ("queues.create", "queues.update"):
        body |= {"max_attempts": -1, "lease_timeout": "x"}
    if "partitions" in fields and path != "partitions.list" and path not in ("queues.create", "queues.update"):
        body |= {"partitions": [99]}
    elif "partition" in fields:
        body |= {"partition": 99}
    return body


def is_admitted(answer: Answer) -> bool:
    """Whether the check of rights passed. The answer of the call itself does not matter."""
    if answer.status in (401, 403):
        assert answer.json in (DENIED, NOBODY)
        return False
    return True


@pytest.mark.parametrize("times", [1, 2], ids=["parsed", "hot"])
@pytest.mark.parametrize("path", CALLS)
def test_a_call_needs_its_role(daemon: Guarded, path: str, times: int) -> None:
    for role in ROLES:
        answer = daemon.ask(f"/v1/{path}", harmless(path, MISSING), daemon.tokens[role], times=times)
        assert is_admitted(answer) == (role in NEEDS[path]), (role, answer)


@pytest.mark.parametrize("times", [1, 2], ids=["parsed", "hot"])
@pytest.mark.parametrize("path", [path for path in CALLS if TABLE[path].queues])
def test_a_call_needs_a_pattern_that_matches(daemon: Guarded, path: str, times: int) -> None:
    for role in ROLES[:-1]:
        token = daemon.tokens[f"{role} of mine"]
        matching = daemon.ask(f"/v1/{path}", harmless(path, MISSING), token, times=times)
        assert is_admitted(matching) == (role in NEEDS[path]), (role, matching)
        for name in (OTHERS, "unheard-of"):
            answer = daemon.ask(f"/v1/{path}", harmless(path, name), token, times=times)
            assert (answer.status, answer.json) == (403, DENIED), (role, name)


@pytest.mark.parametrize("path", [*CALLS, *REFUSED, "nonsense"])
def test_nobody_gets_in_without_a_token(daemon: Guarded, path: str) -> None:
    for times in (1, 2):
        answer = daemon.ask(f"/v1/{path}", b"{}", times=times)
        assert (answer.status, answer.json) == (401, NOBODY)


@pytest.mark.parametrize("path", REFUSED)
def test_the_management_calls_of_the_original_stay_refused(daemon: Guarded, path: str) -> None:
    for role in ROLES:
        answer = daemon.ask(f"/v1/{path}", b"{}", daemon.tokens[role])
        assert (answer.status, answer.json["message"]) == (453, TABLE[path].refusal)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_needs_its_role_and_a_pattern(daemon: Guarded, name: str) -> None:
    def ask(queue: str, token: str | None) -> Answer:
        if name in ("items.plan", "items.scan"):
            return daemon.ask(f"/v1/bulk/{name}", _stream_body(name, queue), token)
        return daemon.ask(f"/v1/bulk/{name}?queue_name={quote(queue)}", b"no stream", token)

    for role in ROLES:
        assert is_admitted(ask(MISSING, daemon.tokens[role])) == (role in STREAMS_NEED[name]), role
        if role != "admin":
            narrow = daemon.tokens[f"{role} of mine"]
            assert is_admitted(ask(MISSING, narrow)) == (role in STREAMS_NEED[name]), role
            assert ask(OTHERS, narrow).json == ask("unheard-of", narrow).json == DENIED
    assert ask(MINE, None).json == NOBODY


def _stream_body(name: str, queue: str) -> dict[str, Any]:
    return {"queue_name": queue, "partition": 99} if name == "items.scan" else {"queue_name": queue, "splits": 0}


def test_pages_need_a_role(daemon: Guarded) -> None:
    for role in ROLES:
        assert daemon.ask("/health", token=daemon.tokens[role]).status == 200
        assert daemon.ask("/metrics", token=daemon.tokens[role]).status == (200 if role in VIEWERS else 403)
    for page in PAGES:
        answer = daemon.ask(page)
        assert (answer.status, answer.json) == (401, NOBODY)
        assert daemon.ask(page, Authorization="Basic eA==").json["message"] == "invalid authorization header format"


def test_lists_and_metrics_show_a_caller_only_what_it_may_see(daemon: Guarded) -> None:
    narrow, wide = daemon.tokens["viewer of mine"], daemon.tokens["viewer"]

    def seen(token: str) -> list[set[str]]:
        queues = daemon.ask("/v1/queues.list", {"extended": True}, token).json["items"]
        partitions = daemon.ask("/v1/partitions.list", {}, token).json["items"]
        metrics = daemon.ask("/metrics", token=token).body.decode()
        named = {name for name in (MINE, OTHERS) if f'queue="{name}"' in metrics}
        return [{one["queue_name"] for one in queues}, {one["queue_name"] for one in partitions}, named]

    assert seen(wide) == [{MINE, OTHERS}] * 3
    assert seen(narrow) == [{MINE}] * 3
    for call in ("daemon.status", "queues.overview"):
        counts = [daemon.ask(f"/v1/{call}", {}, token).json["queues"] for token in (wide, narrow)]
        assert counts == [2, 1], call
    assert daemon.ask("/v1/queues.list", {"limit": 1, "pivot": "a"}, narrow).json["items"][0]["queue_name"] == MINE


def test_a_job_of_a_hidden_queue_looks_like_one_that_does_not_exist(daemon: Guarded) -> None:
    job = daemon.admin("/v1/partitions.verify", {"queue_name": OTHERS})["job_id"]
    narrow, wide = daemon.tokens["operator of mine"], daemon.tokens["operator"]
    assert daemon.ask("/v1/jobs.show", {"job_id": job}, wide).json["queue_name"] == OTHERS
    assert daemon.ask("/v1/jobs.list", {}, narrow).json == {}
    for call in ("jobs.show", "jobs.cancel"):
        hidden, missing = (daemon.ask(f"/v1/{call}", {"job_id": one}, narrow) for one in (job, "0" * 8))
        assert (hidden.status, hidden.json["message"].replace(job, "?")) == (
            missing.status,
            missing.json["message"].replace("0" * 8, "?"),
        )


def test_a_dead_queue_needs_the_right_at_both_ends(daemon: Guarded) -> None:
    narrow = daemon.tokens["operator of mine"]
    settings = {"lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 1}
    for call in ("queues.create", "queues.update"):
        for dead in (OTHERS, "unheard-of"):
            body = {"queue_name": "mine-new", "dead_queue": dead, **settings}
            assert daemon.ask(f"/v1/{call}", body, narrow).json == DENIED
    for target in (OTHERS, "unheard-of"):
        assert daemon.ask("/v1/items.redrive", {"queue_name": MINE, "to": target}, narrow).json == DENIED
    # A queue that others use as their dead queue: deleting it would change them, and the refusal would name them.
    daemon.admin("/v1/queues.create", {"queue_name": "mine-dead", **settings})
    daemon.admin("/v1/queues.create", {"queue_name": "secret-user", "dead_queue": "mine-dead", **settings})
    for force in (False, True):
        answer = daemon.ask("/v1/queues.delete", {"queue_name": "mine-dead", "force": force}, narrow)
        assert answer.json == DENIED
    update = {"queue_name": "mine-dead", "dead_queue": MINE, **settings}
    assert daemon.ask("/v1/queues.update", update, narrow).json == DENIED
    daemon.admin("/v1/queues.delete", {"queue_name": "secret-user"})
    assert daemon.ask("/v1/queues.delete", {"queue_name": "mine-dead"}, narrow).json == {"code": 200}


def test_paths_of_the_machine_are_for_admins(daemon: Guarded) -> None:
    def directories(token: str) -> list[str]:
        return [one.get("directory", "") for one in daemon.ask("/v1/storages.list", {}, token).json["items"]]

    assert directories(daemon.tokens["admin"]) == [str(daemon.data / "partitions")]
    assert directories(daemon.tokens["operator"]) == [""]


def test_storages_count_only_partitions_that_the_caller_may_see(daemon: Guarded) -> None:
    def partitions(token: str) -> int:
        return sum(one.get("partitions", 0) for one in daemon.ask("/v1/storages.list", {}, token).json["items"])

    settings = {"lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 3}
    daemon.admin("/v1/queues.create", {"queue_name": "hidden-wide", **settings})
    before = partitions(daemon.tokens["operator of mine"])
    assert partitions(daemon.tokens["operator"]) >= before + 3
    daemon.admin("/v1/queues.delete", {"queue_name": "hidden-wide"})
    assert partitions(daemon.tokens["operator of mine"]) == before


def test_a_reason_shows_its_path_only_to_admins(tmp_path: Path) -> None:
    with Guarded(tmp_path) as daemon:
        daemon.admin("/v1/partitions.offline", {"queue_name": MINE})
        (partition,) = daemon.admin("/v1/partitions.list", {"queue_name": MINE})["items"]
        file = daemon.data / "partitions" / partition["file"]
        file.write_bytes(b"no database" * 1_000)
        answers = {}
        for role in ("operator", "admin"):
            reload = daemon.ask("/v1/partitions.reload", {"queue_name": MINE}, daemon.tokens[role])
            listed = daemon.ask("/v1/partitions.list", {"queue_name": MINE}, daemon.tokens[role])
            overview = daemon.ask("/v1/queues.overview", {"contains": MINE}, daemon.tokens[role])
            health = daemon.ask("/health", token=daemon.tokens[role])
            status = daemon.ask("/v1/daemon.status", {}, daemon.tokens[role])
            answers[role] = [one.body.decode() for one in (reload, listed, overview, health, status)]
            assert file.name in listed.json["items"][0]["reason"], listed
        assert all(str(daemon.data) in body for body in answers["admin"])
        assert not any(str(daemon.data) in body for body in answers["operator"])
