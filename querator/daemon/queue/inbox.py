"""Takes requests into a pass, and answers requests that time out. Part of the Logical's pass."""

from __future__ import annotations

from querator.daemon.queue import leasing, repeats
from querator.daemon.queue.passes import COMPLETES, LEASE, MIXED, PRODUCES, Pass
from querator.daemon.queue.requests import (
    Arrival,
    Change,
    Complete,
    Extend,
    LeaseItems,
    Produce,
    Request,
    Retry,
    failing,
)
from querator.errors import QueratorError, RetryRequest

LEASE_TIMEOUT = "request timeout; no items are in the queue, try again"
PRODUCE_TIMEOUT = "request timeout; no partition is available, try again"
UNREAD_TIMEOUT = (
    "request timeout; partition '{}' cannot be read and may have taken a request with this request id, try again"
)


def collect(this: Pass) -> None:
    """Takes requests from the inbox, in arrival order, up to the first change, which gets a pass of its own. Leases are
    parked.
    """
    arrived, held_up = this.inbox, this.held_up
    this.only = MIXED if held_up else _only_kind(this, arrived)
    if this.only != MIXED:
        this.inbox, this.taken = this.taken, arrived  # `taken` was empty
        return
    produces: list[Produce | Arrival] = []
    completes: list[Request] = []
    this.produces, this.completes = produces, completes
    if held_up:
        this.inbox, this.taken = [], [*held_up, *arrived]
        this.held_up = None
        # The files may have been read since these requests came.
        produces += [request for request in held_up if not request.keys or repeats.may_enter(this, request)]
    else:
        this.inbox, this.taken = this.taken, arrived
    for at, request in enumerate(arrived):
        if isinstance(request, Produce):
            if not request.request_id or repeats.may_enter(this, request):
                produces.append(request)
        elif isinstance(request, LeaseItems):
            leasing.arrive(this, request)
        elif isinstance(request, Complete):
            completes.append(request)
        elif isinstance(request, Change):
            if at == 0:
                _change(this, request)
                at = 1
            if at < len(arrived):
                this.inbox.extend(arrived[at:])
                this.wake()
            break
        elif isinstance(request, Arrival):
            if repeats.may_enter(this, request):
                produces.append(request)
        else:
            completes.append(request)
    if this.repeats.to_look_up:
        repeats.look_up(this)


def _only_kind(this: Pass, arrived: list[Request]) -> int:
    """PRODUCES, COMPLETES or LEASE if all of these are simple requests of that kind, as mostly. MIXED if not."""
    kind = MIXED
    for request in arrived:
        if type(request) is Produce:
            if request.timed or request.request_id or request.answered or kind == COMPLETES:
                return MIXED
            kind = PRODUCES
        elif type(request) is Complete and kind != PRODUCES:
            kind = COMPLETES
        else:
            is_alone = len(arrived) == 1 and len(this.order) == 1 and not this.agenda.has_parked
            is_new = type(request) is LeaseItems and not (request.order or request.abandoned)
            return LEASE if is_alone and is_new else MIXED
    return kind


def _change(this: Pass, request: Change) -> None:
    this.agenda.look_at_all = True
    for partition in request.partitions:
        if not partition.allows.storage:
            this.answer(request, RetryRequest(failing(partition.number)))
            return
    try:
        result = request.run(this.now_us)
    except QueratorError as error:
        result = error
    this.answer(request, result, set(request.partitions))


def time_out(this: Pass) -> None:
    """Answers the requests whose deadline has passed."""
    for request in this.deadlines.take_overdue(this.now_ns):
        if isinstance(request, LeaseItems):
            if this.parked.remove(request):
                this.answer(request, RetryRequest(LEASE_TIMEOUT))
        elif isinstance(request, Produce | Arrival):
            if this.held_up and request in this.held_up:
                this.held_up.remove(request)
            if isinstance(request, Produce):
                this.repeats.give_up(request)
            unread = repeats.unread(this, request)
            reason = PRODUCE_TIMEOUT if unread is None else UNREAD_TIMEOUT.format(unread.number)
            this.answer(request, RetryRequest(reason))


def answer_all(this: Pass, error: QueratorError) -> None:
    """Answers every request that waits, because the queue stops."""
    under_way = this.repeats.under_way.values()
    for request in [
        *this.inbox,
        *this.parked.waiting.values(),
        *(this.held_up or ()),
        *under_way,
        *this.moves.retrying,
    ]:
        request.answer(error)
    this.moves.retrying.clear()
    this.inbox.clear()
    this.parked.clear()
    this.held_up = None


def waiting_requests(this: Pass) -> dict[str, int]:
    """The number of requests that wait, by kind."""
    produces = len(this.held_up or ()) + this.repeats.looking_up
    kinds = {"produce": produces, "lease": len(this.parked.waiting), "complete": this.looking_up}
    for request in this.inbox:
        if isinstance(request, Produce):
            kinds["produce"] += 1
        elif isinstance(request, LeaseItems):
            kinds["lease"] += 1
        elif isinstance(request, Complete | Retry | Extend):
            kinds["complete"] += 1
    return kinds
