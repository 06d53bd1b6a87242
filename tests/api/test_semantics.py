"""What each call does, as a client sees it: section 3 of the wire contract, with the changes of section 6."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import signal
import time

import pytest

from tests.waiting import until

ZERO = "0001-01-01T00:00:00Z"


def later(now: str, seconds: float) -> str:
    """A time in the daemon's format: with 0, 3 or 6 decimals, as few as needed."""
    then = dt.datetime.fromisoformat(now.replace("Z", "+00:00")) + dt.timedelta(seconds=seconds)
    text = then.strftime("%Y-%m-%dT%H:%M:%S.%f")
    return text.removesuffix("000").removesuffix("000").removesuffix(".") + "Z"


def texts(items) -> list[str]:
    return [base64.b64decode(i.get("bytes") or i.get("payload") or "").decode() for i in items]


def counts(daemon, queue) -> list[tuple[int, int, int]]:
    return [
        (p.get("total", 0), p.get("total_leased", 0), p.get("scheduled", 0)) for p in daemon.stats(queue)["partitions"]
    ]


class TestProduceAndLease:
    def test_an_item_waits_is_leased_and_is_gone(self, daemon):
        q = daemon.create()
        now = daemon.now()
        daemon.produce(q, "x", kind="k", reference="r", encoding="e")
        (stored,) = daemon.items(q)
        assert stored["created_at"] == now and stored["lease_deadline"] == ZERO
        assert stored["expire_deadline"] == later(now, 86400)
        (item,) = daemon.take(q)
        assert item == {
            "id": stored["id"], "attempts": 1, "lease_deadline": later(now, 60), "bytes": "eA==", "kind": "k",
            "reference": "r", "encoding": "e",
        }  # fmt: skip
        (leased,) = daemon.items(q)
        assert (leased["is_leased"], leased["attempts"], leased["id"]) == (True, 1, stored["id"])
        assert counts(daemon, q) == [(1, 1, 0)]
        assert daemon.complete(q, [item["id"]]) == (200, {"code": 200})
        assert daemon.items(q) == [] and counts(daemon, q) == [(0, 0, 0)]

    def test_a_parked_lease_is_served_by_a_produce(self, daemon):
        q = daemon.create()
        lease = daemon.in_background(daemon.take, q)
        daemon.until_parked(q)
        assert daemon.stats(q)["in_flight"] == 1
        daemon.produce(q, "x")
        assert texts(lease()) == ["x"]

    def test_a_client_parks_once(self, daemon):
        q = daemon.create()
        lease = daemon.in_background(daemon.take, q, client_id="me")
        daemon.until_parked(q)
        status, reply = daemon.lease(q, client_id="me")
        assert status == 400 and reply["message"] == (
            "duplicate client id; a client cannot make multiple leased requests to the same queue"
        )
        daemon.produce(q, "x")
        lease()

    def test_nothing_by_the_deadline(self, daemon):
        q = daemon.create()
        status, reply = daemon.lease(q, timeout="20ms")
        assert (status, reply["message"]) == (454, "request timeout; no items are in the queue, try again")

    def test_a_closed_connection_frees_its_client_id(self, daemon):

        q = daemon.create()
        gone = http.client.HTTPConnection(daemon.http)
        body = {"queue_name": q, "batch_size": 1, "client_id": "me", "request_timeout": "1m"}
        gone.request("POST", "/v1/queue.lease", json.dumps(body), {"Content-Type": "application/json"})
        daemon.until_parked(q)
        gone.close()
        daemon.until_parked(q, 0)
        daemon.produce(q, "x")
        assert texts(daemon.take(q, client_id="me")) == ["x"]


class TestComplete:
    def test_is_idempotent_and_ignores_what_never_was(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        ids = daemon.ids(q)
        for _ in range(2):
            assert daemon.complete(q, [*ids, "0" * 27]) == (200, {"code": 200})

    def test_an_un_leased_item_is_refused(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        item = daemon.items(q)[0]["id"]
        status, reply = daemon.complete(q, [item])
        assert (status, reply["message"]) == (400, f"item(s) cannot be completed; '{item}' is not marked as leased")
        daemon.produce(q, "y", enqueue_at=later(daemon.now(), 60))
        item = daemon.scheduled(q)[0]["id"]
        status, reply = daemon.complete(q, [item])
        assert (status, reply["message"]) == (400, f"item(s) cannot be completed; '{item}' is not marked as leased")

    def test_a_lost_lease_is_told_apart_from_a_done_one(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        (old,) = daemon.ids(q)
        daemon.advance("61s")
        status, reply = daemon.complete(q, [old])
        assert (status, reply["message"]) == (
            400, f"invalid storage id; '{old}' does not exist, its lease was lost",
        )  # fmt: skip
        status, reply = daemon.retry(q, old)
        assert reply["message"] == f"invalid storage id; '{old}' does not exist, its lease was lost"

    def test_late_is_in_time_until_the_lease_is_over(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        ids = daemon.ids(q)
        daemon.advance("60s")
        assert daemon.complete(q, ids)[0] == 200

    def test_ids_of_several_partitions_in_one_request(self, daemon):
        q = daemon.create(requested_partitions=3)
        for n in range(3):
            daemon.produce(q, f"{n}")
        ids = [i for _ in range(3) for i in daemon.ids(q)]
        assert daemon.complete(q, ids, partition=1)[0] == 200
        assert counts(daemon, q) == [(0, 0, 0)] * 3

    def test_goes_on_in_the_partitions_that_work(self, daemon):
        q = daemon.create(requested_partitions=2)
        daemon.produce(q, "a")
        daemon.produce(q, "b")
        leased = {reply.get("partition", 0): reply["items"][0]["id"] for _, reply in (daemon.lease(q), daemon.lease(q))}
        ids = [leased[0], leased[1]]
        daemon.ok("partitions.offline", queue_name=q, partitions=[0])
        status, reply = daemon.complete(q, ids)
        assert (status, reply["message"]) == (454, "partition not available; partition '0' is failing, retry again")
        assert counts(daemon, q) == [(1, 1, 0), (0, 0, 0)]
        daemon.ok("partitions.reload", queue_name=q, partitions=[0])
        assert daemon.complete(q, ids)[0] == 200
        assert counts(daemon, q) == [(0, 0, 0)] * 2


class TestRetry:
    def test_gives_a_new_id_at_the_tail(self, daemon):
        q = daemon.create()
        daemon.produce(q, "a", "b")
        (old,) = daemon.ids(q)
        assert daemon.retry(q, old) == (200, {"code": 200})
        items = daemon.items(q)
        assert texts(items) == ["b", "a"] and items[1]["id"] != old and items[1]["attempts"] == 1
        assert items[1]["lease_deadline"] == ZERO

    def test_wakes_a_parked_lease(self, daemon):
        q = daemon.create()
        daemon.produce(q, "a")
        (old,) = daemon.ids(q)
        lease = daemon.in_background(daemon.take, q)
        daemon.until_parked(q)
        daemon.retry(q, old)
        assert lease()[0]["attempts"] == 2

    def test_into_the_future_is_scheduled_under_a_new_id(self, daemon):
        q = daemon.create()
        daemon.produce(q, "a")
        (old,) = daemon.ids(q)
        assert daemon.retry(q, old, retry_at=later(daemon.now(), 10))[0] == 200
        assert counts(daemon, q) == [(0, 0, 1)]
        (waiting,) = daemon.scheduled(q)
        assert waiting["id"] != old and waiting["attempts"] == 1
        assert "its lease was lost" in daemon.complete(q, [old])[1]["message"]
        lease = daemon.in_background(daemon.take, q)
        daemon.until_parked(q)
        daemon.advance("11s")
        assert lease()[0]["attempts"] == 2

    def test_near_or_past_is_at_once(self, daemon):
        q = daemon.create()
        daemon.produce(q, "a")
        (old,) = daemon.ids(q)
        daemon.retry(q, old, retry_at=later(daemon.now(), 0.09))
        assert counts(daemon, q) == [(1, 0, 0)]

    def test_a_year_that_json_cannot_express_is_refused(self, daemon):
        # JSON cannot express this value, so the request is sent as protobuf.
        from querator.wire import messages, protobuf

        q = daemon.create()
        request = messages.QueueProduceRequest(
            queue_name=q, request_timeout="5s", items=[messages.QueueProduceItem(enqueue_at=10**18)]
        )
        connection = http.client.HTTPConnection(daemon.http)
        body = protobuf.encode(request)
        connection.request("POST", "/v1/queue.produce", body, {"Content-Type": "application/protobuf"})
        reply = connection.getresponse().read()
        assert b"enqueue_at is invalid; year must be between 1 and 9999" in reply


class TestDeadLetters:
    def dead_pair(self, daemon, **more):
        dead = daemon.create()
        return dead, daemon.create(dead_queue=dead, **more)

    def test_the_last_attempt_kills_and_the_copy_tells_why(self, daemon):
        dead, q = self.dead_pair(daemon, max_attempts=2)
        daemon.produce(q, "x", kind="k", reference="r")
        daemon.ids(q)
        daemon.advance("61s")
        (last,) = daemon.ids(q)
        now = daemon.advance("61s")
        assert daemon.items(q) == []
        (copy,) = daemon.items(dead)
        assert (copy["source_id"], copy.get("attempts", 0), copy["created_at"]) == (last, 0, now)
        assert (texts([copy]), copy["kind"], copy["reference"]) == (["x"], "k", "r")
        told = daemon.ok("items.inspect", queue_name=dead, id=copy["id"])
        assert told["state"] == "ready" and told["item"]["id"] == copy["id"]
        assert told["history"] == [
            {"queue_name": q, "source_id": last, "reason": "max_attempts", "attempts": 2, "at": now}
        ]
        assert [r for r in daemon.log if r.get("item_id") == last and r.get("reason") == "max_attempts"]

    def test_nothing_dies_in_a_valid_lease(self, daemon):
        dead, q = self.dead_pair(daemon, max_attempts=1, lease_timeout="1h", expire_timeout="1h")
        daemon.produce(q, "x")
        ids = daemon.ids(q)
        daemon.advance("59m")
        assert daemon.items(dead) == []
        assert daemon.complete(q, ids)[0] == 200

    def test_what_expires_while_it_waits_is_moved_once(self, daemon):
        dead, q = self.dead_pair(daemon, expire_timeout="10m")
        daemon.produce(q, "x")
        daemon.advance("11m")
        assert (texts(daemon.items(q)), texts(daemon.items(dead))) == ([], ["x"])
        daemon.complete(dead, daemon.ids(dead))
        daemon.advance("11m")
        assert daemon.items(dead) == []

    def test_the_id_of_what_expired_while_it_waited_is_lost(self, daemon):
        _, q = self.dead_pair(daemon, expire_timeout="10m")
        daemon.produce(q, "x")
        item = daemon.items(q)[0]["id"]
        daemon.advance("11m")
        status, reply = daemon.complete(q, [item])
        assert (status, reply["message"]) == (
            400, f"invalid storage id; '{item}' does not exist, its lease was lost",
        )  # fmt: skip

    def test_a_dead_queue_that_takes_nothing_keeps_nobody_waiting(self, daemon):
        dead, q = self.dead_pair(daemon, max_attempts=1)
        daemon.produce(q, "x")
        (item,) = daemon.ids(q)
        daemon.ok("partitions.pause", queue_name=dead, partitions=[0])
        started = time.monotonic()
        daemon.advance("61s")
        assert time.monotonic() - started < 10
        assert (counts(daemon, q), counts(daemon, dead)) == ([(1, 1, 0)], [(0, 0, 0)])
        assert "its lease was lost" in daemon.complete(q, [item])[1]["message"]
        daemon.ok("partitions.resume", queue_name=dead, partitions=[0])
        until(lambda: counts(daemon, q) == [(0, 0, 0)])
        assert texts(daemon.items(dead)) == ["x"]

    def test_dead_by_its_consumer(self, daemon):
        dead, q = self.dead_pair(daemon)
        daemon.produce(q, "x")
        (item,) = daemon.ids(q)
        assert daemon.retry(q, item, dead=True) == (200, {"code": 200})
        (copy,) = daemon.items(dead)
        history = daemon.ok("items.inspect", queue_name=dead, id=copy["id"])["history"]
        assert [(h["reason"], h["source_id"]) for h in history] == [("client", item)]
        assert "its lease was lost" in daemon.complete(q, [item])[1]["message"]

    def test_a_dead_letter_wakes_whoever_waits_on_the_dead_queue(self, daemon):
        dead, q = self.dead_pair(daemon)
        lease = daemon.in_background(daemon.take, dead)
        daemon.until_parked(dead)
        daemon.produce(q, "x")
        daemon.retry(q, daemon.ids(q)[0], dead=True)
        assert texts(lease()) == ["x"]

    def test_a_move_that_failed_is_tried_again_when_the_clock_moves_also_after_a_restart(self, fresh):
        daemon = fresh()
        dead = daemon.create(requested_partitions=2)
        q = daemon.create(dead_queue=dead, max_attempts=1)
        daemon.ok("clock.set", now="2020-01-01T00:00:00Z")
        daemon.produce(q, "x")
        daemon.ids(q)
        # The lease ends while the daemon is down. Then the item may have arrived in any partition of the dead queue.
        daemon.ok("partitions.offline", queue_name=dead, partitions=[1])
        daemon.restart()
        for _ in range(4):
            daemon.advance("1s")
            assert counts(daemon, q) == [(1, 1, 0)]
        daemon.ok("partitions.reload", queue_name=dead, partitions=[1])
        daemon.advance("1s")
        assert (counts(daemon, q), texts(daemon.items(dead))) == ([(0, 0, 0)], ["x"])

    def test_what_died_does_not_expire_but_what_is_produced_to_a_dead_queue_does(self, fresh):
        daemon = fresh()
        dead = daemon.create()
        q = daemon.create(dead_queue=dead)
        daemon.produce(q, "a")
        daemon.advance("24h1s")
        daemon.produce(dead, "ordinary")
        daemon.advance("240h")
        daemon.restart()
        daemon.advance("87600h")
        (item,) = daemon.items(dead)
        assert texts([item]) == ["a"] and item["expire_deadline"] == "2200-01-01T00:00:00Z"

    def test_a_retention_bounds_how_long_the_dead_are_kept(self, fresh):
        daemon = fresh()
        dead = daemon.create(retention="30d")
        q = daemon.create(dead_queue=dead)
        daemon.produce(q, "a")
        daemon.advance("24h1s")
        daemon.restart()  # this also resets its clock to the present
        daemon.advance("743h50m")
        assert texts(daemon.items(dead)) == ["a"]
        daemon.advance("20m")
        assert daemon.items(dead) == []

    def test_a_retention_is_told_to_those_who_ask_and_stays_until_it_is_changed(self, daemon):
        q = daemon.create(retention="36h")

        def told(**more):
            (listed,) = daemon.ok("queues.list", pivot=q, limit=1, **more)["items"]
            assert listed == daemon.ok("queues.info", queue_name=q, **more)
            return listed.get("retention")

        assert (told(), told(extended=True)) == (None, "36h0m0s")
        daemon.ok("queues.update", queue_name=q, lease_timeout="2m")
        assert told(extended=True) == "36h0m0s"
        daemon.ok("queues.update", queue_name=q, retention="1d24h")
        assert told(extended=True) == "2d"
        daemon.ok("queues.update", queue_name=q, retention="0")
        assert told(extended=True) is None
        for text, message in (
            ("7w", 'time: unknown unit "w" in duration "7w" - expected format: 12h, 7d or 30d'),
            ("-1h", "cannot be negative"),
            ("200000d", 'time: invalid duration "200000d" - expected format: 12h, 7d or 30d'),
        ):
            refused = daemon.error("queues.update", queue_name=q, retention=text)
            assert refused == (400, f"retention is invalid; {message}")

    def test_without_a_dead_queue_it_is_logged_and_gone(self, daemon):
        q = daemon.create(max_attempts=1)
        daemon.produce(q, "x", kind="k")
        (item,) = daemon.ids(q)
        daemon.advance("61s")
        assert daemon.items(q) == []
        (line,) = [r for r in daemon.log if r.get("item_id") == item]
        assert (line["reason"], line["kind"], line["attempts"], line["queue"]) == ("max_attempts", "k", 1, q)

    def test_rules_of_dead_queues(self, daemon):
        dead, q = self.dead_pair(daemon)
        base = {"lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": 1}
        chain = f"dead_queue is invalid; '{q}' already has its own dead_queue configured"
        assert daemon.error("queues.create", queue_name="new", dead_queue=q, **base) == (400, chain)
        other = daemon.create()
        used = f"dead_queue is invalid; '{dead}' is the dead_queue of '{q}'"
        assert daemon.error("queues.update", queue_name=dead, dead_queue=other) == (400, used)
        assert daemon.error("queues.delete", queue_name=dead) == (
            400, f"invalid queue; '{dead}' is the dead_queue of '{q}'",
        )  # fmt: skip
        daemon.ok("queues.delete", queue_name=dead, force=True)
        assert "dead_queue" not in daemon.ok("queues.info", queue_name=q)


class TestPartitions:
    @pytest.mark.parametrize("count", [1001, 2**31 - 1])
    def test_more_than_one_daemon_can_serve_are_refused(self, daemon, count):
        refusal = (400, "partitions is invalid; cannot be greater than 1000")
        settings = {"lease_timeout": "1m", "expire_timeout": "1h", "requested_partitions": count}
        assert daemon.error("queues.create", queue_name="wide", **settings) == refusal
        q = daemon.create()
        assert daemon.error("queues.update", queue_name=q, requested_partitions=count) == refusal
        assert daemon.ok("queues.info", queue_name=q)["requested_partitions"] == 1


class TestSchedule:
    def test_comes_due_in_order_and_wakes(self, daemon):
        q = daemon.create()
        now = daemon.now()
        daemon.produce(q, "third", enqueue_at=later(now, 3))
        daemon.produce(q, "first", "second", enqueue_at=later(now, 1))
        daemon.produce(q, "now", enqueue_at=later(now, 0.05))
        assert counts(daemon, q) == [(1, 0, 3)]
        assert texts(daemon.take(q)) == ["now"]
        lease = daemon.in_background(daemon.take, q, 5)
        daemon.until_parked(q)
        daemon.advance("1.5s")
        assert texts(lease()) == ["first", "second"]
        daemon.advance("2s")
        assert texts(daemon.take(q)) == ["third"]

    def test_survives_restarts(self, fresh):
        daemon = fresh()
        q = daemon.create()
        daemon.produce(q, "a", enqueue_at=later(daemon.now(), 3600))
        daemon.restart()
        assert counts(daemon, q) == [(0, 0, 1)]
        daemon.advance("2h")
        assert texts(daemon.take(q)) == ["a"]


class TestExtend:
    def test_moves_the_deadline(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        ids = daemon.ids(q)
        now = daemon.now()
        reply = daemon.ok("queue.extend", queue_name=q, ids=ids, lease_timeout="5m")
        assert reply == {"items": [{"id": ids[0], "lease_deadline": later(now, 300)}]}
        daemon.advance("4m")
        assert daemon.complete(q, ids)[0] == 200

    def test_an_id_that_is_named_twice_is_extended_once(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        ids = daemon.ids(q)
        reply = daemon.ok("queue.extend", queue_name=q, ids=ids * 2, lease_timeout="5m")
        assert reply["items"] == [{"id": ids[0], "lease_deadline": later(daemon.now(), 300)}] * 2
        daemon.advance("6m")
        assert counts(daemon, q) == [(1, 0, 0)]

    def test_what_was_extended_together_comes_back_in_its_old_order(self, daemon):
        q = daemon.create()
        daemon.produce(q, *"abc")
        daemon.ok("queue.extend", queue_name=q, ids=daemon.ids(q, 3)[::-1], lease_timeout="5m")
        daemon.advance("6m")
        assert texts(daemon.items(q)) == ["a", "b", "c"]

    def test_refusals(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        item = daemon.items(q)[0]["id"]
        assert daemon.error("queue.extend", queue_name=q, ids=[item]) == (
            400, f"item(s) cannot be extended; '{item}' is not marked as leased",
        )  # fmt: skip
        assert daemon.error("queue.extend", queue_name=q, ids=[])[1] == "ids is invalid; list of ids cannot be empty"
        assert daemon.error("queue.extend", queue_name=q, ids=["0" * 27]) == (
            400, f"invalid storage id; '{'0' * 27}' does not exist",
        )  # fmt: skip
        assert daemon.error("queue.extend", queue_name=q, ids=[item], lease_timeout="-1s")[1] == (
            "lease timeout is invalid; cannot be negative"
        )


class TestRequestIds:
    def test_a_repeated_produce_adds_nothing_also_after_kill_9(self, fresh):
        daemon = fresh()
        q = daemon.create(requested_partitions=2)
        body = {"queue_name": q, "request_timeout": "5s", "items": [{"utf8": "x"}], "request_id": "r"}
        daemon.ok("queue.produce", **body)
        daemon.restart(signal.SIGKILL)
        daemon.ok("queue.produce", **{**body, "items": [{"utf8": "y"}] * 3})
        assert texts(daemon.items(q) + daemon.items(q, 1)) == ["x"]

    def test_too_long(self, daemon):
        q = daemon.create()
        assert daemon.error("queue.produce", queue_name=q, request_timeout="5s", items=[{}], request_id="é" * 129) == (
            400,
            "request id is invalid; cannot be greater than '256' characters",
        )


class TestCompleteIds:
    def test_completes_and_leases_in_one_request(self, daemon):
        q = daemon.create()
        daemon.produce(q, "a", "b")
        ids = daemon.ids(q)
        assert texts(daemon.take(q, complete_ids=ids)) == ["b"]
        assert counts(daemon, q) == [(1, 1, 0)]

    def test_an_error_leases_nothing(self, daemon):
        q = daemon.create()
        daemon.produce(q, "a", "b")
        item = daemon.items(q)[1]["id"]
        status, reply = daemon.lease(q, complete_ids=[item])
        assert (status, reply["message"]) == (400, f"item(s) cannot be completed; '{item}' is not marked as leased")
        assert counts(daemon, q) == [(2, 0, 0)]

    def test_nothing_to_lease(self, daemon):
        q = daemon.create()
        daemon.produce(q, "a")
        assert daemon.lease(q, complete_ids=daemon.ids(q), timeout="20ms")[0] == 454
        assert counts(daemon, q) == [(0, 0, 0)]


class TestStorage:
    def test_import_keeps_what_it_is_told(self, daemon):
        q = daemon.create()
        now = daemon.now()
        sent = {
            "source_id": "s", "is_leased": True, "lease_deadline": later(now, 30), "expire_deadline": later(now, 90),
            "attempts": 2, "max_attempts": 9, "kind": "k", "payload": "eA==",
        }  # fmt: skip
        (stored,) = daemon.ok("storage/items.import", queue_name=q, items=[sent])["items"]
        assert {k: stored[k] for k in sent} == sent and stored["created_at"] == now
        assert daemon.items(q) == [stored]
        again = daemon.ok("storage/items.import", queue_name=q, items=[sent, {"kind": "new"}])["items"]
        assert len(again) == 2 and len(daemon.items(q)) == 2
        assert again[0].get("id", "") == "" and again[0]["created_at"] == "1970-01-01T00:00:00Z"
        assert counts(daemon, q) == [(2, 1, 0)]
        assert daemon.items(q)[1]["expire_deadline"] == later(now, 86400)
        daemon.advance("31s")
        assert counts(daemon, q) == [(2, 0, 0)]

    def test_import_gives_back_the_lease_deadline_of_an_item_that_is_not_leased(self, fresh):
        daemon = fresh()
        q = daemon.create()
        told = later(daemon.now(), -3600)
        sent = [{"lease_deadline": told, "payload": "eA=="}, {"lease_deadline": ZERO}, {}]
        stored = daemon.ok("storage/items.import", queue_name=q, items=sent)["items"]
        assert [(item["lease_deadline"], "is_leased" in item) for item in stored] == [
            (told, False), (ZERO, False), (ZERO, False),
        ]  # fmt: skip
        assert daemon.items(q) == stored and counts(daemon, q) == [(3, 0, 0)]
        daemon.restart()
        assert daemon.items(q) == stored
        assert daemon.ok("items.inspect", queue_name=q, id=stored[0]["id"])["item"] == stored[0]
        (leased, *_) = daemon.take(q, 3)
        assert leased["lease_deadline"] == later(daemon.now(), 60)
        daemon.retry(q, leased["id"])
        assert daemon.items(q)[2]["lease_deadline"] == ZERO

    def test_an_import_refuses_negative_attempts(self, daemon):
        q = daemon.create()
        for field in ("attempts", "max_attempts"):
            items = [{"kind": "good"}, {field: -1}]
            refusal = (400, f"{field} is invalid; cannot be negative")
            assert daemon.error("storage/items.import", queue_name=q, items=items) == refusal
        assert daemon.items(q) == []

    def test_import_wakes(self, daemon):
        q = daemon.create()
        lease = daemon.in_background(daemon.take, q)
        daemon.until_parked(q)
        daemon.ok("storage/items.import", queue_name=q, items=[{"payload": "eA=="}])
        assert texts(lease()) == ["x"]

    def test_delete_of_anything(self, daemon):
        q = daemon.create()
        daemon.produce(q, "a", "b", "c")
        daemon.produce(q, "d", enqueue_at=later(daemon.now(), 60))
        (leased,) = daemon.ids(q)
        everything = [leased, daemon.items(q)[2]["id"], daemon.scheduled(q)[0]["id"], "0" * 27]
        status, _ = daemon.error("storage/items.delete", queue_name=q, ids=[*everything, "bad"])
        assert status == 400 and counts(daemon, q) == [(3, 1, 1)]
        daemon.ok("storage/items.delete", queue_name=q, ids=everything)
        assert counts(daemon, q) == [(1, 0, 0)]
        assert texts(daemon.take(q, 5)) == ["b"]

    def test_lists_from_a_pivot(self, daemon):
        q = daemon.create()
        daemon.produce(q, *"abcde")
        ids = [i["id"] for i in daemon.items(q)]
        assert ids == sorted(ids)
        assert [i["id"] for i in daemon.items(q, pivot=ids[2], limit=2)] == ids[2:4]
        assert daemon.items(q, limit=-1) == []
        daemon.ok("storage/items.delete", queue_name=q, ids=[ids[2]])
        assert daemon.items(q, pivot=ids[2], limit=1)[0]["id"] == ids[3]
        assert daemon.items(q, pivot="aWgEPTl1tmebfsQzFP4bxwgy80V") == []

    @pytest.mark.parametrize(
        ("how", "left"),
        [
            ({"queue": True}, [(1, 1, 1)]),
            ({"queue": True, "scheduled": True}, [(1, 1, 0)]),
            ({"scheduled": True, "destructive": True}, [(2, 1, 0)]),
            ({"queue": True, "destructive": True}, [(0, 0, 0)]),
        ],
    )
    def test_clear(self, daemon, how, left):
        q = daemon.create()
        daemon.produce(q, "a", "b")
        daemon.produce(q, "c", enqueue_at=later(daemon.now(), 60))
        daemon.ids(q)
        daemon.ok("queue.clear", queue_name=q, **how)
        assert counts(daemon, q) == left
        assert (len(daemon.items(q)), len(daemon.scheduled(q))) == (left[0][0], left[0][2])
        daemon.produce(q, "d")
        assert texts(daemon.take(q, 5))[-1] == "d"

    def test_inspect(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        (item,) = daemon.items(q)
        assert daemon.ok("items.inspect", queue_name=q, id=item["id"]) == {"item": item, "state": "ready"}
        assert daemon.error("items.inspect", queue_name=q, id="0" * 27) == (
            400, f"invalid storage id; '{'0' * 27}' does not exist",
        )  # fmt: skip


class TestQueues:
    def test_update_merges_and_info_is_fresh(self, daemon):
        q = daemon.create(reference="r", max_attempts=3)
        daemon.ok("queues.update", queue_name=q, lease_timeout="2m", max_attempts=4)
        info = daemon.ok("queues.info", queue_name=q)
        assert (info["lease_timeout"], info["expire_timeout"], info["max_attempts"]) == ("2m0s", "24h0m0s", 4)
        assert "reference" not in info
        assert daemon.error("queues.update", queue_name=q, expire_timeout="1m")[1] == (
            "lease timeout is too long; 2m0s cannot be greater than the expire timeout 1m0s"
        )

    def test_a_queue_of_the_same_name_starts_empty(self, daemon):
        q = daemon.create()
        daemon.produce(q, "x")
        lease = daemon.in_background(daemon.lease, q, 1, client_id="z")
        assert lease()[0] == 200
        parked = daemon.in_background(daemon.lease, q, 1)
        daemon.until_parked(q)
        daemon.ok("queues.delete", queue_name=q)
        status, reply = parked()
        assert (status, reply["message"]) == (453, "queue is shutting down")
        daemon.create(q)
        assert daemon.items(q) == [] and counts(daemon, q) == [(0, 0, 0)]

    def test_list_by_name_from_a_pivot(self, fresh):
        daemon = fresh()
        for name in ("b", "a", "c", "B"):
            daemon.create(name)
        names = [i["queue_name"] for i in daemon.ok("queues.list")["items"]]
        assert names == ["B", "a", "b", "c"]
        assert [i["queue_name"] for i in daemon.ok("queues.list", pivot="aa", limit=1)["items"]] == ["b"]
        assert daemon.ok("queues.list", pivot="zzz") == {}
        assert daemon.ok("queues.list", namespace="other") == {}


class TestRestart:
    @pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
    def test_everything_acknowledged_is_there_again(self, fresh, how):
        daemon = fresh()
        q = daemon.create(requested_partitions=2)
        daemon.produce(q, *"abc")
        daemon.produce(q, *"de")
        daemon.produce(q, "s", enqueue_at=later(daemon.now(), 60))
        ids = daemon.ids(q, 2)
        (done,) = daemon.ids(q, 1)
        daemon.complete(q, [done])
        before = daemon.items(q), daemon.items(q, 1), daemon.scheduled(q), daemon.scheduled(q, 1), counts(daemon, q)
        daemon.restart(signal.Signals[how])
        assert before == (
            daemon.items(q), daemon.items(q, 1), daemon.scheduled(q), daemon.scheduled(q, 1), counts(daemon, q),
        )  # fmt: skip
        assert daemon.complete(q, ids)[0] == 200

    def test_waiting_clients_are_answered(self, fresh):
        daemon = fresh()
        q = daemon.create()
        parked = daemon.in_background(daemon.lease, q, 1, "1m")
        daemon.until_parked(q)
        assert daemon.stop() == 0
        status, reply = parked()
        assert (status, reply["message"]) == (453, "queue is shutting down")

    def test_ids_rise_although_the_clock_went_back(self, fresh):
        daemon = fresh()
        q = daemon.create()
        daemon.ok("clock.set", now="2030-01-01T00:00:00Z")
        daemon.produce(q, "a")
        (a,) = daemon.ids(q)
        daemon.complete(q, [a])
        daemon.restart()
        daemon.produce(q, "b")
        assert daemon.ids(q)[0] > a


class TestClock:
    def test_goes_where_it_is_told(self, daemon):
        assert daemon.ok("clock.set", now="2031-02-03T04:05:06Z") == {"now": "2031-02-03T04:05:06Z"}
        assert daemon.advance("90s") == "2031-02-03T04:06:36Z"
        assert daemon.ok("clock.set", now="2030-01-01T00:00:00Z") == {"now": "2030-01-01T00:00:00Z"}

    def test_stays_where_the_wire_can_tell_it(self, daemon):
        daemon.ok("clock.set", now="9999-12-31T23:00:00Z")
        assert daemon.error("clock.advance", by="1h") == (400, "now is invalid; year must be between 1 and 9999")
        assert daemon.now() == "9999-12-31T23:00:00Z"
        daemon.ok("clock.set", now="2030-01-01T00:00:00Z")


class TestMetrics:
    @staticmethod
    def oldest_age(daemon, queue) -> float:
        connection = http.client.HTTPConnection(daemon.http)
        connection.request("GET", "/metrics")
        name = f'querator_oldest_item_age_seconds{{queue="{queue}"}} '
        lines = connection.getresponse().read().decode().splitlines()
        (age,) = [float(line.removeprefix(name)) for line in lines if line.startswith(name)]
        return age

    def test_the_oldest_item_is_found_behind_younger_ones_and_not_among_those_that_are_gone(self, daemon):
        q = daemon.create()
        daemon.produce(q, "old")
        daemon.advance("10s")
        daemon.produce(q, "young")
        daemon.retry(q, daemon.ids(q)[0])
        assert self.oldest_age(daemon, q) == 10
        daemon.ok("storage/items.delete", queue_name=q, ids=[daemon.items(q)[1]["id"]])
        assert self.oldest_age(daemon, q) == 0
