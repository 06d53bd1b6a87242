"""The partition state machine (ADR 23): what each state allows, and which event leads where. Pure tables.

What an operator asked for is one of the first four states and survives restarts; `error` is laid over it by a failing
storage and taken away by recovery, which returns to what the operator asked for.

    pause    available, draining             → paused
    resume   paused, draining                → available
    drain    available, paused               → draining
    offline  any                             → unavailable
    reload   any → unavailable, read again   → available (draining stays draining)
    fail     any                             → error
    recover  error                           → what was asked for
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from querator.errors import InvalidRequest
from querator.items import State


class Allows(NamedTuple):
    produce: bool
    lease: bool
    complete: bool
    """complete, retry and extend"""
    lifecycle: bool
    storage: bool
    """the file is open and may be read and written"""


ALLOWS: Final[dict[State, Allows]] = {
    State.AVAILABLE: Allows(produce=True, lease=True, complete=True, lifecycle=True, storage=True),
    State.PAUSED: Allows(produce=False, lease=False, complete=True, lifecycle=True, storage=True),
    State.DRAINING: Allows(produce=False, lease=True, complete=True, lifecycle=True, storage=True),
    State.UNAVAILABLE: Allows(produce=False, lease=False, complete=False, lifecycle=False, storage=False),
    State.ERROR: Allows(produce=False, lease=False, complete=False, lifecycle=False, storage=False),
}

LEAVING: Final = ALLOWS[State.AVAILABLE]._replace(produce=False)
"""Laid over any open state while a partition's items are moved into another one: it takes no new ones."""

HELD: Final = Allows(produce=False, lease=False, complete=True, lifecycle=False, storage=True)
"""Laid over any open state until it is known what a move that was interrupted has brought to its destination."""


def restricted(allows: Allows, overlay: Allows) -> Allows:
    """What is left when both must agree."""
    return Allows(*(a and b for a, b in zip(allows, overlay, strict=True)))


class Event(enum.StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    OFFLINE = "offline"
    RELOAD = "reload"
    FAIL = "fail"
    RECOVER = "recover"


class Standing(NamedTuple):
    """What an operator asked for, and whether a failing storage is laid over it."""

    requested: State
    failing: bool = False

    @property
    def state(self) -> State:
        return State.ERROR if self.failing else self.requested


# event → where it leads from each state in which it may be asked for. What is not here is refused.
REQUESTS: Final[dict[Event, dict[State, State]]] = {
    Event.PAUSE: dict.fromkeys((State.AVAILABLE, State.PAUSED, State.DRAINING), State.PAUSED),
    Event.RESUME: dict.fromkeys((State.AVAILABLE, State.PAUSED, State.DRAINING), State.AVAILABLE),
    Event.DRAIN: dict.fromkeys((State.AVAILABLE, State.PAUSED, State.DRAINING), State.DRAINING),
    Event.OFFLINE: dict.fromkeys(State, State.UNAVAILABLE),
}

RELOADED: Final[dict[State, State]] = {
    State.AVAILABLE: State.AVAILABLE,
    State.PAUSED: State.AVAILABLE,
    State.DRAINING: State.DRAINING,
    State.UNAVAILABLE: State.AVAILABLE,
}
"""What a partition is after a reload, by what was asked for before; also when the storage failed meanwhile."""

WAY_OUT: Final[dict[State, str]] = {
    State.AVAILABLE: "it serves already",
    State.PAUSED: "resume it first",
    State.DRAINING: "resume it first",
    State.UNAVAILABLE: "reload it to bring it back",
    State.ERROR: "it recovers when its storage does; reload it to try now, or take it offline to repair its file",
}


def after(event: Event, standing: Standing, number: int) -> Standing:
    """Where an event leads; refuses with a sentence that names the state and the way out."""
    match event:
        case Event.FAIL:
            return Standing(standing.requested, failing=True)
        case Event.RECOVER:
            return Standing(standing.requested)
        case Event.RELOAD:
            return Standing(RELOADED[standing.requested])
    target = REQUESTS[event].get(standing.state)
    if target is None:
        raise refusal(event, number, standing.state)
    return Standing(target)


def refusal(verb: str, number: int, state: State) -> InvalidRequest:
    """What cannot be done with a partition in this state, and the way out."""
    named = f"in {state}" if state is State.ERROR else str(state)
    return InvalidRequest(f"cannot {verb} partition; partition '{number}' is {named}, {WAY_OUT[state]}")
