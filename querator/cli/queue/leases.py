"""`querator queue leases` and `queue release`: list the clients that hold items, and take their items back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from querator.cli.lookups.readable import open_partitions
from querator.cli.shell.options import DryRun, Queue, command
from querator.cli.terminal.id_lists import Verdicts, batches, count
from querator.cli.terminal.render import Moment
from querator.cli.terminal.session import Session
from querator.errors import NotFound, PartlyDone, QueratorError

if TYPE_CHECKING:
    from querator.client import Client

COLUMNS: Final = ("client_id", "token_name", "leased", "since", "next_deadline", "last_deadline")
_HELD: Final = "deadline > timestamp '0001-01-02'"
"""Excludes items that are being moved to another queue or partition: no client holds them any more."""


def register(app: typer.Typer) -> None:
    command(app, "leases")(leases)
    command(app, "release")(release)


def leases(session: Session, queue: Queue) -> None:
    """List the clients that hold items of a queue: how many, since when, and until when.

    TOKEN_NAME is the token with which the client leased them. SINCE is when the client leased the oldest of its items.
    NEXT_DEADLINE and LAST_DEADLINE are when the first and the last of its leases run out, unless the client extends
    them.

    Example: querator queue leases mail
    """
    open_partitions(session, queue)
    rows = _ask(
        session.client,
        queue,
        "select client_id, token_name, count(*) as leased, epoch_us(min(leased_at)) as since,"
        f" epoch_us(min(deadline)) as next_deadline, epoch_us(max(deadline)) as last_deadline from leases where {_HELD}"
        " group by client_id, token_name order by since, client_id, token_name",
    )
    for row in rows:
        for name in COLUMNS[3:]:
            row[name] = None if row[name] is None else Moment(row[name])
    session.output.records(rows, COLUMNS, name="client_id", empty=f"nobody holds items of '{queue}'")


def release(
    session: Session,
    queue: Queue,
    client_id: Annotated[
        str,
        typer.Option("--client", metavar="CLIENT", help="Take back the items of this client.", show_default=False),
    ],
    dry_run: DryRun = False,
) -> None:
    """Take back all items that a client holds, so that others can lease them now.

    Use it when a consumer is gone and its leases would last for a long time. The lease does not count as an attempt. A
    client that is still running loses its leases, and may lease the same items again.

    Example: querator queue release mail --client worker-7
    """
    from querator.cli.lookups.filters import literal

    open_partitions(session, queue)
    rows = _ask(session.client, queue, f"select id from leases where client_id = {literal(client_id)} and {_HELD}")
    if not rows:
        raise NotFound(f"'{client_id}' holds no items of '{queue}'", hint=f"querator queue leases {queue}")
    if dry_run:
        session.note(f"would release {count(len(rows), 'item')} of '{queue}'")
        return

    def hand_back(ids: list[str]) -> None:
        session.client.retry(queue, ids, unused=True, purpose=f"release of {client_id}")

    verdicts = Verdicts()
    try:
        for batch in batches(row["id"] for row in rows):
            # The daemon refuses an id that was completed, retried or expired since it was listed. Nobody holds it now.
            verdicts.apply(batch, hand_back, keeps_earlier=True)
    except QueratorError as error:
        if not verdicts.done:
            raise
        text = f"released {count(len(verdicts.done), 'item')}, then: {error.message}"
        raise PartlyDone(text, hint="repeat the command for the rest") from None
    session.done(
        f"released {count(len(verdicts.done), 'item')} of '{queue}'",
        {"queue_name": queue, "client_id": client_id, "released": len(verdicts.done)},
        name="queue_name",
    )


def _ask(client: Client, queue: str, query: str) -> list[dict[str, Any]]:
    import msgspec

    rows: list[dict[str, Any]] = msgspec.json.decode(client.sql_bytes(queue, query, format="json") or b"[]")
    return rows
