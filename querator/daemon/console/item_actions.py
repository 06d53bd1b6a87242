"""What can be done with items, groups of dead items, leases and jobs: hand back, delete, redrive, cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from querator.daemon.console import dead_page
from querator.daemon.console.asking import literal
from querator.daemon.console.pages import command, number
from querator.daemon.console.plans import Action, Field, NothingChosen, Plan, job_started
from querator.daemon.console.queue_page import HELD
from querator.daemon.console.visits import Remark, Visit, address
from querator.errors import InvalidRequest
from querator.limits import BATCH_ITEMS_MAX
from querator.wire import messages as m


def _item_plan(
    title: str, effect: str, words: Callable[[str, str], list[str]], *, is_dangerous: bool = False
) -> Callable[[Visit], Awaitable[Plan]]:
    async def plan(visit: Visit) -> Plan:
        queue, item_id = visit.get("name"), visit.get("id")
        found = await visit.api.call(
            "items.inspect", m.ItemsInspectRequest(queue_name=queue, id=item_id), m.ItemsInspectResponse
        )
        return Plan(
            f"{title} item {item_id}",
            (effect, f"The item is {found.state} in partition {found.partition} of '{queue}'."),
            title,
            command(*words(queue, item_id)),
            address("/items", name=queue),
            queue=queue,
            hidden={"name": [queue], "id": [item_id], "partition": [str(found.partition)]},
            is_dangerous=is_dangerous,
        )

    return plan


async def _run_retry(visit: Visit) -> Remark:
    queue, item_id = visit.get("name"), visit.get("id")
    items = [m.QueueRetryItem(id=item_id, unused=True)]
    request = m.QueueRetryRequest(queue_name=queue, partition=visit.number("partition"), items=items, purpose="console")
    await visit.api.call("queue.release", request, m.Reply)
    return Remark("good", f"Item {item_id} is ready again, with a new id.")


async def _run_delete_item(visit: Visit) -> Remark:
    queue, item_id = visit.get("name"), visit.get("id")
    request = m.StorageItemsDeleteRequest(
        queue_name=queue, partition=visit.number("partition"), ids=[item_id], purpose="console"
    )
    await visit.api.call("storage/items.delete", request, m.Reply)
    return Remark("good", f"Item {item_id} is deleted.")


# -- groups of items


class _Selection(NamedTuple):
    queue: str
    where: str
    hidden: dict[str, list[str]]

    @classmethod
    def of(cls, visit: Visit) -> _Selection:
        """The groups that a form chose, or one item. Raises NothingChosen."""
        queue, keys, item_id = visit.get("name"), visit.all("group"), visit.get("id")
        hidden = {"name": [queue], "group": keys, "id": [item_id] if item_id else []}
        if item_id:
            return cls(queue, f"id = {literal(item_id)}", hidden)
        where = dead_page.condition(keys)
        if not where:
            raise NothingChosen("Choose at least one group first.", address("/dead", name=queue))
        return cls(queue, where, hidden)


def _group_plan(title: str, effect: str, *, deletes: bool) -> Callable[[Visit], Awaitable[Plan]]:
    async def plan(visit: Visit) -> Plan:
        chosen = _Selection.of(visit)
        count, is_exact = await dead_page.count(visit, chosen.queue, chosen.where)
        told = f"{'' if is_exact else 'at least '}{number(count)} item{'' if count == 1 else 's'}"
        if deletes:
            line = (
                command("items", "list", chosen.queue, "--state", "ready", "--where", chosen.where, "--limit", 0, "-q")
                + " | "
                + command("items", "delete", chosen.queue, "-", "--yes")
            )
        else:
            to = ("--to", visit.get("to").strip()) if visit.get("to").strip() else ()
            line = command("items", "redrive", chosen.queue, "--where", chosen.where, *to)
        return Plan(
            f"{title} {told} of '{chosen.queue}'",
            (
                effect,
                "This is a job: it shows its progress, survives a restart and can be cancelled. It takes the items that"
                " are ready now; leased items and items that come later stay.",
            ),
            f"{title} {number(count)}" if is_exact else f"{title} them",
            line,
            address("/dead", name=chosen.queue),
            queue=chosen.queue,
            hidden=chosen.hidden | {"expected": [str(count if is_exact else 0)]},
            fields=()
            if deletes
            else (Field("to", "Send to this queue instead of the queue in which each item died", visit.get("to")),),
            is_dangerous=deletes,
        )

    return plan


async def _run_redrive(visit: Visit) -> Remark:
    chosen = _Selection.of(visit)
    request = m.ItemsRedriveRequest(
        queue_name=chosen.queue, where=chosen.where, to=visit.get("to").strip(), expected=visit.number("expected")
    )
    job = await visit.api.call("items.redrive", request, m.JobReply)
    return job_started(job.job_id, f"Redrive: job {job.job_id} has started.")


async def _run_delete_group(visit: Visit) -> Remark:
    chosen = _Selection.of(visit)
    request = m.ItemsDeleteRequest(queue_name=chosen.queue, where=chosen.where, expected=visit.number("expected"))
    job = await visit.api.call("items.delete", request, m.JobReply)
    return job_started(job.job_id, f"Delete: job {job.job_id} has started.")


# -- leases and jobs


async def _plan_release(visit: Visit) -> Plan:
    queue, client_id = visit.get("name"), visit.get("client")
    return Plan(
        f"Take back the items of '{client_id}'",
        (
            "All items that this client holds are ready again, so that other consumers can lease them now. The lease"
            " does not count as an attempt.",
            "A client that is still running loses its leases, and may lease the same items again.",
        ),
        "Take back",
        command("queue", "release", queue, "--client", client_id),
        address("/leases", name=queue),
        queue=queue,
        hidden={"name": [queue], "client": [client_id]},
    )


async def _run_release(visit: Visit) -> Remark:
    queue, client_id = visit.get("name"), visit.get("client")
    rows = await visit.api.sql(
        queue,
        f"select id, partition from leases where client_id = {literal(client_id)} and {HELD} order by partition, id"
        f" limit {BATCH_ITEMS_MAX}",
    )
    by_partition: dict[int, list[str]] = {}
    for row in rows:
        by_partition.setdefault(row["partition"], []).append(row["id"])
    released = 0
    for partition, ids in by_partition.items():
        released += await _release(visit, queue, partition, ids, f"release of {client_id}")
    more = " There may be more: repeat it." if len(rows) == BATCH_ITEMS_MAX else ""
    told = "1 item is" if released == 1 else f"{number(released)} items are"
    return Remark("good", f"{told} ready again, taken back from '{client_id}'.{more}")


async def _release(visit: Visit, queue: str, partition: int, ids: list[str], purpose: str) -> int:
    """Hands items back, and returns how many. The daemon stops at an item that was completed or expired since it was
    listed, and names it. The items after it are sent again.
    """
    released = 0
    while ids:
        items = [m.QueueRetryItem(id=id, unused=True) for id in ids]
        request = m.QueueRetryRequest(queue_name=queue, partition=partition, items=items, purpose=purpose)
        try:
            await visit.api.call("queue.release", request, m.Reply)
            return released + len(ids)
        except InvalidRequest as error:
            stopped_at = next((at for at, id in enumerate(ids) if id in error.message), None)
            if stopped_at is None:
                raise
            released += stopped_at
            ids = ids[stopped_at + 1 :]
    return released


async def _plan_cancel(visit: Visit) -> Plan:
    job_id = visit.get("job")
    job = await visit.api.call("jobs.show", m.JobRequest(job_id=job_id), m.Job)
    return Plan(
        f"Cancel job {job_id}",
        (
            f"The job ({job.kind} on '{job.queue_name}') finishes or undoes the step that is under way, and ends.",
            f"It has done {number(job.done)}{f' of {number(job.total)}' if job.total else ''} so far.",
        ),
        "Cancel the job",
        command("jobs", "cancel", job_id),
        address("/jobs"),
        hidden={"job": [job_id]},
        is_dangerous=True,
    )


async def _run_cancel(visit: Visit) -> Remark:
    await visit.api.call("jobs.cancel", m.JobRequest(job_id=visit.get("job")), m.Reply)
    return Remark("good", f"Job {visit.get('job')} is cancelled.")


ITEM_ACTIONS: Final[Mapping[str, Action]] = {
    "retry": Action(
        _item_plan(
            "Hand back",
            "The client that holds the item loses its lease, and the item is ready again, under a new id. The lease"
            " does not count as an attempt.",
            lambda queue, item_id: ["queue", "retry", queue, item_id, "--unused"],
        ),
        _run_retry,
    ),
    "delete-item": Action(
        _item_plan(
            "Delete",
            "The item is gone for good, whatever its state. A client that holds it finds its lease lost.",
            lambda queue, item_id: ["items", "delete", queue, item_id],
            is_dangerous=True,
        ),
        _run_delete_item,
    ),
    "redrive": Action(
        _group_plan(
            "Redrive",
            "The items go back to the queue in which they died, with their history, and start with no attempts used."
            " Each is moved exactly once.",
            deletes=False,
        ),
        _run_redrive,
    ),
    "delete-items": Action(_group_plan("Delete", "The items are gone for good.", deletes=True), _run_delete_group),
    "release": Action(_plan_release, _run_release),
    "cancel": Action(_plan_cancel, _run_cancel),
}
