"""`querator storages`: the directories that hold partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from querator.cli.shell.options import command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.session import Session

if TYPE_CHECKING:
    from querator.wire.messages import StorageStatus

app = noun(NOUNS["storages"].help)

COLUMNS = ("storage", "directory", "partitions", "partition_bytes", "journal_bytes", "free_bytes", "reason")


def storage_record(status: StorageStatus) -> dict[str, Any]:
    return {
        "storage": status.storage,
        "directory": status.directory,
        "partitions": status.partitions,
        "partition_bytes": status.partition_bytes,
        "journal_bytes": status.journal_bytes,
        "unapplied_bytes": status.unapplied_bytes,
        "free_bytes": status.free_bytes,
        "total_bytes": status.total_bytes,
        "reason": status.reason,
    }


@command(app, "list")
def list_(session: Session) -> None:
    """List the storages with their directory, size and free space.

    PARTITION_BYTES and JOURNAL_BYTES are the disk space that the partition files and the journal take. FREE_BYTES is
    the free space of the disk. REASON says why a storage cannot be used.
    """
    records = map(storage_record, session.client.list_storages())
    session.output.records(records, COLUMNS, name="storage", empty="no storages")
