"""The calls `queues.history` (what a queue held and did over time) and `queues.overview` (one page of the list of all
queues).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from querator import durations
from querator.daemon.access import Caller, Right
from querator.daemon.registry import Calls, CallsByCaller, Registry
from querator.daemon.trends import rings
from querator.daemon.trends.rings import FINE, RESOLUTIONS, Resolution, Sample
from querator.daemon.trends.sampling import LatestSample, Trends
from querator.daemon.trends.slots import tag_of
from querator.errors import InvalidRequest
from querator.limits import NS_PER_SECOND, OVERVIEW_LIMIT_DEFAULT, OVERVIEW_LIMIT_MAX, US_PER_SECOND
from querator.wire import messages

SPARK_POINTS: Final = 30
SLICE_QUEUES: Final = 250
"""So many queues are looked at without a pause. Then the loop serves other requests."""
_US_PER_MS: Final = 1_000

_ORDERS: Final[Mapping[str, Callable[[LatestSample], Any]]] = {
    "trouble": lambda one: (-bool(one.reason), -one.severity, -one.died, -one.ready),
    "name": lambda one: one.name.encode(),
    "ready": lambda one: -one.ready,
    "leased": lambda one: -one.leased,
    "scheduled": lambda one: -one.scheduled,
    "in": lambda one: -one.rate_in,
    "out": lambda one: -one.rate_out,
    "age": lambda one: one.oldest_created_at or 1 << 62,
    "dead": lambda one: -one.died,
}


async def history(registry: Registry, request: messages.QueuesHistoryRequest) -> messages.QueuesHistoryResponse:
    logical = registry.find(request.queue_name)
    seconds = _seconds(request.last) if request.last else FINE.covered_seconds
    resolution = next((one for one in RESOLUTIONS if seconds <= one.covered_seconds), None)
    if resolution is None:
        raise InvalidRequest(f"last is invalid; the history covers {durations.text_days(_covered_ns())}")
    samples = (await _read(registry, resolution, seconds, [logical.queue.name]))[logical.queue.name]
    return messages.QueuesHistoryResponse(
        queue_name=logical.queue.name,
        step=durations.text(resolution.step_seconds * NS_PER_SECOND),
        samples=_history_samples(samples),
        now=registry.trends.clock.now_us(),
    )


def _seconds(text: str) -> int:
    try:
        seconds = durations.parse(text) // NS_PER_SECOND
    except ValueError as error:
        raise InvalidRequest(f"last is invalid; {error} - expected format: 15m, 24h or 168h") from None
    if seconds <= 0:
        raise InvalidRequest("last is invalid; must be at least a second")
    return seconds


def _covered_ns() -> int:
    return RESOLUTIONS[-1].covered_seconds * NS_PER_SECOND


async def _read(
    registry: Registry, resolution: Resolution, seconds: int, names: Sequence[str]
) -> dict[str, list[Sample]]:
    """The samples of queues, by name. Steps of a coarser resolution that are not computed yet are left out."""
    trends: Trends = registry.trends
    slots = {name: slot for name in names if (slot := trends.slots.find(name)) is not None}
    tags = {slot: tag_of(registry.queues[name]) for name, slot in slots.items() if name in registry.queues}
    until = trends.clock.now_us() // US_PER_SECOND + 1
    found = await registry.blocking(rings.read, trends.directory, resolution, tags, until - seconds, until)
    return {name: found.get(slots.get(name, -1), []) for name in names}


def _history_samples(samples: Sequence[Sample]) -> list[messages.HistorySample]:
    """The samples as messages, with two times that follow from Little's law: how long items wait, and how long they are
    held.

    The number of items in a place equals the rate at which they leave it, times how long each stays.
    """
    described = []
    for sample in samples:
        described.append(
            messages.HistorySample(
                at=sample.at * US_PER_SECOND,
                seconds=sample.seconds,
                ready=sample.ready,
                leased=sample.leased,
                scheduled=sample.scheduled,
                produced=sample.produced,
                leases=sample.leases,
                completed=sample.completed,
                dead=sample.dead,
                oldest_age_ms=sample.oldest_age_us // _US_PER_MS,
                wait_ms=_stay_ms(sample.ready, sample.leases, sample.seconds),
                held_ms=_stay_ms(sample.leased, sample.completed, sample.seconds),
            )
        )
    return described


def _stay_ms(items: int, left: int, seconds: int) -> int | None:
    """How long an item stays, in milliseconds. None if items stayed and none left, so that the time is not known."""
    if left:
        return items * seconds * 1_000 // left
    return None if items else 0


class Totals(NamedTuple):
    """Sums over all queues that match; `queues` are all that the caller may see."""

    queues: int
    matching: int
    troubled: int
    ready: int
    leased: int
    scheduled: int
    died: int


class _OverviewPage(NamedTuple):
    """The queues of one page, and the sums over all queues that match."""

    chosen: list[LatestSample]
    totals: Totals
    dead_queues: set[str]


async def overview(
    registry: Registry, request: messages.QueuesOverviewRequest, caller: Caller
) -> messages.QueuesOverviewResponse:
    """Sorts all queues by their last samples, and reads current figures only for the queues on the page."""
    order = _ORDERS.get(request.sort or "trouble")
    if order is None:
        raise InvalidRequest(f"sort is invalid; '{request.sort}' is none of {', '.join(_ORDERS)}")
    if request.offset < 0 or not 0 <= request.limit <= OVERVIEW_LIMIT_MAX:
        raise InvalidRequest(f"limit is invalid; it must be from 0 to {OVERVIEW_LIMIT_MAX}, and offset not negative")
    trends: Trends = registry.trends
    end = request.offset + (request.limit or OVERVIEW_LIMIT_DEFAULT)
    selection = await _select(registry, caller, request.contains.lower(), order, end)
    names = [one.name for one in selection.chosen[request.offset :] if one.name in registry.logicals]
    fresh = [trends.stand(registry.logicals[name]) for name in names]
    samples = await _read(registry, FINE, FINE.covered_seconds, names)
    now_us = trends.clock.now_us()
    totals = selection.totals
    return messages.QueuesOverviewResponse(
        **totals._asdict(),
        items=[
            _row(
                registry, one, caller.readable(one.reason), samples[one.name], one.name in selection.dead_queues, now_us
            )
            for one in fresh
            if one.name in registry.logicals
        ],
    )


async def _select(
    registry: Registry, caller: Caller, text: str, order: Callable[[LatestSample], Any], limit: int
) -> _OverviewPage:
    """The first `limit` queues that match, in order. Lets the loop run now and then: there may be 10,000 queues."""
    trends: Trends = registry.trends
    names = list(registry.logicals)
    best: list[tuple[Any, str, LatestSample]] = []
    queues = matching = troubled = ready = leased = scheduled = died = 0
    dead_queues: set[str] = set()
    for start in range(0, len(names), SLICE_QUEUES):
        if start:
            await asyncio.sleep(0)
        for name in names[start : start + SLICE_QUEUES]:
            logical = registry.logicals.get(name)
            if logical is None or not caller.may(Right.VIEW, name):
                continue
            queues += 1
            dead_queues.add(logical.queue.dead_queue)
            if text and text not in name.lower():
                continue
            one = trends.latest(logical)
            best.append((order(one), name, one))
            matching += 1
            if one.severity or one.reason:
                troubled += 1
            ready += one.ready
            leased += one.leased
            scheduled += one.scheduled
            died += one.died
        best.sort(key=itemgetter(0, 1))
        del best[limit:]
    totals = Totals(queues, matching, troubled, ready, leased, scheduled, died)
    return _OverviewPage([one for _, _, one in best], totals, dead_queues)


def _row(
    registry: Registry, one: LatestSample, reason: str, samples: Sequence[Sample], is_dead_queue: bool, now_us: int
) -> messages.QueueOverview:
    logical = registry.logicals[one.name]
    done = logical.last_minute(now_us)
    oldest = one.oldest_created_at
    return messages.QueueOverview(
        queue_name=one.name,
        state=one.state,
        reason=reason,
        ready=one.ready,
        leased=one.leased,
        scheduled=one.scheduled,
        produced_last_minute=done.produced,
        completed_last_minute=done.completed,
        died=one.died,
        oldest_age_ms=0 if oldest is None else max(0, now_us - oldest) // _US_PER_MS,
        dead_queue=registry.queues[one.name].dead_queue,
        is_dead_queue=is_dead_queue,
        depths=_spark(samples, now_us),
        partitions=one.partitions,
        stopped=one.stopped,
    )


def _spark(samples: Sequence[Sample], now_us: int) -> list[int]:
    """Depths over the last 15 minutes in equal intervals: the largest depth of each. An interval without a sample
    repeats the last one.
    """
    width = FINE.covered_seconds // SPARK_POINTS
    begin = now_us // US_PER_SECOND - FINE.covered_seconds
    shares: dict[int, int] = {}
    for sample in samples:
        share = min(SPARK_POINTS - 1, max(0, (sample.at - begin) // width))
        shares[share] = max(shares.get(share, 0), sample.ready + sample.leased)
    points: list[int] = []
    for number in range(SPARK_POINTS):
        if number in shares:
            points.append(shares[number])
        elif points:
            points.append(points[-1])
    return points


CALLS: Calls = {"queues.history": history}
CALLS_BY_CALLER: CallsByCaller = {"queues.overview": overview}
