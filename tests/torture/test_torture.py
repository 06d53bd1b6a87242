"""A daemon is killed again and again under load, and its answers are compared with what it stores.

Producers and consumers record what they sent and what was acknowledged. The daemon is killed at a random moment, or at
the Nth write to the journal, sync of the journal or apply to a file. Then it starts again on the same data. In the end
every acknowledged item is stored or was completed, no completed item is still stored, and no item was delivered twice.

    QUERATOR_TORTURE_ROUNDS=500 QUERATOR_TORTURE_SEED=7 pytest tests/torture
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import Daemon, UnixConnection
from tests.waiting import PATIENCE_SECONDS

ROUNDS = int(os.environ.get("QUERATOR_TORTURE_ROUNDS", "20"))
SEED = int(os.environ.get("QUERATOR_TORTURE_SEED", "0")) or random.randrange(10**9)
CLIENTS = 4
FAILPOINTS = ("journal.written", "journal.synced", "apply.committed")


class Gone(Exception):
    """The daemon does not answer any more."""


class Connection(UnixConnection):
    def call(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        try:
            self.request("POST", f"/v1/{path}", json.dumps(body), {"Content-Type": "application/json"})
            response = self.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Gone from error


class History:
    """What the clients have sent and received. Each client adds its own part from its own thread."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self.acknowledged: set[str] = set()
        self.delivered: list[str] = []
        self.completing: set[str] = set()
        self.completed: set[str] = set()
        self.refusals: list[Any] = []
        self.progress = threading.Condition()
        self.steps = 0

    def step(self) -> None:
        with self.progress:
            self.steps += 1
            self.progress.notify_all()


class Torture:
    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.history = History()
        self.numbers = itertools.count()
        self.over = threading.Event()

    def start(self, failpoint: str = "") -> None:
        # A failpoint may kill the daemon while it still starts.
        self.daemon = Daemon(self.directory, failpoint=failpoint, may_fail=bool(failpoint))
        assert "traceback" not in self.daemon.output, self.daemon.output

    def connection(self) -> Connection:
        return Connection(self.daemon.socket)

    # -- clients

    def producer(self, queue: str, seed: int) -> None:
        chance, connection = random.Random(seed), self.connection()
        while not self.over.is_set():
            texts = [f"{next(self.numbers)}" for _ in range(chance.choice((1, 1, 3, 20)))]
            self.history.begun.update(texts)
            # Now and then large items, which are left in the journal until they are applied.
            filling = f" {'x' * 70_000}" if chance.random() < 0.1 else ""
            items = [{"utf8": text + filling} for text in texts]
            status, reply = connection.call("queue.produce", queue_name=queue, request_timeout="30s", items=items)
            if status == 200:
                self.history.acknowledged.update(texts)
            elif status != 454:
                self.history.refusals.append(reply)
            self.history.step()

    def consumer(self, queue: str, seed: int) -> None:
        chance, connection = random.Random(seed), self.connection()
        while not self.over.is_set():
            batch = {"batch_size": chance.choice((1, 5, 50)), "client_id": f"{seed}", "request_timeout": "100ms"}
            status, reply = connection.call("queue.lease", queue_name=queue, **batch)
            if status == 454:
                continue
            if status != 200:
                self.history.refusals.append(reply)
                continue
            texts = [base64.b64decode(item["bytes"]).decode().partition(" ")[0] for item in reply["items"]]
            ids = [item["id"] for item in reply["items"]]
            self.history.delivered += texts
            if chance.random() < 0.2:
                continue  # keeps the items, which stay leased until the end
            self.history.completing.update(texts)
            partition = reply.get("partition", 0)
            status, reply = connection.call(
                "queue.complete", queue_name=queue, partition=partition, ids=ids, request_timeout="30s"
            )
            if status == 200:
                self.history.completed.update(texts)
            elif status != 454:
                self.history.refusals.append(reply)
            self.history.step()

    # -- rounds

    def round(self, number: int) -> None:
        how = self.random.choice(("SIGKILL", *FAILPOINTS))
        count = self.random.randint(1, 200) if how.startswith("journal") else 1
        self.start(f"{how}:{count}" if how in FAILPOINTS else "")
        with contextlib.suppress(Gone):
            self.create_queues()
        self.over.clear()
        threads = [
            threading.Thread(target=self.client, args=(work, f"q{n % 2}", number * 100 + n * 2 + kind))
            for n in range(CLIENTS)
            for kind, work in enumerate((self.producer, self.consumer))
        ]
        for thread in threads:
            thread.start()
        target = self.history.steps + self.random.randint(1, 300)
        with self.history.progress:
            self.history.progress.wait_for(
                lambda: self.history.steps >= target or self.daemon.process.poll() is not None, PATIENCE_SECONDS
            )
        self.daemon.kill()
        self.over.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a client was never answered"

    def create_queues(self) -> None:
        connection = self.connection()
        for n in range(2):
            settings = {"lease_timeout": "24h", "expire_timeout": "48h", "requested_partitions": n + 1}
            connection.call("queues.create", queue_name=f"q{n}", **settings)

    def client(self, work: Any, *args: Any) -> None:
        with contextlib.suppress(Gone):
            work(*args)
        self.history.step()

    def stored(self) -> list[str]:
        self.start()
        connection, found = self.connection(), []
        for n in range(2):
            for partition in range(n + 1):
                pivot = ""
                while True:
                    status, reply = connection.call(
                        "storage/items.list", queue_name=f"q{n}", partition=partition, pivot=pivot, limit=1001
                    )
                    assert status == 200, reply
                    items = reply.get("items", [])
                    found += [base64.b64decode(item["payload"]).decode().partition(" ")[0] for item in items[:1000]]
                    if len(items) <= 1000:
                        break
                    pivot = items[1000]["id"]
        assert self.daemon.stop() == 0
        return found


@pytest.mark.parametrize("rounds", [ROUNDS])
def test_nothing_acknowledged_is_lost_and_nothing_is_in_two_hands(tmp_path_factory, rounds):
    torture = Torture(tmp_path_factory.mktemp("t"), SEED)
    print(f"seed {SEED}")
    for number in range(rounds):
        torture.round(number)
    history, stored = torture.history, torture.stored()
    assert history.refusals == []
    assert len(stored) == len(set(stored)), "something is stored twice"
    assert set(stored) <= history.begun, "something nobody sent"
    lost = history.acknowledged - set(stored) - history.completing
    assert not lost, f"{len(lost)} of {len(history.acknowledged)} acknowledged items are gone: {sorted(lost)[:5]}"
    undead = history.completed & set(stored)
    assert not undead, f"completed and still there: {sorted(undead)[:5]}"
    assert len(history.delivered) == len(set(history.delivered)), "something was in two hands"
    assert history.completed, "nothing happened"
