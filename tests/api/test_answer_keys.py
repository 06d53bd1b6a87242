"""Answers of the original paths have only the keys that the contract names, because clients refuse unknown keys."""

from __future__ import annotations

from typing import Any


def keys(text: str) -> set[str]:
    return set(text.split())


QUEUE = keys(
    "queue_name created_at updated_at dead_queue reference lease_timeout expire_timeout max_attempts"
    " requested_partitions partitions namespace"
)
STORED = keys(
    "id source_id is_leased lease_deadline expire_deadline dead_deadline created_at updated_at enqueue_at attempts"
    " max_attempts reference encoding kind payload"
)
LEASED = {"encoding", "kind", "reference", "id", "attempts", "lease_deadline", "bytes"}
LOGICAL = {"produce_waiting", "lease_waiting", "complete_waiting", "in_flight", "partitions"}
PARTITION = {"partition", "total", "total_leased", "failures", "average_age", "average_leased_age", "scheduled"}
DONE = {"code": 200}
CHILDREN = {
    "queue.lease": {"queue_name": None, "partition": None, "items": LEASED},
    "queues.list": {"items": QUEUE},
    "storage/items.list": {"items": STORED},
    "storage/scheduled.list": {"items": STORED},
    "storage/items.import": {"items": STORED},
}


def ask(daemon: Any, path: str, **body: Any) -> list[dict[str, Any]]:
    """The entries of an answer. Checks that the contract names every key of the answer and of its entries."""
    reply = daemon.ok(path, **body)
    wanted = CHILDREN[path]
    assert set(reply) <= set(wanted)
    items: list[dict[str, Any]] = reply["items"]
    for item in items:
        assert set(item) <= (wanted["items"] or set()), path
    return items


def test_answers_of_the_original_paths_have_no_keys_of_ours(daemon: Any) -> None:
    dead = daemon.create(retention="30d")
    q = daemon.create(dead_queue=dead, max_attempts=3, reference="r")
    later = "2100-01-01T00:00:00Z"
    produced = [{"utf8": text, "kind": "k", "reference": "r", "encoding": "e"} for text in ("held", "dies", "again")]
    assert daemon.ok("queue.produce", queue_name=q, request_timeout="1m", items=produced) == DONE
    soon = [{"utf8": "later", "enqueue_at": later}]
    assert daemon.ok("queue.produce", queue_name=q, request_timeout="1m", items=soon) == DONE
    held, dies, again = ask(daemon, "queue.lease", queue_name=q, batch_size=3, client_id="me", request_timeout="1m")
    retried = [{"id": dies["id"], "dead": True, "reason": "bad"}, {"id": again["id"], "reason": "not now"}]
    assert daemon.ok("queue.retry", queue_name=q, items=retried) == DONE

    own = {"source_id": "s", "is_leased": True, "lease_deadline": later, "client_id": "you", "leased_at": later}
    for _ in ("new", "here already"):
        (imported,) = ask(daemon, "storage/items.import", queue_name=q, items=[own])
        assert imported["is_leased"]
    stored = ask(daemon, "storage/items.list", queue_name=q)
    assert [item.get("is_leased", False) for item in stored].count(True) == 2
    assert any(item["id"] == held["id"] for item in stored)
    assert len(ask(daemon, "storage/scheduled.list", queue_name=q)) == 1
    (died,) = ask(daemon, "storage/items.list", queue_name=dead)
    assert died["source_id"] == dies["id"]

    assert {item["queue_name"] for item in ask(daemon, "queues.list", limit=1000)} >= {q, dead}
    for name in (q, dead):
        assert set(daemon.ok("queues.info", queue_name=name)) <= QUEUE
        stats = daemon.ok("queue.stats", queue_name=name)
        assert set(stats) == {"queue_name", "logicalQueues"}
        for logical in stats["logicalQueues"]:
            assert set(logical) <= LOGICAL
            assert all(set(partition) <= PARTITION for partition in logical["partitions"])
    assert daemon.ok("queue.complete", queue_name=q, ids=[held["id"]], request_timeout="1m") == DONE
    assert daemon.ok("storage/items.delete", queue_name=dead, ids=[died["id"]]) == DONE
    assert daemon.ok("queues.update", queue_name=q, max_attempts=4) == DONE
    assert daemon.ok("queue.reload", queue_name=q) == DONE
    assert daemon.ok("queue.clear", queue_name=q, queue=True, destructive=True) == DONE
    assert daemon.ok("queues.delete", queue_name=q) == DONE


def test_a_request_for_the_extended_answer_gets_the_holder_of_an_item(daemon: Any) -> None:
    q = daemon.create()
    daemon.produce(q, "x")
    daemon.take(q, client_id="me")
    (item,) = daemon.ok("storage/items.list", queue_name=q, extended=True)["items"]
    assert item["client_id"] == "me" and item["leased_at"]
