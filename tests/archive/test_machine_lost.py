"""A machine is lost under load, again and again: its daemon is killed, its data is deleted, and a standby takes over.

QUERATOR_LOST_ROUNDS=50 pytest tests/archive/test_machine_lost.py
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from querator import Client
from querator.errors import QueratorError
from tests.archive.object_stores import S3, FaultyProxy, Handler
from tests.daemons import Daemon, querator
from tests.waiting import until

ROUNDS = int(os.environ.get("QUERATOR_LOST_ROUNDS", "5"))
ROUND_SECONDS_MAX = 120
"""A test may take this long for each of its rounds, however many there are. A round takes about eight seconds."""
REQUEST_SECONDS_MAX = 3.0
"""A client repeats a request for this long after its machine is lost, so most of a round is this."""

pytestmark = pytest.mark.timeout(ROUNDS * ROUND_SECONDS_MAX)


class Site:
    """Machines that share an archive: an owner and its standby."""

    def __init__(self, directory: Path, archive: tuple[str, dict[str, str]], wait: bool) -> None:
        self.directory = directory
        url, options = archive
        self.config = directory / "querator.toml"
        lines = [f'{name} = "{value}"' for name, value in options.items()]
        settings = [f'url = "{url}"', f"wait = {str(wait).lower()}", 'interval = "200ms"', 'heartbeat = "500ms"']
        self.config.write_text("\n".join(["[archive]", *settings, "[archive.options]", *lines]))
        self._numbers = itertools.count()
        self.owner = self.machine()
        self.standby: Daemon | None = None

    def machine(self, *options: str) -> Daemon:
        directory = self.directory / f"machine-{next(self._numbers)}"
        directory.mkdir()
        return Daemon(directory, "--config", str(self.config), *options)

    def add_standby(self) -> None:
        """Adds a standby that could be promoted: it has compared its clock with the owner's."""
        standby = self.standby = self.machine("--standby")
        until(lambda: "compared" not in standby.client.health()["archive"][0], "the standby sees no heartbeats")

    def lose_owner(self) -> None:
        self.owner.kill()
        shutil.rmtree(self.owner.data)
        assert self.standby is not None
        done = querator(self.directory, "daemon", "promote", "--data", str(self.standby.data), "--timeout", "60s")
        assert done.returncode == 0, done.stderr + self.standby.output
        self.owner, self.standby = self.standby, None

    def close(self) -> None:
        for daemon in (self.owner, self.standby):
            if daemon is not None:
                daemon.kill()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, s3: S3, proxy: FaultyProxy) -> Iterator[Site]:
    site = Site(tmp_path, s3.archive(proxy.endpoint), wait=request.param)
    yield site
    site.close()


class Clients:
    """Producers and consumers that record the answers they got."""

    def __init__(self, seed: int) -> None:
        self.numbers = itertools.count()
        self.chance = random.Random(seed)
        self.begun: set[str] = set()
        self.acknowledged: list[str] = []
        self.delivered: list[str] = []
        self.completing: set[str] = set()
        self.completed: set[str] = set()

    def produce(self, client: Client, over: threading.Event) -> None:
        while not over.is_set():
            texts = [f"{next(self.numbers)}" for _ in range(self.chance.choice((1, 3)))]
            self.begun.update(texts)
            try:
                client.produce("q", texts, timeout=REQUEST_SECONDS_MAX)
            except QueratorError:
                continue  # on a slow machine, the archive may not have it in time
            self.acknowledged += texts

    def consume(self, client: Client, over: threading.Event) -> None:
        while not over.is_set():
            try:
                found = client.lease("q", 2, timeout=1)
                texts = [item.bytes_.decode() for item in found.items]
                self.delivered += texts
                if self.chance.random() < 0.3:
                    continue  # holds them: their leases are long
                self.completing.update(texts)
                client.complete("q", [item.id for item in found.items], partition=found.partition)
                self.completed.update(texts)
            except QueratorError:
                if over.is_set():
                    return

    def work_until_lost(self, site: Site) -> None:
        over = threading.Event()
        work = (self.produce, self.produce, self.consume)
        clients = [Client(f"unix:{site.owner.socket}", timeout=REQUEST_SECONDS_MAX, patient=False) for _ in work]
        threads = [threading.Thread(target=one, args=(client, over)) for one, client in zip(work, clients, strict=True)]
        target = len(self.acknowledged) + self.chance.randint(5, 60)
        for thread in threads:
            thread.start()
        until(lambda: len(self.acknowledged) >= target)
        site.owner.process.kill()
        over.set()
        for thread in threads:
            thread.join(60)
        for client in clients:
            client.close()

    def check(self, there: list[str]) -> None:
        """Compares what a new owner has with the answers so far."""
        assert len(there) == len(set(there)), "something is stored twice"
        assert set(there) <= self.begun
        lost = set(self.acknowledged) - set(there) - self.completing
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged items are gone"
        assert not self.completed & set(there), "completed and still there"
        assert len(self.delivered) == len(set(self.delivered)), "something was in two hands"


def report(number: int, began: float, what: str) -> None:
    """For whoever runs many rounds with `pytest -s`."""
    print(f"round {number + 1} of {ROUNDS}: {time.monotonic() - began:.1f} s, {what}", flush=True)


def stored(site: Site) -> list[str]:
    return [item.payload.decode() for item in site.owner.client.list_items("q", partition=0, limit=100_000)]


@pytest.mark.parametrize("site", [True], indirect=True)
def test_with_wait_nothing_acknowledged_is_lost_and_nothing_is_held_twice(site: Site) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    clients = Clients(seed)
    site.owner.client.create_queue("q", lease_timeout="24h", expire_timeout="48h")
    for number in range(ROUNDS):
        began = time.monotonic()
        site.add_standby()
        clients.work_until_lost(site)
        site.lose_owner()
        clients.check(stored(site))
        report(number, began, f"{len(clients.acknowledged)} items acknowledged, {len(clients.completed)} completed")
    assert clients.completed


class Witness:
    """Sees the puts of the owner pass by, and knows what was acknowledged before each cut was made."""

    def __init__(self, proxy: FaultyProxy) -> None:
        self.acknowledged: list[int] = []
        self._shipped = 0
        """Everything before this in `acknowledged` is in the archive."""
        self._before_cut = 0
        """Everything before this was acknowledged when the last put had been answered, so the next cut has it."""
        proxy.fault = self

    def __call__(self, handler: Handler, body: bytes) -> bool:
        if handler.command != "PUT" or "/log/" not in handler.path:
            return False
        status, headers, answer = handler.passed_on(body)
        if status == 200:
            # The owner makes its next cut when it has this answer.
            self._shipped, self._before_cut = self._before_cut, len(self.acknowledged)
        handler.answer(status, headers, answer)
        return True

    def must_be_there(self) -> list[int]:
        return self.acknowledged[: self._shipped]

    def begin(self, there: Collection[int]) -> None:
        """What is lost is lost: a new owner begins with what the standby had."""
        self.acknowledged = [number for number in self.acknowledged if number in there]
        self._shipped = self._before_cut = len(self.acknowledged)


@pytest.mark.parametrize("site", [False], indirect=True)
def test_without_wait_only_the_tail_is_lost(site: Site, proxy: FaultyProxy) -> None:
    """What the last put but one could have had is there, and nothing is missing before something that is there."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    witness = Witness(proxy)
    numbers = itertools.count()
    site.owner.client.create_queue("q", lease_timeout="24h", expire_timeout="48h")
    lost = 0

    def produce(client: Client) -> None:
        for number in numbers:
            try:
                client.produce("q", f"{number}", timeout=REQUEST_SECONDS_MAX)
            except QueratorError:
                if site.owner.process.poll() is not None:
                    return
                continue
            witness.acknowledged.append(number)

    for round_number in range(ROUNDS):
        began = time.monotonic()
        site.add_standby()
        with Client(f"unix:{site.owner.socket}", timeout=REQUEST_SECONDS_MAX, patient=False) as client:
            producer = threading.Thread(target=produce, args=(client,))
            producer.start()
            target = len(witness.acknowledged) + chance.randint(10, 300)
            until(lambda target=target: len(witness.acknowledged) >= target)
            site.owner.process.kill()
            producer.join(60)
        acknowledged, must_be_there = list(witness.acknowledged), witness.must_be_there()
        site.lose_owner()
        there = [int(text) for text in stored(site)]
        assert there == sorted(set(there))
        # One number may be there that was not acknowledged, because its answer was on its way. If the machine was lost
        # before anything was shipped, nothing is there.
        last = max(there, default=-1)
        assert [number for number in acknowledged if number <= last] == [n for n in there if n in set(acknowledged)]
        assert set(must_be_there) <= set(there), "items that were copied are lost"
        lost += len(set(acknowledged) - set(there))
        witness.begin(set(there))
        report(round_number, began, f"{len(there)} items are there, {lost} were lost")
    print(f"{lost} of {next(numbers)} items were lost in {ROUNDS} rounds")
