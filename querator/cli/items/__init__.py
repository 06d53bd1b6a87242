"""`querator items`: list, inspect and delete stored items. The other verbs have modules of their own."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querator.cli.items import redrive, transfer
from querator.cli.lookups.readable import open_partitions
from querator.cli.shell.options import DryRun, OnlyPartition, Queue, Yes, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal import id_lists
from querator.cli.terminal.confirm import confirm_by_name
from querator.cli.terminal.id_lists import Ids, count
from querator.cli.terminal.payloads import pretty
from querator.cli.terminal.render import Format, Payload, message_record, moment_or_none
from querator.cli.terminal.session import Session
from querator.errors import InvalidRequest, NotFound, UsageError
from querator.ids import decode
from querator.texts import visible

if TYPE_CHECKING:
    from querator.client import Client
    from querator.wire.messages import StorageItem

app = noun(NOUNS["items"].help)

PAGE_ITEMS = 1_000
LISTED_ITEMS = 100
LEASED_COLUMNS = (
    "id",
    "partition",
    "client_id",
    "token_name",
    "leased_at",
    "lease_deadline",
    "kind",
    "reference",
    "attempts",
    "payload",
)
COLUMNS = ("id", "partition", "state", "kind", "reference", "attempts", "payload", "created_at")


class ItemState(enum.StrEnum):
    READY = "ready"
    LEASED = "leased"
    SCHEDULED = "scheduled"
    ALL = "all"


def item_record(item: StorageItem, partition: int, state: str) -> dict[str, Any]:
    return {
        "id": item.id,
        "partition": partition,
        "state": state,
        "kind": item.kind,
        "reference": item.reference,
        "encoding": item.encoding,
        "attempts": item.attempts,
        "max_attempts": item.max_attempts,
        "created_at": moment_or_none(item.created_at),
        "expire_deadline": moment_or_none(item.expire_deadline),
        "lease_deadline": moment_or_none(item.lease_deadline),
        "client_id": item.client_id or None,
        "token_name": item.token_name or None,
        "leased_at": moment_or_none(item.leased_at),
        "enqueue_at": moment_or_none(item.enqueue_at),
        "source_id": item.source_id,
        "payload": Payload(item.payload),
    }


def partition_numbers(client: Client, queue: str) -> list[int]:
    return [one.partition for logical in client.stats(queue).logical_queues for one in logical.partitions]


def pages(client: Client, queue: str, partition: int, *, scheduled: bool) -> Iterator[list[StorageItem]]:
    """All items of a partition, page by page. A page starts with the last id of the page before."""
    pivot = ""
    fetch = client.list_scheduled if scheduled else client.list_items
    while True:
        page = fetch(queue, partition=partition, pivot=pivot, limit=PAGE_ITEMS)
        fresh = [item for item in page if item.id != pivot]
        if fresh:
            yield fresh
        if len(page) < PAGE_ITEMS:
            return
        pivot = page[-1].id


def stored_items(client: Client, queue: str, partitions: list[int], state: ItemState) -> Iterator[dict[str, Any]]:
    for partition in partitions:
        if state is not ItemState.SCHEDULED:
            for page in pages(client, queue, partition, scheduled=False):
                for item in page:
                    name = "leased" if item.is_leased else "ready"
                    if state in (ItemState.ALL, name):
                        yield item_record(item, partition, name)
        if state in (ItemState.SCHEDULED, ItemState.ALL):
            for page in pages(client, queue, partition, scheduled=True):
                yield from (_scheduled_record(client, queue, item, partition) for item in page)


def _scheduled_record(client: Client, queue: str, item: StorageItem, partition: int) -> dict[str, Any]:
    """The record of a scheduled item. Lists leave out its due time (wire contract 2.13), so ask for the item."""
    with contextlib.suppress(InvalidRequest):  # the item became due in the meantime
        if (found := client.inspect_item(queue, item.id).item) is not None:
            item = found
    return item_record(item, partition, "scheduled")


@command(app, "list")
def list_(
    session: Session,
    queue: Queue,
    partition: OnlyPartition = None,
    state: Annotated[ItemState, typer.Option("--state", help="List only items in this state.")] = ItemState.ALL,
    kind: Annotated[str | None, typer.Option("--kind", metavar="TEXT", help="List only items of this kind.")] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="List only items that meet this condition, such as attempts > 3."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=0, metavar="N", help="List at most this many items, 0 for all. Default: 100."),
    ] = None,
) -> None:
    """List stored items in the order of their ids."""
    client = session.client
    numbers = open_partitions(session, queue) if partition is None else [partition]
    records: Iterator[dict[str, Any]]
    if where is not None or kind is not None:
        from querator.cli.lookups.filters import matching_items

        records = matching_items(client, queue, numbers if partition is not None else None, state, kind, where)
    else:
        records = stored_items(client, queue, numbers, state)
    shown = LISTED_ITEMS if limit is None else limit
    columns = LEASED_COLUMNS if state is ItemState.LEASED else COLUMNS
    session.output.records(islice(records, shown or None), columns, name="id", empty=f"no such items in '{queue}'")
    if limit is None and next(records, None) is not None:
        # Printed even with -q: a user who pipes ids into another command must know that some are missing.
        session.streams.note(f"only the first {count(shown, 'item')}; --limit 0 lists all")


@command(app, "inspect")
def inspect(
    session: Session,
    queue: Queue,
    item_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the item.")],
    raw: Annotated[bool, typer.Option("--raw", help="Print only the bytes of the payload.")] = False,
) -> None:
    """Show one item in full, with its last failed attempts."""
    try:
        found = session.client.inspect_item(queue, item_id)
    except NotFound:
        raise
    except InvalidRequest as error:
        if error.message.startswith("invalid storage id") and "does not exist" in error.message:
            raise NotFound(error.message, hint=f"querator items list {queue}") from None
        raise
    item = found.item
    if item is None:
        raise NotFound(f"there is no item {item_id} in '{queue}'", hint=f"querator items list {queue}")
    if raw:
        session.streams.stdout_bytes.write(item.payload)
        return
    record = item_record(item, found.partition, found.state)
    record["failed_attempts"] = [message_record(attempt, "at") for attempt in found.failed_attempts]
    record["history"] = [message_record(death, "at") for death in found.history]
    if session.output.form is not Format.TABLE or session.output.columns is not None:
        session.output.record(record, name="id")
        return
    payload, history, failed = record.pop("payload"), record.pop("history"), record.pop("failed_attempts")
    session.output.record({key: value for key, value in record.items() if value not in (None, "")}, name="id")
    write = session.streams.stdout.write
    if failed:
        write("\nfailed attempts\n")
        lines = failed[-1]["reason"].splitlines()
        short = [one | {"reason": one["reason"].partition("\n")[0]} for one in failed]
        session.output.records(short, ("at", "attempt", "client_id", "held", "reason"), name="attempt")
        if len(lines) > 1:
            write("\nlast reason\n" + "".join(f"{visible(line.expandtabs())}\n" for line in lines))
    if history:
        write("\nhistory\n")
        session.output.records(history, ("at", "reason", "queue_name", "attempts", "source_id"), name="source_id")
    write(f"\npayload  {count(len(payload), 'byte')}\n")
    for line in pretty(payload, item.encoding):
        write(f"{visible(line.expandtabs())}\n")


@command(app, "delete")
def delete(session: Session, queue: Queue, item_ids: Ids, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete items in any state. Unknown ids are ignored."""
    chosen = list(id_lists.given(session, item_ids))
    for one in chosen:
        try:
            decode(one)
        except ValueError as error:
            raise UsageError(f"'{one}' is not an id: {error}", hint=f"querator items list {queue}") from None
    numbers = partition_numbers(session.client, queue)
    if dry_run:
        session.note(f"would delete {count(len(chosen), 'item')} of '{queue}'")
        return
    if session.streams.can_ask and "-" not in item_ids:
        confirm_by_name(session, queue, f"delete {count(len(chosen), 'item')} of queue '{queue}'", yes=yes)
    elif not yes:
        raise UsageError(
            "deleting items needs a confirmation, and there is no terminal to ask on", hint="--yes confirms it"
        )
    for batch in id_lists.batches(chosen):
        # Only the daemon knows which partition an id belongs to. The other partitions ignore it.
        for number in numbers:
            session.client.delete_items(queue, batch, partition=number)
    session.done(
        f"deleted {count(len(chosen), 'item')} of '{queue}'",
        {"queue_name": queue, "deleted": len(chosen)},
        name="queue_name",
    )


redrive.register(app)
transfer.register(app)
