"""Lists of item ids: read from arguments or standard input, sent in batches, with one result per id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

import typer

from querator.cli.terminal.session import Session
from querator.errors import Interrupted, InvalidRequest, NotFound, PartlyDone, UsageError
from querator.limits import BATCH_ITEMS_MAX

Ids = Annotated[
    list[str], typer.Argument(metavar="ID", help="Ids of items. - reads them from standard input, one per line.")
]


def given(session: Session, ids: Sequence[str]) -> Iterator[str]:
    if "-" not in ids:
        yield from ids
        return
    if len(ids) > 1:
        raise UsageError("'-' cannot be combined with ids: they come from standard input or from the command line")
    for line in session.streams.stdin_bytes:
        if text := line.decode(errors="surrogateescape").strip():
            yield text


def batches(ids: Iterable[str]) -> Iterator[list[str]]:
    source = iter(ids)
    while batch := list(islice(source, BATCH_ITEMS_MAX)):
        yield batch


class Verdicts:
    """The result for each id."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failed: dict[str, str] = {}

    def apply(self, batch: list[str], send: Callable[[list[str]], Any], *, keeps_earlier: bool) -> None:
        """Send a batch. If the daemon refuses it because of one id, note that id and send the rest.

        With `keeps_earlier`, the daemon has accepted the ids before the refused one (complete and retry). Without it,
        the daemon has accepted none.
        """
        while batch:
            try:
                send(batch)
            except InvalidRequest as error:
                bad = _named(batch, error.message)
                if bad is None:
                    raise
                at = batch.index(bad)
                self.failed[bad] = error.message
                if keeps_earlier:
                    self.done += batch[:at]
                    batch = batch[at + 1 :]
                else:
                    batch = batch[:at] + batch[at + 1 :]
                continue
            self.done += batch
            return

    def foresee(self, session: Session, queue: str, batch: list[str]) -> None:
        """Predict the results for a dry run: only leased items can be completed, retried or extended."""
        for id in batch:
            try:
                state = session.client.inspect_item(queue, id).state
            except InvalidRequest as error:
                if isinstance(error, NotFound):
                    raise
                self.failed[id] = error.message
                continue
            if state == "leased":
                self.done.append(id)
            else:
                self.failed[id] = f"it is {state}, not leased"

    def report(self, session: Session, done: str, stopped_by: BaseException | None = None) -> None:
        """Print the results: a record per id for a script, a summary for a person. Raises if some or all ids failed.

        `stopped_by` is the error that ended the command early, before all ids were sent.
        """
        if session.format.value != "table":
            records = [{"id": id, "ok": True, "error": ""} for id in self.done]
            records += [{"id": id, "ok": False, "error": text} for id, text in self.failed.items()]
            session.output.records(records, (), name="id")
        if not session.for_a_script:
            for id, text in self.failed.items():
                session.streams.note(f"{id}: {text}")
        if stopped_by is not None:
            text = f"{done} {count(len(self.done), 'item')}"
            hint = "repeat the command for the rest"
            if isinstance(stopped_by, KeyboardInterrupt):
                raise Interrupted(f"interrupted: {text}", hint=hint)
            raise PartlyDone(f"{text}, then: {stopped_by}", hint=hint)
        if not self.failed:
            session.note(f"{done} {count(len(self.done), 'item')}")
        elif self.done:
            raise PartlyDone(f"{done} {count(len(self.done), 'item')}, {len(self.failed):,} failed")
        else:
            raise InvalidRequest(f"none of {count(len(self.failed), 'item')} could be {done}")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _named(batch: Sequence[str], message: str) -> str | None:
    """The id in an error message of the daemon: the text in the first quotes."""
    parts = message.split("'")
    return parts[1] if len(parts) > 2 and parts[1] in batch else None


def there_already(number: int) -> str:
    """A remark for items that were added before, or an empty text."""
    return f" ({number:,} {'was' if number == 1 else 'were'} there already)" if number else ""
