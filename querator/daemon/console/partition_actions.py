"""What can be done with partitions: pause, resume, drain, offline, reload, compact, verify, migrate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from querator.daemon.console.pages import command, number
from querator.daemon.console.plans import Action, Field, Plan, job_started
from querator.daemon.console.visits import Remark, Visit, address
from querator.errors import InvalidRequest
from querator.wire import messages as m


class _Chosen(NamedTuple):
    queue: str
    numbers: list[int]
    """Empty for all partitions."""

    @classmethod
    def of(cls, visit: Visit) -> _Chosen:
        return cls(visit.get("name"), [visit.number("partition")] if visit.get("partition") else [])

    @property
    def text(self) -> str:
        return f"partition {self.numbers[0]} of '{self.queue}'" if self.numbers else f"all partitions of '{self.queue}'"

    @property
    def words(self) -> list[str]:
        return [self.queue, *map(str, self.numbers)] if self.numbers else [self.queue, "--all"]

    @property
    def hidden(self) -> dict[str, list[str]]:
        return {"name": [self.queue], "partition": [str(one) for one in self.numbers]}


async def _holding(visit: Visit, chosen: _Chosen) -> str:
    """A sentence with the current number of items in the partitions."""
    listed = await visit.api.call(
        "partitions.list", m.PartitionsListRequest(queue_name=chosen.queue), m.PartitionsListResponse
    )
    some = [one for one in listed.items if not chosen.numbers or one.partition in chosen.numbers]
    if not some:
        raise InvalidRequest(f"there is no {chosen.text}")
    leased = sum(one.leased for one in some)
    ready = sum(one.total for one in some) - leased
    scheduled = sum(one.scheduled for one in some)
    states = ", ".join(sorted({one.state for one in some}))
    if all(one.state == "error" for one in some) and not ready + leased + scheduled:
        return "Now in error: it is not known what it holds before it opens."
    return f"Now {states}: {number(ready)} ready, {number(leased)} leased and {number(scheduled)} scheduled items."


def _of_partitions(
    verb: str, title: str, effects: tuple[str, ...], done: str, fields: tuple[Field, ...] = ()
) -> Action:
    """An action that is one call with the chosen partitions."""

    async def plan(visit: Visit) -> Plan:
        chosen = _Chosen.of(visit)
        filled = tuple(field._replace(value=visit.get(field.name, field.value)) for field in fields)
        options = [word for field in filled if field.value for word in (f"--{field.name}", field.value)]
        return Plan(
            f"{title} {chosen.text}",
            (*effects, await _holding(visit, chosen)),
            title,
            command("partitions", verb, *chosen.words, *options),
            address("/queue", name=chosen.queue),
            queue=chosen.queue,
            fields=filled,
            hidden=chosen.hidden,
        )

    async def run(visit: Visit) -> Remark:
        chosen = _Chosen.of(visit)
        if verb == "pause":
            request: m.Message = m.PartitionsPauseRequest(
                queue_name=chosen.queue, partitions=chosen.numbers, for_=visit.get("for").strip()
            )
        elif verb == "reload":
            request = m.PartitionsReloadRequest(queue_name=chosen.queue, partitions=chosen.numbers)
        else:
            request = m.PartitionsRequest(queue_name=chosen.queue, partitions=chosen.numbers)
        if verb in ("compact", "verify"):
            job = await visit.api.call(f"partitions.{verb}", request, m.JobReply)
            return job_started(job.job_id, f"{title}: job {job.job_id} works on {chosen.text}.")
        reply = await visit.api.call(f"partitions.{verb}", request, m.Reply)
        text = f"{chosen.text[0].upper()}{chosen.text[1:]}: {done}."
        return Remark("warn", f"{text} Note that {reply.message}.") if reply.message else Remark("good", text)

    return Action(plan, run)


async def _plan_migrate(visit: Visit) -> Plan:
    chosen = _Chosen.of(visit)
    storages = await visit.api.call("storages.list", m.StoragesListRequest(), m.StoragesListResponse)
    listed = await visit.api.call(
        "partitions.list", m.PartitionsListRequest(queue_name=chosen.queue), m.PartitionsListResponse
    )
    here = next((one for one in listed.items if one.partition in chosen.numbers), None)
    if here is None:
        raise InvalidRequest(f"there is no {chosen.text}")
    if here.state == "error":
        raise InvalidRequest(
            f"{chosen.text} is in error and cannot be migrated: its file must be read for that. It opens by itself once"
            f" the cause is gone, which is: {here.reason}"
        )
    choices = [
        (f"storage {one.storage}", f"storage '{one.storage}' at {one.directory}")
        for one in storages.items
        if one.storage != here.storage
    ]
    choices += [
        (f"partition {one.partition}", f"into partition {one.partition}")
        for one in listed.items
        if one.partition != here.partition
    ]
    if not choices:
        raise InvalidRequest("there is no other storage and no other partition to migrate to")
    kind, _, target = visit.get("to", choices[0][0]).partition(" ")
    option = ("--to-storage", target) if kind == "storage" else ("--to", target)
    return Plan(
        f"Migrate {chosen.text}",
        (
            "To a storage: the partition closes, its file is copied and verified, and the partition opens again there."
            " Ids, leases and schedules stay as they are.",
            "Into a partition: its items move there chunk by chunk, while clients keep working. Leased items follow"
            " when their lease ends.",
            "The job survives a restart and can be cancelled.",
            await _holding(visit, chosen),
        ),
        "Migrate",
        command("partitions", "migrate", *chosen.words, *option, "--wait"),
        address("/queue", name=chosen.queue),
        queue=chosen.queue,
        fields=(Field("to", "Where to", visit.get("to"), tuple(choices)),),
        hidden=chosen.hidden,
    )


async def _run_migrate(visit: Visit) -> Remark:
    chosen = _Chosen.of(visit)
    kind, _, target = visit.get("to").partition(" ")
    request = m.PartitionsMigrateRequest(queue_name=chosen.queue, partition=chosen.numbers[0])
    if kind == "storage":
        request.to_storage = target
    elif target.isdecimal():
        request.to_partition = int(target)
    else:
        raise InvalidRequest("to is invalid; choose a storage or a partition")
    job = await visit.api.call("partitions.migrate", request, m.JobReply)
    return job_started(job.job_id, f"Migrate: job {job.job_id} works on {chosen.text}.")


PARTITION_ACTIONS: Final[Mapping[str, Action]] = {
    "pause": _of_partitions(
        "pause",
        "Pause",
        (
            "No items are produced to it and none are leased from it. Items that are leased can still be completed.",
            "Clients wait; they see a slow queue and no error, until their request times out.",
        ),
        "paused",
        (Field("for", "Resume by itself after, such as 15m or 1h; empty for never", "15m"),),
    ),
    "resume": _of_partitions("resume", "Resume", ("Items are produced and leased again.",), "available again"),
    "drain": _of_partitions(
        "drain",
        "Drain",
        (
            "New items go to other partitions that take items. If there are none, producers wait.",
            "What is there is still leased and completed, until nothing is left.",
            "What comes back, by a retry or because its lease ends, goes to another partition if one takes items.",
        ),
        "draining",
    ),
    "offline": _of_partitions(
        "offline",
        "Take offline",
        (
            "The file is closed, so that you may copy or repair it. Nothing is produced, leased or completed there.",
            "'Reload' opens it again.",
        ),
        "offline; its file is closed",
    ),
    "reload": _of_partitions(
        "reload",
        "Reload",
        (
            "The file is closed, opened and read again, one partition after another. A partition that was paused or"
            " offline is available afterwards.",
        ),
        "read again",
    ),
    "compact": _of_partitions(
        "compact",
        "Compact",
        ("The file is rewritten without the space of deleted items. Clients keep working meanwhile.",),
        "",
    ),
    "verify": _of_partitions(
        "verify", "Verify", ("The file is read and compared with what the daemon counts. Nothing changes.",), ""
    ),
    "migrate": Action(_plan_migrate, _run_migrate),
}
