"""A machine is lost under load, again and again: its daemon is killed, its data is deleted, and a standby takes over.

QUERATOR_LOST_ROUNDS=50 pytest tests/archive/test_machine_lost.py
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from querator import Client
from querator.errors import QueratorError
from tests.archive.object_stores import S3
from tests.daemons import Daemon, querator
from tests.waiting import until

ROUNDS = int(os.environ.get("QUERATOR_LOST_ROUNDS", "5"))


class Site:
    """Machines that share an archive: an owner and its standby."""

    def __init__(self, directory: Path, s3: S3, wait: bool) -> None:
        self.directory = directory
        url, options = s3.archive()
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
def site(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> Iterator[Site]:
    site = Site(tmp_path, s3, wait=request.param)
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
                client.produce("q", texts, timeout=20)
            except QueratorError:
                return
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
        clients = [Client(f"unix:{site.owner.socket}", timeout=20, patient=False) for _ in work]
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


def copied_objects(site: Site) -> int:
    """The number of the last object that the owner has put into the archive; 0 if there is none yet."""
    found = re.search(r"object (\d+)", site.owner.client.health()["archive"][0])
    return int(found.group(1)) if found else 0


def stored(site: Site) -> list[str]:
    return [item.payload.decode() for item in site.owner.client.list_items("q", partition=0, limit=100_000)]


@pytest.mark.parametrize("site", [True], indirect=True)
def test_with_wait_nothing_acknowledged_is_lost_and_nothing_is_held_twice(site: Site) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    clients = Clients(seed)
    site.owner.client.create_queue("q", lease_timeout="24h", expire_timeout="48h")
    for _ in range(ROUNDS):
        site.add_standby()
        clients.work_until_lost(site)
        site.lose_owner()
    there = stored(site)
    assert len(there) == len(set(there)), "something is stored twice"
    assert set(there) <= clients.begun
    lost = set(clients.acknowledged) - set(there) - clients.completing
    assert not lost, f"{len(lost)} of {len(clients.acknowledged)} acknowledged items are gone"
    assert not clients.completed & set(there), "completed and still there"
    assert len(clients.delivered) == len(set(clients.delivered)), "something was in two hands"
    assert clients.completed


@pytest.mark.parametrize("site", [False], indirect=True)
def test_without_wait_only_the_tail_is_lost(site: Site) -> None:
    clients = Clients(1)
    site.owner.client.create_queue("q", lease_timeout="24h", expire_timeout="48h")
    site.add_standby()
    over = threading.Event()
    producer = threading.Thread(target=clients.produce, args=(site.owner.connect(), over))
    producer.start()
    until(lambda: len(clients.acknowledged) >= 100)
    number = copied_objects(site)
    until(lambda: copied_objects(site) >= number + 2)  # the second one began after the hundred were acknowledged
    site.owner.process.kill()
    over.set()
    producer.join(60)
    site.lose_owner()
    there = stored(site)
    assert there == sorted(there, key=int)
    assert there == [f"{number}" for number in range(len(there))], "there is a hole"
    assert len(there) >= 100, "items that were copied are lost"
