"""Drives a queue and its dead queue at random, with failing writes, clock jumps and restarts, beside a simple model.

Four things must hold. No acknowledged item is lost. No item is leased to two clients at once. A partition leases its
items in the order of their ids. The counts are those of the storage.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from querator import limits
from querator.config_file import LimitsConfig
from querator.daemon.queue.requests import REPEATED
from querator.errors import QueratorError
from querator.ids import decode
from tests.daemon.driver import SECOND, Answer, Driver

counts = st.integers(1, 5)


class QueueMachine(RuleBasedStateMachine):
    """A subclass chooses the storage."""

    def make_driver(self, bounds: LimitsConfig) -> Driver:
        return Driver(bounds=bounds)

    @initialize(
        partitions=st.integers(1, 3),
        max_attempts=st.sampled_from([0, 0, 1, 3]),
        dead=st.booleans(),
        window=st.sampled_from([2, 5, 12, 20_000]),
        in_runs=st.booleans(),
    )
    def start(self, partitions: int, max_attempts: int, dead: bool, window: int, in_runs: bool) -> None:
        limits.RUN_ITEMS_MIN = limits.HAND_ITEMS_MIN = 2 if in_runs else 16
        self.d = self.make_driver(LimitsConfig(ready_window_items=window))
        self.d.create("dead", expire_s=10**9)
        self.d.create(
            partitions=partitions,
            max_attempts=max_attempts,
            dead_queue="dead" if dead else "",
            lease_s=60,
            expire_s=1000,
        )
        self.keeps_everything = dead
        self.number = 0
        self.made: dict[str, Answer] = {}
        """Payload → the answer to its produce."""
        self.completed: set[str] = set()
        """Payloads for which a complete was sent, whether it succeeded or not."""
        self.hands: dict[str, tuple[str, int]] = {}
        """Payload → the id and deadline of its lease."""
        self.parked: list[Answer] = []
        self.got: list[list[tuple[str, str]]] = []
        """The payloads and ids that one lease request got."""
        self.last_leased: dict[int, int] = {}
        self.write_fails = 0
        self.d.failing_writes = self.failing

    def teardown(self) -> None:
        limits.RUN_ITEMS_MIN = limits.HAND_ITEMS_MIN = 16

    def failing(self) -> str | None:
        if self.write_fails:
            self.write_fails -= 1
            return "the disk said no"
        return None

    # -- what clients do

    @rule(count=counts | st.just(15), ahead=st.sampled_from([None, None, None, 0, 30, 500]), repeat=st.booleans())
    def produce(self, count: int, ahead: int | None, repeat: bool) -> None:
        texts = [f"{self.number + n}" for n in range(count)]
        self.number += count
        at = None if ahead is None else self.d.now_us + ahead * SECOND
        answer = self.d.produce(texts, at=at, request_id=f"r{self.number}")
        self.made.update(dict.fromkeys(texts, answer))
        if repeat:
            again = self.d.produce(texts, request_id=f"r{self.number}")
            assert again.waiting or again.result is REPEATED or isinstance(again.result, QueratorError)
        self.look()

    @rule(count=counts, repeat=st.booleans())
    def take_in(self, count: int, repeat: bool) -> None:
        """Produces a chunk of a bulk stream."""
        texts = [f"{self.number + n}" for n in range(count)]
        self.number += count
        answer = self.d.take_in(texts, f"bulk r{self.number}")
        self.made.update(dict.fromkeys(texts, answer))
        if repeat:
            again = self.d.take_in(texts, f"bulk r{self.number}")
            assert again.waiting or again.result in (None, count) or isinstance(again.result, QueratorError)
        self.look()

    @rule(count=counts)
    def lease(self, count: int) -> None:
        self.parked.append(self.d.lease(count))
        self.look()

    @precondition(lambda self: self.got)
    @rule(in_lease=st.booleans())
    def complete_all_of_one_request(self, in_lease: bool) -> None:
        got = self.got.pop()
        ids = [self.hands.get(payload, ("",))[0] for payload, _ in got]
        if ids != [item_id for _, item_id in got]:
            return
        for payload, _ in got:
            del self.hands[payload]
            self.completed.add(payload)
        if in_lease:
            self.parked.append(self.d.lease(2, completes=ids))
        else:
            self.d.complete(ids)
        self.look()

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), how=st.sampled_from(["complete", "complete", "retry", "later", "dead", "extend", "lease"]))
    def let_go(self, data: st.DataObject, how: str) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.hands)), min_size=1, max_size=4, unique=True))
        ids = [self.hands[payload][0] for payload in chosen]
        if how in ("complete", "lease"):
            self.completed.update(chosen)
        if how == "complete":
            answer = self.d.complete(ids)
        elif how == "lease":
            answer = self.d.lease(2, completes=ids)
            self.parked.append(answer)
        elif how == "extend":
            answer = self.d.extend(ids, seconds=120)
            if not answer.waiting and not isinstance(answer.result, QueratorError):
                for payload, lease in zip(chosen, answer.result, strict=True):
                    self.hands[payload] = lease.id, lease.deadline
            return
        elif how == "dead":
            answer = self.d.retry(ids, dead=True)
        else:
            answer = self.d.retry(ids, at=self.d.now_us + 40 * SECOND if how == "later" else None)
        # Whatever the answer is, the client treats these leases as ended.
        for payload in chosen:
            self.hands.pop(payload, None)
        self.look()

    # -- what the world does

    @rule(seconds=st.sampled_from([0.001, 1, 61, 300, 1100]))
    def advance(self, seconds: float) -> None:
        self.forget_ended(seconds)
        self.d.advance(seconds)
        self.look()

    def forget_ended(self, seconds: float) -> None:
        then = self.d.now_us + int(seconds * SECOND)
        self.hands = {payload: hand for payload, hand in self.hands.items() if hand[1] >= then}

    @rule(seconds=st.sampled_from([0.1, 1, 40]))
    def elapse(self, seconds: float) -> None:
        self.d.elapse(seconds)
        self.look()

    @rule(times=st.integers(1, 3))
    def break_disk(self, times: int) -> None:
        self.write_fails = times

    @rule()
    def restart(self) -> None:
        self.write_fails = 0
        self.parked.clear()
        self.d.restart()
        self.look()

    # -- what must hold

    def look(self) -> None:
        """Records the leases that parked requests got."""
        got = [a for a in self.parked if not a.waiting and not isinstance(a.result, QueratorError)]
        self.parked = [answer for answer in self.parked if answer.waiting]
        self.got += [[(lease.item.payload.decode(), lease.id) for lease in answer.leases] for answer in got]
        hands = [(answer.result.partition, lease) for answer in got for lease in answer.leases]
        for partition, lease in sorted(hands, key=lambda hand: decode(hand[1].id).seq):
            payload = lease.item.payload.decode()
            assert payload not in self.hands, f"{payload} is leased twice"
            self.hands[payload] = lease.id, lease.deadline
            seq = decode(lease.id).seq
            assert seq > self.last_leased.get(partition, 0), "not in order"
            self.last_leased[partition] = seq

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "d"):
            return
        stored = self.d.stored() + self.d.stored("dead")
        assert len(stored) == len(set(stored)) or self.write_fails or self.moving(), "something is there twice"
        if self.keeps_everything:
            acknowledged = {p for p, a in self.made.items() if not a.waiting and isinstance(a.result, int | None)}
            lost = acknowledged - set(stored) - self.completed
            assert not lost, f"lost: {lost}"

    def moving(self) -> bool:
        """Whether a move is between its two steps, so that its items are in two places."""
        return any(not this.moves.are_over for this in self.d.passes.values()) or any(
            p.store is None or p.contents.departing.items for q in self.d.logicals.values() for p in q.partitions
        )

    @invariant()
    def counters_are_right(self) -> None:
        if hasattr(self, "d"):
            self.d.check_counters()
