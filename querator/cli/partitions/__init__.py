"""`querator partitions`: take partitions out of service and bring them back, move them, back them up.

`list` and `show` are here. The other verbs are in the modules of this package, and are put together below.
"""

from __future__ import annotations

from querator.cli import jobs
from querator.cli.partitions import backups, maintenance, states
from querator.cli.partitions.selection import OptionalQueue, Partition, find
from querator.cli.queues import partition_record
from querator.cli.shell.options import Queue, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.session import Session

app = noun(NOUNS["partitions"].help)

COLUMNS = ("queue_name", "partition", "state", "reason", "ready", "leased", "scheduled", "storage", "since", "bytes")


@command(app, "list")
def list_(session: Session, queue: OptionalQueue = None) -> None:
    """List partitions with their storage, state and item counts."""
    if queue is not None:
        session.client.queue_info(queue)
    records = [partition_record(one) for one in session.client.list_partitions(queue or "")]
    session.output.records(records, COLUMNS, name="partition", empty="no partitions")


@command(app, "show")
def show(session: Session, queue: Queue, partition: Partition) -> None:
    """Show one partition in full, with the path of its file."""
    found = find(session, queue, partition)
    directories = {one.storage: one.directory for one in session.client.list_storages()}
    if found["file"] and found["storage"] in directories:
        found["file"] = f"{directories[found['storage']]}/{found['file']}"
    session.output.record(found, name="partition")


command(app, "pause")(states.pause)
command(app, "resume")(states.resume)
command(app, "drain")(states.drain)
command(app, "offline")(states.offline)
command(app, "reload")(states.reload)
command(app, "migrate")(maintenance.migrate)
command(app, "backup")(backups.backup)
command(app, "restore")(backups.restore)
command(app, "accept-loss")(maintenance.accept_loss)
command(app, "verify")(maintenance.verify)
command(app, "compact")(maintenance.compact)
# Some verbs above start jobs, so an operator also looks for jobs here.
command(app, "jobs")(jobs.list_)
command(app, "cancel")(jobs.cancel)
