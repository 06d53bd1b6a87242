"""Reads the metrics of the daemon: one request has the figures of all queues and partitions.

The text is parsed by hand: importing `prometheus_client.parser` would make `querator check` start a quarter slower.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from querator import texts

_LINE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> Iterator[Sample]:
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        found = _LINE.match(line)
        if found is not None:
            name, labels, value = found.groups()
            yield Sample(name, {key: _unescaped(raw) for key, raw in _LABEL.findall(labels or "")}, float(value))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)


@dataclass
class PartitionView:
    ready: int = 0
    leased: int = 0
    scheduled: int = 0
    state: str = "unknown"
    trouble: str = ""
    """Why the partition takes no items, or may soon take none."""


@dataclass
class QueueView:
    """The figures of one queue."""

    name: str
    produced: float = 0
    completed: float = 0
    retried: float = 0
    dead: float = 0
    oldest_seconds: float = 0
    waiting: dict[str, int] = field(default_factory=dict)
    partitions: dict[int, PartitionView] = field(default_factory=dict)

    @property
    def ready(self) -> int:
        return sum(one.ready for one in self.partitions.values())

    @property
    def leased(self) -> int:
        return sum(one.leased for one in self.partitions.values())

    @property
    def scheduled(self) -> int:
        return sum(one.scheduled for one in self.partitions.values())

    @property
    def state(self) -> str:
        """The most urgent state of all partitions."""
        states = {one.state for one in self.partitions.values()}
        for state in ("error", "unavailable", "draining", "paused", "unknown"):
            if state in states:
                return state
        return "available"

    @property
    def trouble(self) -> str:
        """The reason of the most urgent partition that has one."""
        troubled = [one for one in self.partitions.values() if one.trouble]
        return min(troubled, key=lambda one: one.state != "error").trouble if troubled else ""


_COUNTERS: Final = {
    "querator_produced_total": "produced",
    "querator_completed_total": "completed",
    "querator_retried_total": "retried",
}


def queues(text: str) -> dict[str, QueueView]:
    """The figures of all queues, by name."""
    found: dict[str, QueueView] = {}
    for name, labels, value in parse(text):
        if "queue" not in labels or not name.startswith("querator_"):
            continue
        queue_name = texts.unescaped(labels["queue"])
        queue = found.setdefault(queue_name, QueueView(queue_name))
        if name in _COUNTERS:
            setattr(queue, _COUNTERS[name], value)
        elif name == "querator_dead_lettered_total":
            queue.dead += value
        elif name == "querator_oldest_item_age_seconds":
            queue.oldest_seconds = value
        elif name == "querator_waiting":
            queue.waiting[labels["kind"]] = int(value)
        elif name in ("querator_items", "querator_partition_state", "querator_partition_trouble"):
            partition = queue.partitions.setdefault(int(labels["partition"]), PartitionView())
            if name == "querator_items":
                setattr(partition, labels["state"], int(value))
            elif name == "querator_partition_trouble":
                partition.trouble = labels["reason"]
            elif value:
                partition.state = labels["state"]
    return found
