"""`querator storages`: the directories that hold partitions."""

from __future__ import annotations

from querator.cli.shell.options import command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.render import message_record
from querator.cli.terminal.session import Session

app = noun(NOUNS["storages"].help)

COLUMNS = ("storage", "directory", "partitions", "partition_bytes", "journal_bytes", "free_bytes", "reason")


@command(app, "list")
def list_(session: Session) -> None:
    """List the storages with their directory, size and free space.

    PARTITION_BYTES and JOURNAL_BYTES are the disk space that the partition files and the journal take. FREE_BYTES is
    the free space of the disk. REASON says why a storage cannot be used.
    """
    records = map(message_record, session.client.list_storages())
    session.output.records(records, COLUMNS, name="storage", empty="no storages")
