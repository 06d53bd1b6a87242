"""8 producers and 8 consumers at full speed on 4 partitions, while an operator runs random commands.

    python -m tests.maintenance.torture --seconds 120 --seed 7 [--kill]

Every item that was acknowledged is completed exactly once or still in the queue, and no client sees anything but
success and 454. With `--kill` the daemon is killed and started again every few seconds, and clients lose their
connections, too. Prints a summary. A failure is an AssertionError that names the seed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import multiprocessing
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from querator import Client
from querator.errors import InvalidRequest, QueratorError, RetryRequest, TimedOut, Unreachable
from querator.wire import messages as m
from tests.daemons import Daemon, two_storages
from tests.maintenance.inspection import contents, jobs_ended

PROCESSES = 2
THREADS_EACH = 4
"""The number of producers, and of consumers, in each load process."""
CLIENT_SECONDS = 30.0
KILL_SECONDS = 6.0
LEASE_SECONDS = 20.0
NOT_NOW = (RetryRequest, TimedOut, Unreachable)
"""Errors that a client may get. Unreachable is allowed only while the daemon is killed."""


class Load:
    """The clients of one process. Their threads append the answers to shared lists."""

    def __init__(self, number: int, endpoint: str, seed: int, until: float) -> None:
        self.number, self.endpoint, self.seed, self.until = number, endpoint, seed, until
        self.produced: list[str] = []
        self.uncertain: list[str] = []
        """Items that were not acknowledged in time. They may be in the queue or not."""
        self.completed: list[str] = []
        self.errors: list[str] = []

    def run(self) -> dict[str, list[str]]:
        threads = [threading.Thread(target=self._produce, args=(n,)) for n in range(THREADS_EACH)]
        threads += [threading.Thread(target=self._consume, args=(n,)) for n in range(THREADS_EACH)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {name: getattr(self, name) for name in ("produced", "uncertain", "completed", "errors")}

    def _produce(self, thread: int) -> None:
        chance = random.Random(f"{self.seed} {self.number} {thread}")
        count = 0
        with Client(self.endpoint, timeout=CLIENT_SECONDS) as client:
            while time.monotonic() < self.until:
                size = chance.choice((1, 1, 1, 10, 100))
                texts = [f"{self.number}/{thread}/{count + n}" for n in range(size)]
                count += size
                try:
                    client.produce("q", texts)
                    self.produced += texts
                except NOT_NOW:
                    self.uncertain += texts
                except QueratorError as error:
                    self.errors.append(f"produce: {error!r}")

    def _consume(self, thread: int) -> None:
        chance = random.Random(f"{self.seed} {self.number} {thread} consumer")
        with Client(self.endpoint, timeout=CLIENT_SECONDS) as client:
            while time.monotonic() < self.until:
                try:
                    items = client.lease("q", chance.choice((1, 10, 200)), timeout=1.0).items
                except NOT_NOW:
                    continue
                except QueratorError as error:
                    self.errors.append(f"lease: {error!r}")
                    continue
                self._finish(client, items, chance)

    def _finish(self, client: Client, items: list[m.QueueLeaseItem], chance: random.Random) -> None:
        ids = [item.id for item in items]
        give_back = chance.random() < 0.05
        start = time.monotonic()
        end = start + CLIENT_SECONDS
        refused = False
        while time.monotonic() < end:
            try:
                if give_back:
                    client.retry("q", ids)
                else:
                    client.complete("q", ids)
                    self.completed += [item.payload.decode() for item in items]
                return
            except NOT_NOW:
                refused = True
            except QueratorError as error:
                # The first attempt may have succeeded, or the lease has ended in the meantime.
                waited = time.monotonic() - start
                may_be_lost = refused or waited > LEASE_SECONDS
                if not (may_be_lost and str(error).endswith("its lease was lost")):
                    self.errors.append(f"{'retry' if give_back else 'complete'} after {waited:.1f} s: {error!r}")
                return
        self.errors.append("an item could not be completed for too long")


def _load(results: Any, *arguments: Any) -> None:
    results.put(Load(*arguments).run())


class Operator:
    """Runs random commands on partitions, and finally makes all of them available."""

    def __init__(self, daemon: Daemon, seed: int, until: float, kill: bool) -> None:
        self.daemon, self.until, self.kill = daemon, until, kill
        self.chance = random.Random(seed)
        self.done: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []

    def run(self) -> None:
        deeds = (
            self.pause, self.drain, self.reload, self.offline, self.migrate_to_storage, self.migrate_into_partition,
            self.resize, self.backup, self.verify, self.compact,
        )  # fmt: skip
        kill_at = time.monotonic() + KILL_SECONDS
        while time.monotonic() < self.until:
            if self.kill and time.monotonic() > kill_at:
                self.daemon.kill()
                self.daemon.start()
                self.done["kill"] += 1
                kill_at = time.monotonic() + KILL_SECONDS * self.chance.random()
            deed = self.chance.choice(deeds)
            try:
                deed()
                self.done[deed.__name__] += 1
            except InvalidRequest:
                self.refused[deed.__name__] += 1  # another operation is under way
            except QueratorError as error:
                self.errors.append(f"{deed.__name__}: {error!r}")
        self.restore_order()

    @property
    def client(self) -> Client:
        return self.daemon.client

    def restore_order(self) -> None:
        for job in jobs_ended(self.client):
            if job.state != "done":
                self.errors.append(f"job {job}")
        for status in self.client.list_partitions("q"):
            if status.state == "unavailable":
                self.client.reload_partitions("q", [status.partition])
        self.client.resume_partitions("q")

    def some(self) -> list[int]:
        numbers = [status.partition for status in self.client.list_partitions("q")]
        return self.chance.sample(numbers, self.chance.randint(1, len(numbers)))

    def one(self) -> int:
        return self.chance.choice(self.client.list_partitions("q")).partition

    def wait(self) -> None:
        time.sleep(self.chance.random() * 0.2)

    def pause(self) -> None:
        some = self.some()
        self.client.pause_partitions("q", some, for_=self.chance.choice((None, 0.1)))
        self.wait()
        self.client.resume_partitions("q", some)

    def drain(self) -> None:
        some = self.some()
        self.client.drain_partitions("q", some)
        self.wait()
        self.client.resume_partitions("q", some)

    def reload(self) -> None:
        self.client.reload_partitions("q", self.some())

    def offline(self) -> None:
        some = self.some()[:2]
        self.client.offline_partitions("q", some)
        self.wait()
        while True:
            with contextlib.suppress(InvalidRequest):
                self.client.reload_partitions("q", some)
                return

    def migrate_to_storage(self) -> None:
        status = self.chance.choice(self.client.list_partitions("q"))
        self.client.migrate_partition(
            "q", status.partition, to_storage="other" if status.storage == "default" else "default"
        )
        self.wait()

    def migrate_into_partition(self) -> None:
        self.client.migrate_partition("q", self.one(), to_partition=self.one())
        self.wait()

    def resize(self) -> None:
        self.client.update_queue(m.QueueInfo(queue_name="q", requested_partitions=self.chance.randint(2, 6)))
        self.wait()

    def backup(self) -> None:
        self.client.backup_partitions("q", str(self.daemon.directory / "backup"))

    def verify(self) -> None:
        self.client.verify_partitions("q", self.some())
        self.wait()

    def compact(self) -> None:
        self.client.compact_partitions("q", self.some())
        self.wait()


def run(directory: Path, seconds: float, seed: int, kill: bool = False) -> str:
    with Daemon(directory, *two_storages(directory)) as daemon:
        # If the daemon is killed before it answers a lease, no client completes the items, and jobs wait until the
        # lease ends.
        lease_timeout = LEASE_SECONDS if kill else "10m"
        daemon.client.create_queue("q", partitions=4, lease_timeout=lease_timeout, expire_timeout="24h")
        until = time.monotonic() + seconds
        results: Any = multiprocessing.get_context("spawn").Queue()
        loads = [
            multiprocessing.get_context("spawn").Process(
                target=_load, args=(results, number, daemon.endpoint, seed, until)
            )
            for number in range(PROCESSES)
        ]
        for load in loads:
            load.start()
        operator = Operator(daemon, seed, until, kill)
        operator.run()
        told: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
        for _ in loads:
            for name, found in results.get(timeout=4 * CLIENT_SECONDS).items():
                told[name] += found
        for load in loads:
            load.join()
        operator.restore_order()
        return _judge(daemon, operator, told, seed)


def _judge(daemon: Daemon, operator: Operator, told: dict[str, list[str]], seed: int) -> str:
    left = contents(daemon.client)
    errors = told["errors"] + operator.errors
    assert not errors, f"seed {seed}: {len(errors)} errors, {errors[:5]}"
    completed = collections.Counter(told["completed"])
    remaining = collections.Counter(left)
    twice = [text for text, count in (completed + remaining).items() if count > 1]
    assert not twice, f"seed {seed}: {len(twice)} items twice, {twice[:5]}"
    lost = [text for text in told["produced"] if text not in completed and text not in remaining]
    assert not lost, f"seed {seed}: {len(lost)} items lost, {lost[:5]}"
    made_up = set(completed + remaining) - set(told["produced"]) - set(told["uncertain"])
    assert not made_up, f"seed {seed}: {len(made_up)} items that nobody produced, {list(made_up)[:5]}"
    daemon.client.verify_partitions("q")
    ended = jobs_ended(daemon.client)
    assert all(job.state == "done" for job in ended), f"seed {seed}: {ended}"
    return (
        f"{len(told['produced'])} produced, {len(told['completed'])} completed, {len(left)} left;"
        f" done {dict(operator.done)}, refused {dict(operator.refused)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kill", action="store_true", help="kill the daemon every few seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(run(Path(directory), options.seconds, options.seed, options.kill))


if __name__ == "__main__":
    main()
