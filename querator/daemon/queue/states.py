"""The partition state machine (ADR 37): what each state allows, and where each event leads. Pure tables.

An operator asks for one of the first four states, which survives restarts. A failing storage puts the partition into
`error`, and recovery returns it to the state that the operator asked for.

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
"""Restricts an open partition while a job moves its items into other partitions: it takes no new items."""

HELD: Final = Allows(produce=False, lease=False, complete=True, lifecycle=False, storage=True)
"""Restricts an open partition until the job knows which items of an interrupted move have arrived."""


def restricted(allows: Allows, overlay: Allows) -> Allows:
    """What a partition allows if both of these apply."""
    return Allows(*[a and b for a, b in zip(allows, overlay, strict=True)])


class Event(enum.StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    OFFLINE = "offline"
    RELOAD = "reload"
    FAIL = "fail"
    RECOVER = "recover"


class Standing(NamedTuple):
    """The state that an operator asked for, and whether the storage fails."""

    requested: State
    failing: bool = False

    @property
    def state(self) -> State:
        return State.ERROR if self.failing else self.requested


# event → where it leads from each state in which it is allowed. Any other state is refused.
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
"""The requested state after a reload, by the one before it. A failing storage makes no difference."""

WAY_OUT: Final[dict[State, str]] = {
    State.AVAILABLE: "it serves already",
    State.PAUSED: "resume it first",
    State.DRAINING: "resume it first",
    State.UNAVAILABLE: "reload it to bring it back",
    State.ERROR: "it recovers when its storage does; reload it to try now, or take it offline to repair its file",
}


def after(event: Event, standing: Standing, number: int) -> Standing:
    """Where an event leads. Refuses with a sentence that names the state and the way out."""
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
    """The error for a call that is not possible in this state; it names the way out."""
    named = f"in {state}" if state is State.ERROR else str(state)
    return InvalidRequest(f"cannot {verb} partition; partition '{number}' is {named}, {WAY_OUT[state]}")
