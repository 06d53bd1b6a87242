"""The archive: copies everything durable to an object store, and restores it from there.

`objects` defines the format, `bucket` talks to object stores, and `ledger` records what an archive has. `ownership`
decides who may write, `cutting`, `packing` and `shipping` write the log, `bases` copies whole partition files, and
`turnstile` delays answers that must wait for the archive. `restoring` makes a data directory from an archive. `standby`
follows an archive into its `standby_files`, `heartbeats` watches its owner, `standby_reads` answers reads on a standby,
and `promoting` makes a standby serve. `role` says whether this daemon is an owner or a standby. `salvaging` lists what
an archive lacks. `care` lists, verifies and prunes an archive. Nothing here decides about items.
"""

from querator.daemon.archive import bases, care, restoring, salvaging
from querator.daemon.archive.bucket import ArchiveError, Away, Bucket
from querator.daemon.archive.failing import failures
from querator.daemon.archive.ownership import clock_behind_us, stop_following
from querator.daemon.archive.promoting import StandingBy, StoppedEarly
from querator.daemon.archive.role import ArchiveRole
from querator.daemon.archive.shipping import Shipper
from querator.daemon.archive.standby import Promotion
from querator.daemon.archive.standby_reads import READS
from querator.daemon.archive.turnstile import AnswerGate

__all__ = [
    "READS",
    "AnswerGate",
    "ArchiveError",
    "ArchiveRole",
    "Away",
    "Bucket",
    "Promotion",
    "Shipper",
    "StandingBy",
    "StoppedEarly",
    "bases",
    "care",
    "clock_behind_us",
    "failures",
    "restoring",
    "salvaging",
    "stop_following",
]
