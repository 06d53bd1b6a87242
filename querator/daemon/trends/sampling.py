"""Samples every queue every ten seconds, and has the samples written and down-sampled in a thread.

A round samples queues for at most `SLICE_SECONDS` at a time, and lets the loop run in between. A round that has used up
its time (`TREND_ROUND_SECONDS_MAX`) stops, and the next one begins with the remaining queues. So with very many busy
queues, the samples become rarer but not more expensive.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from querator import limits
from querator.clock import Clock
from querator.daemon.queue import Logical
from querator.daemon.registry import Registry
from querator.daemon.trends import rings
from querator.daemon.trends.rings import COARSER, FINE, SLOTS_PER_FILE, Resolution, Sample
from querator.daemon.trends.slots import Slots, tag_of
from querator.items import State
from querator.limits import US_PER_SECOND

log = logging.getLogger("querator.trends")

LOOK_SECONDS: Final = 0.25
"""The time between two looks at the clock. Sampling follows the daemon's clock, which a test may move."""
SLICE_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.01
SEVERITY: Final = {State.AVAILABLE: 0, State.DRAINING: 1, State.PAUSED: 2, State.UNAVAILABLE: 3, State.ERROR: 4}


class LatestSample(NamedTuple):
    """One queue when it was last sampled."""

    name: str
    at_us: int
    state: str
    """The worst state of its partitions."""
    severity: int
    reason: str
    ready: int
    leased: int
    scheduled: int
    produced: int
    leases: int
    completed: int
    dead: int
    """The counters since the queue was loaded, which begin at 0 after a restart."""
    oldest_created_at: int | None
    rate_in: float
    rate_out: float
    partitions: int
    stopped: int
    """Partitions that are not available."""
    deaths: tuple[tuple[int, int], ...]
    """How many items died, by the time of the sample that noticed, within the last 15 minutes."""
    died: int
    """The sum of them."""


class Trends:
    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self.clock = clock
        self.slots = Slots(directory / "slots.json")
        self.standings: dict[str, LatestSample] = {}
        self._past_deaths: dict[str, tuple[tuple[int, int], ...]] = {}
        """The deaths before the daemon started, of queues that were not sampled since."""
        self.is_open = False
        """Whether the past was read. Samples taken earlier would not know it."""
        self._began_us = clock.now_us()
        self._step = self._began_us // US_PER_SECOND // FINE.step_seconds
        """The step of the last round. The first round waits for the next step, because an earlier process may have
        written this one."""
        self._next = 0
        """The number of the queue with which the next round begins."""
        self._due: deque[tuple[Resolution, Resolution, int, int]] = deque()
        """Steps that are to be down-sampled: from, to, file, time."""

    async def watch(self, registry: Registry) -> None:
        """Samples for as long as the daemon runs."""
        await registry.blocking(self._open)
        await self._recall_deaths(registry)
        self.is_open = True
        while True:
            try:
                await self.look(registry)
            except OSError as error:
                log.warning("the history of the queues cannot be written", extra={"reason": str(error)})
            await asyncio.sleep(LOOK_SECONDS)

    def _open(self) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.slots.load()

    async def _recall_deaths(self, registry: Registry) -> None:
        """Reads the deaths of the last 15 minutes from the history, because the counters began at 0."""
        slots = {
            slot: (name, tag_of(queue))
            for name, queue in registry.queues.items()
            if (slot := self.slots.find(name)) is not None
        }
        tags = {slot: tag for slot, (_, tag) in slots.items()}
        until = self._began_us // US_PER_SECOND + 1
        found = await registry.blocking(rings.read_deaths, self.directory, tags, until - FINE.covered_seconds, until)
        for slot, deaths in found.items():
            self._past_deaths[slots[slot][0]] = tuple([(at * US_PER_SECOND, count) for at, count in deaths])

    async def look(self, registry: Registry) -> None:
        """Samples all queues if a step has passed since the last round."""
        now_us = self.clock.now_us()
        step = now_us // US_PER_SECOND // FINE.step_seconds
        if step == self._step:
            return
        last, self._step = self._step, step
        samples = await self._sample(registry, step * FINE.step_seconds)
        names = self.slots.changes()
        self._plan_coarser(last, step)
        share = -(-len(self._due) // 20)
        work = [self._due.popleft() for _ in range(share)]
        await registry.blocking(self._write, step * FINE.step_seconds, samples, names, work)

    async def _sample(self, registry: Registry, at: int) -> dict[int, Sample]:
        logicals = list(registry.logicals.values())
        self.slots.keep_only(registry.logicals)
        if len(self.standings) > len(logicals):
            self.standings = {name: one for name, one in self.standings.items() if name in registry.logicals}
        found: dict[int, Sample] = {}
        used = 0.0
        started = time.perf_counter()
        for number in range(len(logicals)):
            place = (self._next + number) % len(logicals)
            logical = logicals[place]
            self._sample_one(logical, at, found)
            elapsed = time.perf_counter() - started
            if elapsed > SLICE_SECONDS:
                used += elapsed
                if used > limits.TREND_ROUND_SECONDS_MAX:
                    self._next = place + 1
                    return found
                await asyncio.sleep(REST_SECONDS)
                started = time.perf_counter()
        self._next = 0
        return found

    def stand(self, logical: Logical) -> LatestSample:
        """The current figures of a queue, with the rates of its last sample."""
        before = self.standings.get(logical.queue.name)
        return _standing(logical, self.clock.now_us(), before, self._past_deaths.get(logical.queue.name, ()))

    def latest(self, logical: Logical) -> LatestSample:
        """The last sample of a queue, or its current figures if it was created since the last round."""
        return self.standings.get(logical.queue.name) or self.stand(logical)

    def _sample_one(self, logical: Logical, at: int, found: dict[int, Sample]) -> None:
        queue = logical.queue
        before = self.standings.get(queue.name)
        now_us = self.clock.now_us()
        past_deaths = self._past_deaths.pop(queue.name, ())
        standing = self.standings[queue.name] = _standing(logical, now_us, before, past_deaths)
        slot = self.slots.of(queue.name)
        if before is None or standing.produced < before.produced or standing.completed < before.completed:
            # The queue was just loaded or replaced. Its counters began at 0.
            at_us = max(now_us - FINE.step_seconds * US_PER_SECOND, self._began_us, queue.created_at)
            before = standing._replace(at_us=at_us, produced=0, leases=0, completed=0, dead=0)
        oldest = standing.oldest_created_at
        found[slot] = Sample(
            at=at,
            tag=tag_of(queue),
            seconds=max(1, round((now_us - before.at_us) / US_PER_SECOND)),
            ready=standing.ready,
            leased=standing.leased,
            scheduled=standing.scheduled,
            produced=standing.produced - before.produced,
            leases=standing.leases - before.leases,
            completed=standing.completed - before.completed,
            dead=standing.dead - before.dead,
            oldest_age_us=0 if oldest is None else max(0, now_us - oldest),
        )

    def _plan_coarser(self, last: int, step: int) -> None:
        """Notes which steps of coarser resolutions have ended since the last round; at most the last two."""
        now = step * FINE.step_seconds
        for finer, coarser in COARSER:
            ended = now // coarser.step_seconds
            first = max(last * FINE.step_seconds // coarser.step_seconds, ended - 2)
            for number in range(first, ended):
                for file in range(-(-len(self.slots) // SLOTS_PER_FILE)):
                    self._due.append((finer, coarser, file, number * coarser.step_seconds))

    def _write(
        self,
        at: int,
        samples: dict[int, Sample],
        names: bytes,
        work: Iterable[tuple[Resolution, Resolution, int, int]],
    ) -> None:
        rings.write(self.directory, FINE, at, samples)
        self.slots.save(names)
        for finer, coarser, file, time_ in work:
            rings.coarsen(self.directory, finer, coarser, file, time_)


def _standing(
    logical: Logical, now_us: int, before: LatestSample | None, past_deaths: tuple[tuple[int, int], ...]
) -> LatestSample:
    counters = logical.counters
    ready = leased = scheduled = severity = stopped = 0
    state, reason = State.AVAILABLE, ""
    for partition in logical.partitions:
        counts = partition.counts
        ready += counts.ready
        leased += counts.leased
        scheduled += counts.scheduled
        reported = partition.reported_state
        if reported is not State.AVAILABLE:
            stopped += 1
            if SEVERITY[reported] > severity:
                state, severity = reported, SEVERITY[reported]
        reason = reason or partition.trouble
    dead = sum(counters.dead.values())
    is_idle = (
        before is not None
        and (before.produced, before.leases, before.completed, before.ready, before.leased, before.dead)
        == (counters.produced, counters.leased, counters.completed, ready, leased, dead)
    )  # fmt: skip
    if before is not None and is_idle:
        oldest = before.oldest_created_at
    else:
        oldest = logical.oldest_created_at()
    deaths = _deaths(before, now_us, dead, past_deaths)
    seconds = (now_us - before.at_us) / US_PER_SECOND if before is not None else 0.0
    return LatestSample(
        name=logical.queue.name,
        at_us=now_us,
        state=state.value,
        severity=severity,
        reason=reason,
        ready=ready,
        leased=leased,
        scheduled=scheduled,
        produced=counters.produced,
        leases=counters.leased,
        completed=counters.completed,
        dead=dead,
        oldest_created_at=oldest,
        rate_in=max(0, counters.produced - before.produced) / seconds if before is not None and seconds > 0 else 0.0,
        rate_out=max(0, counters.completed - before.completed) / seconds if before is not None and seconds > 0 else 0.0,
        partitions=len(logical.partitions),
        stopped=stopped,
        deaths=deaths,
        died=sum([count for _, count in deaths]),
    )


def _deaths(
    before: LatestSample | None, now_us: int, dead: int, past_deaths: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    """The deaths of the last 15 minutes. Before the first sample, the counter started at 0."""
    deaths, dead_before = (before.deaths, before.dead) if before is not None else (past_deaths, 0)
    if deaths and deaths[0][0] <= now_us - FINE.covered_seconds * US_PER_SECOND:
        deaths = tuple([one for one in deaths if one[0] > now_us - FINE.covered_seconds * US_PER_SECOND])
    return (*deaths, (now_us, dead - dead_before)) if dead > dead_before else deaths
