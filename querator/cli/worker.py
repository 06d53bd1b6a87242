"""A worker that runs a shell command per item, and never holds an item without either working on it or giving it back.

    main thread      leases, completing in the same request what is done, and hands items to the runners
    runner threads   one command each
    keeper thread    extends the leases of everything that is held, and completes what is done while a lease waits

All of them share `Worker._lock`; nothing blocks while holding it.
"""

from __future__ import annotations

import contextlib
import os
import queue as queues
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from querator.client import Client
from querator.errors import InvalidRequest, QueratorError, RetryRequest, Unreachable
from querator.limits import BATCH_ITEMS_MAX, US_PER_SECOND
from querator.wire.messages import QueueLeaseItem

LEASE_WAIT_SECONDS: Final = 60.0
EMPTY_WAIT_SECONDS: Final = 0.2
TICK_SECONDS: Final = 0.1
EXTEND_SHARE: Final = 1 / 3
"""Leases are extended when this share of the queue's lease timeout has passed."""


@dataclass(frozen=True)
class Backoff:
    shortest: float
    longest: float

    def delay(self, attempts: int, jitter: Callable[[], float] = random.random) -> float:
        """Doubles with every attempt, up to the longest; a quarter of it is left to chance."""
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
    """How long a daemon may be away, such as for a restart."""
    commands_stdout: int | None = None
    """Where the commands write; None is our own standard output."""


@dataclass
class Tally:
    completed: int = 0
    retried: int = 0
    dead: int = 0
    handed_back: int = 0
    lost: int = 0


@dataclass
class Held:
    item: QueueLeaseItem
    process: subprocess.Popen[bytes] | None = None
    lost: bool = False


class Worker:
    """`leaser` and `client` reach the same daemon; the first is only used to lease, so that it can be broken off."""

    def __init__(self, leaser: Client, client: Client, plan: Plan, note: Callable[[str], None]) -> None:
        self._leaser = leaser
        self._client = client
        self._plan = plan
        self._note = note
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._done: list[str] = []
        self._todo: queues.SimpleQueue[Held | None] = queues.SimpleQueue()
        self._room = threading.Semaphore(0)
        self._ended = threading.Event()
        # Set by a signal handler, which runs in the main thread at any moment, perhaps while that holds a lock.
        self._stopping = False
        self._killing = False
        self._started = 0
        self.tally = Tally()
        self.failure: QueratorError | None = None

    def stop(self, *, at_once: bool = False) -> None:
        """Lease no more; `at_once` ends the running commands too. Called from a signal handler: takes no lock."""
        self._stopping = True
        self._killing = self._killing or at_once
        self._leaser.abort()

    def run(self) -> Tally:
        runners = [
            threading.Thread(target=self._run_commands, name=f"runner-{number}", daemon=True)
            for number in range(self._plan.concurrency)
        ]
        keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        for thread in [keeper, *runners]:
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
                thread.join(TICK_SECONDS)
                if self._killing:
                    self._kill_running()
        self._ended.set()
        keeper.join()
        self._complete_done()
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
            items = self._lease(wanted)
            if not items:
                if plan.until_empty and not self._is_holding():
                    return
                continue
            with self._lock:
                holding = [Held(item) for item in items]
                self._held |= {held.item.id: held for held in holding}
            self._started += len(holding)
            for held in holding:
                self._todo.put(held)
            # The next lease waits until the runners have begun with all of these.
            for _ in holding:
                while not self._room.acquire(timeout=TICK_SECONDS):
                    if self._stopping:
                        return

    def _lease(self, wanted: int) -> list[QueueLeaseItem]:
        """Items, or none if there are none; a daemon that is away is waited for."""
        give_up_at = time.monotonic() + self._plan.patience_seconds
        while True:
            try:
                return self._lease_now(wanted)
            except Unreachable:
                if time.monotonic() >= give_up_at:
                    raise
                self._ended.wait(TICK_SECONDS)

    def _lease_now(self, wanted: int) -> list[QueueLeaseItem]:
        done = self._take_done()
        wait = EMPTY_WAIT_SECONDS if self._plan.until_empty else LEASE_WAIT_SECONDS
        try:
            reply = self._leaser.lease(
                self._plan.queue, wanted, client_id=self._plan.client_id, complete_ids=done, timeout=wait
            )
        except RetryRequest:
            # Nothing to lease; what was to be completed is completed.
            self._count(completed=len(done))
            return []
        except InvalidRequest:
            if not done:
                raise
            self._complete(done)
            return []
        except QueratorError:
            self._give_done_back(done)
            if self._stopping:
                return []
            raise
        self._count(completed=len(done))
        return reply.items

    def _is_holding(self) -> bool:
        with self._lock:
            return bool(self._held)

    # Running

    def _run_commands(self) -> None:
        while (held := self._todo.get()) is not None:
            self._room.release()
            if self._stopping and not self._claim(held):
                continue
            code = self._run_command(held)
            if code == 0:
                with self._lock:
                    self._held.pop(held.item.id, None)
                    if not held.lost:
                        self._done.append(held.item.id)
            else:
                self._retry(held, code)

    def _claim(self, held: Held) -> bool:
        """Whether this item is still ours to work on: when stopping, it may just have been handed back."""
        with self._lock:
            return held.item.id in self._held

    def _run_command(self, held: Held) -> int | str:
        """The exit status, or in words why there is none."""
        item = held.item
        environment = os.environ | {
            "QUERATOR_QUEUE": self._plan.queue,
            "QUERATOR_ITEM_ID": item.id,
            "QUERATOR_ITEM_KIND": item.kind.replace("\0", ""),
            "QUERATOR_ITEM_REFERENCE": item.reference.replace("\0", ""),
            "QUERATOR_ITEM_ENCODING": item.encoding.replace("\0", ""),
            "QUERATOR_ITEM_ATTEMPTS": str(item.attempts),
        }
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._plan.shell_command],
                stdin=subprocess.PIPE,
                stdout=self._plan.commands_stdout,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the worker, which lets its commands finish
            )
        except (OSError, ValueError) as error:
            return f"cannot run the command: {error}"
        with self._lock:
            held.process = process
        if self._killing:
            _end(process)
        process.communicate(item.bytes_)
        with self._lock:
            held.process = None
        return process.returncode

    def _kill_running(self) -> None:
        with self._lock:
            running = [held.process for held in self._held.values() if held.process is not None]
        for process in running:
            _end(process)

    # Settling

    def _retry(self, held: Held, code: int | str) -> None:
        item, plan = held.item, self._plan
        why = code if isinstance(code, str) else _status(code)
        with self._lock:
            self._held.pop(item.id, None)
        if held.lost:
            return
        dead = plan.max_attempts > 0 and item.attempts >= plan.max_attempts
        delay = 0.0 if self._killing else plan.backoff.delay(item.attempts)
        try:
            # The daemon counts attempts when a lease runs out, not when an item is handed back; so this is ours to say.
            self._client.retry(plan.queue, [item.id], at=None if dead else _in(delay), dead=dead)
        except QueratorError as error:
            self._note(f"{item.id}: {why}; could not be retried: {error.message}")
            self._count(lost=1)
            return
        self._count(dead=int(dead), retried=int(not dead))
        again = f"again in {delay:.1f}s" if delay else "again at once"
        outcome = f"dead after {item.attempts} attempts" if dead else again
        self._note(f"{item.id}: {why}; {outcome}")

    def _hand_back_waiting(self) -> None:
        """What no runner has begun with goes back at once, for others."""
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
            self._client.retry(self._plan.queue, waiting)
            self._count(handed_back=len(waiting))
        except QueratorError as error:
            self._note(f"could not hand back {len(waiting)} items, their leases will run out: {error.message}")

    def _take_done(self) -> list[str]:
        with self._lock:
            done, self._done = self._done[:BATCH_ITEMS_MAX], self._done[BATCH_ITEMS_MAX:]
            return done

    def _give_done_back(self, done: list[str]) -> None:
        with self._lock:
            self._done = done + self._done

    def _complete_done(self) -> None:
        while done := self._take_done():
            self._complete(done)

    def _complete(self, done: list[str]) -> None:
        """Complete these; an id that is refused does not keep the others from it."""
        from querator.cli.ids import Verdicts

        verdicts = Verdicts()
        try:
            verdicts.apply(done, lambda some: self._client.complete(self._plan.queue, some), keeps_earlier=True)
        except QueratorError as error:
            lost = len(done) - len(verdicts.done)
            self._note(f"could not complete {lost} items: {error.message}")
            self._count(lost=lost - len(verdicts.failed))
        for id, text in verdicts.failed.items():
            self._note(f"{id}: {text}")
        self._count(completed=len(verdicts.done), lost=len(verdicts.failed))

    # Keeping

    def _keep(self) -> None:
        pause = self._plan.lease_seconds * EXTEND_SHARE
        extend_at = time.monotonic() + pause
        while not self._ended.wait(min(TICK_SECONDS, pause)):
            self._complete_done()
            if time.monotonic() >= extend_at:
                self._extend_held()
                extend_at = time.monotonic() + pause

    def _extend_held(self) -> None:
        from querator.cli.ids import Verdicts, batches

        with self._lock:
            ids = list(self._held)
        verdicts = Verdicts()
        try:
            for batch in batches(ids):
                verdicts.apply(batch, lambda some: self._client.extend(self._plan.queue, some), keeps_earlier=False)
        except QueratorError as error:
            self._note(f"could not extend leases: {error.message}")
        with self._lock:
            # Work that ended while we asked is not lost: its id is gone because it was settled.
            gone = [self._held[id] for id in verdicts.failed if id in self._held]
            for held in gone:
                held.lost = True
        self._count(lost=len(gone))
        for held in gone:
            self._note(f"{held.item.id}: {verdicts.failed[held.item.id]}")


def _in(delay: float) -> int | None:
    return None if delay == 0 else time.time_ns() // 1_000 + round(delay * US_PER_SECOND)


def _status(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
