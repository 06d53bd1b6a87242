"""The worker of `querator queue consume`, which runs a shell command for each item.

    main thread      leases items and passes them to the runners
    runner threads   run one command each
    keeper thread    completes finished items, and extends the leases of all held items
    ender thread     ends a command that runs too long, lost its lease, or must stop after a second signal

All threads share `Worker._lock`. No thread blocks while it holds the lock.
"""

from __future__ import annotations

import contextlib
import os
import queue as queues
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from querator.cli.queue.shell_command import ShellCommand
from querator.cli.terminal.id_lists import count
from querator.client import Client
from querator.errors import QueratorError, RetryRequest, TlsFailed, Unreachable
from querator.limits import US_PER_SECOND
from querator.wire.messages import QueueLeaseItem

LEASE_WAIT_SECONDS: Final = 60.0
EMPTY_WAIT_SECONDS: Final = 0.2
TICK_SECONDS: Final = 0.1
COMPLETE_SECONDS: Final = 1.0
"""A complete request that takes longer is repeated later, so that it does not delay other partitions."""
EXTEND_SHARE: Final = 1 / 3
"""Leases are extended after this fraction of the lease timeout."""


@dataclass(frozen=True)
class Backoff:
    shortest: float
    longest: float

    def delay(self, attempts: int, jitter: Callable[[], float] = random.random) -> float:
        """Seconds to wait after this many attempts. They double with each attempt; up to a quarter is random."""
        ceiling = min(self.longest, self.shortest * 2.0 ** min(max(attempts - 1, 0), 60))
        return max(self.shortest, ceiling * (0.75 + 0.25 * jitter()))


@dataclass(frozen=True)
class Plan:
    queue: str
    shell_command: str
    batch_size: int
    concurrency: int
    backoff: Backoff
    client_id: str | None
    limit: int | None
    until_empty: bool
    lease_seconds: float
    max_attempts: int
    patience_seconds: float
    """The worker fails if the daemon does not answer for this long. It should be longer than a restart of the daemon.
    """
    commands_stdout: int | None = None
    """File descriptor for the output of commands. None is our own standard output."""
    exec_timeout_seconds: float | None = None
    """A command that runs longer is ended, and its item is retried."""


@dataclass
class Tally:
    completed: int = 0
    retried: int = 0
    dead: int = 0
    handed_back: int = 0
    lost: int = 0
    not_completed: int = 0
    """Items that are done but still leased. They return to the queue when their leases end."""


@dataclass
class Held:
    """A leased item, until it is completed, retried, handed back or lost."""

    item: QueueLeaseItem
    partition: int = 0
    command: ShellCommand | None = None
    done: bool = False
    lost: bool = False


class Worker:
    """`leaser` and `client` connect to the same daemon. `leaser` only leases, so that `stop` can abort it."""

    def __init__(self, leaser: Client, client: Client, plan: Plan, note: Callable[[str], None]) -> None:
        self._leaser = leaser
        self._client = client
        self._plan = plan
        self._note = note
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._todo: queues.SimpleQueue[Held | None] = queues.SimpleQueue()
        self._room = threading.Semaphore(0)
        self._ended = threading.Event()
        # A signal handler sets these. It runs in the main thread, which may hold a lock at that moment.
        self._stopping = False
        self._killing = False
        self._started = 0
        self._failing_partitions: set[int] = set()
        """Partitions whose last complete failed. The failure is reported once per partition."""
        self.tally = Tally()
        self.failure: QueratorError | None = None

    def stop(self, *, at_once: bool = False) -> None:
        """Stop leasing. `at_once` also ends the running commands. Takes no lock, because a signal handler calls it."""
        self._stopping = True
        self._killing = self._killing or at_once
        self._leaser.abort()

    def run(self) -> Tally:
        runners = [
            threading.Thread(target=self._run_commands, name=f"runner-{number}", daemon=True)
            for number in range(self._plan.concurrency)
        ]
        keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        ender = threading.Thread(target=self._end_commands, name="ender", daemon=True)
        for thread in [keeper, ender, *runners]:
            thread.start()
        try:
            self._lease_until_stopped()
        except QueratorError as error:
            self.failure = error
        self._stopping = True
        self._hand_back_waiting()
        for _ in runners:
            self._todo.put(None)
        for thread in runners:
            while thread.is_alive():
                thread.join(TICK_SECONDS)  # signal handlers run in this thread, between two waits
        self._ended.set()
        keeper.join()
        ender.join()
        self._complete_done(self._plan.patience_seconds)
        self._give_up_done()
        return self.tally

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                setattr(self.tally, name, getattr(self.tally, name) + number)

    # Leasing

    def _lease_until_stopped(self) -> None:
        plan = self._plan
        while not self._stopping:
            wanted = plan.batch_size if plan.limit is None else min(plan.batch_size, plan.limit - self._started)
            if wanted == 0:
                return
            holding = self._lease(wanted)
            if not holding:
                if plan.until_empty and not self._is_working():
                    return
                continue
            with self._lock:
                self._held |= {held.item.id: held for held in holding}
            self._started += len(holding)
            for held in holding:
                self._todo.put(held)
            # Lease again only when the runners have started with all of these.
            for _ in holding:
                while not self._room.acquire(timeout=TICK_SECONDS):
                    if self._stopping:
                        return

    def _lease(self, wanted: int) -> list[Held]:
        """Lease items. Returns an empty list if there are none. Waits for a daemon that does not answer."""
        wait = EMPTY_WAIT_SECONDS if self._plan.until_empty else LEASE_WAIT_SECONDS
        give_up_at = time.monotonic() + self._plan.patience_seconds
        while True:
            try:
                reply = self._leaser.lease(self._plan.queue, wanted, client_id=self._plan.client_id, timeout=wait)
                return [Held(item, reply.partition) for item in reply.items]
            except RetryRequest:
                return []
            except QueratorError as error:
                if self._stopping:
                    return []
                is_away = isinstance(error, Unreachable) and not isinstance(error, TlsFailed)
                if not is_away or time.monotonic() >= give_up_at:
                    raise
                self._ended.wait(TICK_SECONDS)

    def _is_working(self) -> bool:
        with self._lock:
            return any(not held.done for held in self._held.values())

    # Running

    def _run_commands(self) -> None:
        while (held := self._todo.get()) is not None:
            self._room.release()
            if not self._claim(held):
                continue
            code, why, said = self._run_command(held)
            with self._lock:
                held.done = code == 0 and not held.lost
                if not held.done:
                    self._held.pop(held.item.id, None)
            if not held.done and not held.lost:
                self._retry(held.item, why, said)

    def _claim(self, held: Held) -> bool:
        """Whether this worker still holds the item. It may have been handed back, or its lease was lost."""
        with self._lock:
            if held.lost:
                self._held.pop(held.item.id, None)
            return held.item.id in self._held

    def _run_command(self, held: Held) -> tuple[int | None, str, str]:
        """Run the command. Returns its exit status or None, how it ended, and its last lines of standard error."""
        item = held.item
        environment = os.environ | {
            "QUERATOR_QUEUE": self._plan.queue,
            "QUERATOR_ITEM_ID": item.id,
            "QUERATOR_ITEM_KIND": item.kind.replace("\0", ""),
            "QUERATOR_ITEM_REFERENCE": item.reference.replace("\0", ""),
            "QUERATOR_ITEM_ENCODING": item.encoding.replace("\0", ""),
            "QUERATOR_ITEM_ATTEMPTS": str(item.attempts),
        }
        plan = self._plan
        try:
            command = ShellCommand(
                plan.shell_command, environment, stdout=plan.commands_stdout, timeout=plan.exec_timeout_seconds
            )
        except (OSError, ValueError) as error:
            return None, f"cannot run the command: {error}", ""
        held.command = command
        code = command.run(item.bytes_)
        held.command = None
        return code, command.outcome, command.last_lines

    def _end_commands(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                holding = list(self._held.values())
            now = time.monotonic()
            for held in holding:
                if (command := held.command) is not None:
                    if self._killing or held.lost:
                        command.end()
                    command.end_if_overdue(now)

    # Settling

    def _retry(self, item: QueueLeaseItem, why: str, said: str) -> None:
        plan = self._plan
        dead = plan.max_attempts > 0 and item.attempts >= plan.max_attempts
        delay = 0.0 if self._killing else plan.backoff.delay(item.attempts)
        try:
            # The daemon checks max_attempts only when a lease expires, so the worker must check it on a retry.
            reason = f"{why}\n{said}" if said else why
            self._client.retry(plan.queue, [item.id], at=None if dead else _in(delay), dead=dead, reason=reason)
        except QueratorError as error:
            self._note(f"{item.id}: {why}; could not be retried: {error.message}")
            self._count(lost=1)
            return
        self._count(dead=int(dead), retried=int(not dead))
        again = f"again in {delay:.1f}s" if delay else "again at once"
        outcome = f"dead after {count(item.attempts, 'attempt')}" if dead else again
        self._note(f"{item.id}: {why}; {outcome}")

    def _hand_back_waiting(self) -> None:
        """Return items that no runner has started with, so that other consumers can lease them."""
        waiting: list[str] = []
        with contextlib.suppress(queues.Empty):
            while True:
                held = self._todo.get_nowait()
                if held is not None:
                    with self._lock:
                        if self._held.pop(held.item.id, None) is not None:
                            waiting.append(held.item.id)
        if not waiting:
            return
        try:
            self._client.retry(self._plan.queue, waiting, unused=True)
            self._count(handed_back=len(waiting))
        except QueratorError as error:
            self._note(f"could not hand back {len(waiting)} items, their leases will expire: {error.message}")

    def _complete_done(self, timeout: float) -> None:
        """Complete finished items. Items that cannot be completed now stay held, and are tried again later."""
        for partition, ids in self._ids_by_partition(only_done=True):
            completed, refused, error = self._ask(
                ids, lambda some: self._client.complete(self._plan.queue, some, timeout=timeout), keeps_earlier=True
            )
            with self._lock:
                for id in (*completed, *refused):
                    self._held.pop(id, None)
            self._count(completed=len(completed), lost=len(refused))
            for id, text in refused.items():
                self._note(f"{id}: {text}")
            if error is None:
                self._failing_partitions.discard(partition)
            elif partition not in self._failing_partitions:
                self._failing_partitions.add(partition)
                self._note(f"could not complete {len(ids) - len(completed)} items yet, trying again: {error.message}")

    def _give_up_done(self) -> None:
        """Report finished items that could not be completed before the worker ends."""
        left = len(self._held)
        if left:
            self._note(f"could not complete {left} items; they will be leased again when their leases expire")
            self._count(not_completed=left)

    def _ids_by_partition(self, *, only_done: bool) -> list[tuple[int, list[str]]]:
        """The held ids by partition, so that a failing partition does not delay the others."""
        found: dict[int, list[str]] = {}
        with self._lock:
            for id, held in self._held.items():
                if (held.done or not only_done) and not held.lost:
                    found.setdefault(held.partition, []).append(id)
        return list(found.items())

    @staticmethod
    def _ask(
        ids: Sequence[str], send: Callable[[list[str]], Any], *, keeps_earlier: bool
    ) -> tuple[list[str], dict[str, str], QueratorError | None]:
        """Send ids in batches. Returns accepted ids, refused ids with reasons, and the error that stopped it early."""
        from querator.cli.terminal.id_lists import Verdicts, batches

        verdicts = Verdicts()
        try:
            for batch in batches(ids):
                verdicts.apply(batch, send, keeps_earlier=keeps_earlier)
        except QueratorError as error:
            return verdicts.done, verdicts.failed, error
        return verdicts.done, verdicts.failed, None

    # Keeping

    def _keep(self) -> None:
        pause = self._plan.lease_seconds * EXTEND_SHARE
        extend_at = time.monotonic() + pause
        while not self._ended.wait(min(TICK_SECONDS, pause)):
            self._complete_done(min(pause, COMPLETE_SECONDS))
            if time.monotonic() >= extend_at:
                self._extend_held(min(pause, self._plan.patience_seconds))
                extend_at = time.monotonic() + pause

    def _extend_held(self, timeout: float) -> None:
        for _, ids in self._ids_by_partition(only_done=False):
            _, refused, error = self._ask(
                ids, lambda some: self._client.extend(self._plan.queue, some, timeout=timeout), keeps_earlier=False
            )
            if error is not None:
                self._note(f"could not extend {len(ids)} leases: {error.message}")
            with self._lock:
                # An item that was settled during the request is not lost. For a finished item, the complete request
                # will show whether its lease is lost.
                gone = [held for id in refused if (held := self._held.get(id)) is not None and not held.done]
                for held in gone:
                    held.lost = True
            self._count(lost=len(gone))
            for held in gone:
                self._note(f"{held.item.id}: {refused[held.item.id]}; its command is stopped")


def _in(delay: float) -> int | None:
    return None if delay == 0 else time.time_ns() // 1_000 + round(delay * US_PER_SECOND)
