"""The partition state machine (ADR 23): what each state allows, and which request leads where. Pure tables.

What an operator asked for is one of the first four states; `error` is laid over it by the storage and taken away by
recovery.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from querator.errors import InvalidRequest
from querator.items import State


class Allows(NamedTuple):
    produce: bool
    lease: bool
    complete: bool
    """complete, retry and extend"""
    lifecycle: bool
    due: bool
    """scheduled items that come due enter this partition"""
    storage: bool
    """the file is open and may be read and written"""


ALLOWS: Final[dict[State, Allows]] = {
    State.AVAILABLE: Allows(produce=True, lease=True, complete=True, lifecycle=True, due=True, storage=True),
    State.PAUSED: Allows(produce=False, lease=False, complete=True, lifecycle=True, due=False, storage=True),
    State.DRAINING: Allows(produce=False, lease=True, complete=True, lifecycle=True, due=False, storage=True),
    State.UNAVAILABLE: Allows(produce=False, lease=False, complete=False, lifecycle=False, due=False, storage=False),
    State.ERROR: Allows(produce=False, lease=False, complete=False, lifecycle=False, due=False, storage=False),
}

# event → the states it may be asked for in, and where it leads. Reload is not here: it is offline, then back.
TRANSITIONS: Final[dict[str, tuple[frozenset[State], State]]] = {
    "pause": (frozenset({State.AVAILABLE, State.DRAINING, State.PAUSED}), State.PAUSED),
    "resume": (frozenset({State.PAUSED, State.DRAINING, State.AVAILABLE}), State.AVAILABLE),
    "drain": (frozenset({State.AVAILABLE, State.PAUSED, State.DRAINING}), State.DRAINING),
    "offline": (frozenset(State), State.UNAVAILABLE),
}

WAY_OUT: Final[dict[State, str]] = {
    State.AVAILABLE: "it serves already",
    State.PAUSED: "resume it first",
    State.DRAINING: "resume it first",
    State.UNAVAILABLE: "reload it to bring it back",
    State.ERROR: "it recovers when its storage does; reload it to try now, or take it offline to repair its file",
}


def after(event: str, state: State, number: int) -> State:
    """The state that an event leads to; refuses with a sentence that names the state and the way out."""
    sources, target = TRANSITIONS[event]
    if state not in sources:
        raise InvalidRequest(f"cannot {event} partition; partition '{number}' is {state}, {WAY_OUT[state]}")
    return target
