"""The state machine: the effect of every event in every state, and what each state allows."""

from __future__ import annotations

import itertools

import pytest

from querator.daemon.queue.states import ALLOWS, HELD, LEAVING, Event, Standing, after, restricted
from querator.errors import InvalidRequest
from querator.items import State

A, P, D, U, E = State.AVAILABLE, State.PAUSED, State.DRAINING, State.UNAVAILABLE, State.ERROR

# Rows: the requested state before the event. Columns: the state after it, or "-" if the event is refused.
EXPECTED = """
              pause        resume      drain      offline       reload      fail   recover
available     paused       available   draining   unavailable   available   error  available
paused        paused       available   draining   unavailable   available   error  paused
draining      paused       available   draining   unavailable   draining    error  draining
unavailable   -            -           -          unavailable   available   error  unavailable
error:available    -       -           -          unavailable   available   error  available
error:paused       -       -           -          unavailable   available   error  paused
error:draining     -       -           -          unavailable   draining    error  draining
error:unavailable  -       -           -          unavailable   available   error  unavailable
"""


def cases() -> list[tuple[Standing, Event, str]]:
    head, *rows = EXPECTED.strip().splitlines()
    found = []
    for row in rows:
        name, *leads = row.split()
        failing = name.startswith("error:")
        standing = Standing(State(name.removeprefix("error:")), failing)
        found += [(standing, Event(event), lead) for event, lead in zip(head.split(), leads, strict=True)]
    return found


def test_the_table_below_has_every_state_and_every_event():
    walked = {(standing.requested, standing.failing, event) for standing, event, _ in cases()}
    assert walked == set(itertools.product((A, P, D, U), (False, True), Event))


@pytest.mark.parametrize(("standing", "event", "lead"), cases())
def test_where_an_event_leads(standing, event, lead):
    if lead == "-":
        with pytest.raises(InvalidRequest) as refused:
            after(event, standing, 3)
        text = refused.value.message
        named = "in error" if standing.failing else standing.state
        assert text.startswith(f"cannot {event} partition; partition '3' is {named}, ")
        assert "reload" in text
    else:
        assert after(event, standing, 3).state == lead


@pytest.mark.parametrize("event", [Event.PAUSE, Event.RESUME, Event.DRAIN, Event.OFFLINE])
def test_asking_for_the_state_that_it_has_changes_nothing(event):
    for state in (A, P, D, U):
        try:
            target = after(event, Standing(state), 0)
        except InvalidRequest:
            continue
        assert after(event, target, 0) == target


def test_what_each_state_allows():
    allowed = {state: {name for name, yes in ALLOWS[state]._asdict().items() if yes} for state in State}
    assert allowed == {
        A: {"produce", "lease", "complete", "lifecycle", "storage"},
        P: {"complete", "lifecycle", "storage"},
        D: {"lease", "complete", "lifecycle", "storage"},
        U: set(),
        E: set(),
    }


def test_an_overlay_only_takes_away():
    for state, overlay in itertools.product(State, (LEAVING, HELD)):
        both = restricted(ALLOWS[state], overlay)
        assert all(not (now and not before) for now, before in zip(both, ALLOWS[state], strict=True))
