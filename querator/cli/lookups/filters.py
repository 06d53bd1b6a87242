"""`--where SQL`: stored items that meet a condition. The daemon evaluates it, in the SQL of `querator sql`."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from querator.cli.terminal.render import Moment, Payload

if TYPE_CHECKING:
    from querator.cli.items import ItemState
    from querator.client import Client

PAGE_ROWS: Final = 1_000
_TIMES: Final = ("created_at", "expire_deadline", "lease_deadline", "leased_at", "enqueue_at")
_COLUMNS: Final = (
    "id, partition, state, kind, reference, encoding, attempts, max_attempts, client_id, token_name, "
    + ", ".join(f"epoch_us({name}) as {name}" for name in _TIMES)
    + ", source_id, to_base64(payload) as payload"
)


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def query(
    table: str, partitions: Sequence[int] | None, state: str | None, kind: str | None, where: str | None, after: str
) -> str:
    """The query for one page of a table, by partition and id. `after` is a condition that skips earlier pages."""
    conditions = []
    if partitions is not None:
        conditions.append(f"partition in ({', '.join(map(str, partitions))})")
    if state is not None:
        conditions.append(f"state = {literal(state)}")
    if kind is not None:
        conditions.append(f"kind = {literal(kind)}")
    if where is not None:
        conditions.append(f"({where}\n)")  # the newline ends a comment at the end of the condition
    if after:
        conditions.append(after)
    text = f"select {_COLUMNS} from {table}"
    if conditions:
        text += " where " + " and ".join(conditions)
    return text + f" order by partition, id limit {PAGE_ROWS}"


def matching_items(
    client: Client,
    queue: str,
    partitions: Sequence[int] | None,
    state: ItemState,
    kind: str | None,
    where: str | None,
) -> Iterator[dict[str, Any]]:
    """The records of `items list` that meet the conditions, page by page."""
    if where is not None:
        # Check that the condition is valid by itself. Otherwise `a) or (b` would disable the other conditions.
        client.sql_bytes(queue, f"select 1 from items where {where}\nlimit 0", format="ndjson")
    tables = []
    if state.value != "scheduled":
        tables.append(("items", None if state.value == "all" else state.value))
    if state.value in ("scheduled", "all"):
        tables.append(("scheduled", None))
    for table, wanted in tables:
        after = ""
        while True:
            body = client.sql_bytes(queue, query(table, partitions, wanted, kind, where, after), format="ndjson")
            rows = [msgspec.json.decode(line) for line in body.splitlines() if line]
            yield from map(_record, rows)
            if len(rows) < PAGE_ROWS:
                break
            last = rows[-1]
            after = f"(partition, id) > ({int(last['partition'])}, {literal(last['id'])})"


def _record(row: dict[str, Any]) -> dict[str, Any]:
    record = dict(row)
    for name in _TIMES:
        record[name] = None if record.get(name) is None else Moment(record[name])
    record["payload"] = Payload(base64.b64decode(record.get("payload") or ""))
    return record
