"""The copy elsewhere: shipping everything durable to an object store, and bringing it back.

`objects` is the format, `bucket` the seam to object stores, and `ledger` what an archive has. `ownership` decides who
may write, `cutting` and `shipping` write, `bases` copies whole partition files, and `turnstile` holds answers back
where they must wait. `restoring` and `standby` read, `promoting` makes a standby serve, and `care` looks after what is
there. Nothing here decides about items.
"""

from querator.daemon.archive import bases, care, restoring
from querator.daemon.archive.bucket import ArchiveError, Away, Bucket
from querator.daemon.archive.failing import failures
from querator.daemon.archive.promoting import StandingBy
from querator.daemon.archive.shipping import Shipper
from querator.daemon.archive.standby import Promotion
from querator.daemon.archive.turnstile import AnswerGate

__all__ = [
    "AnswerGate",
    "ArchiveError",
    "Away",
    "Bucket",
    "Promotion",
    "Shipper",
    "StandingBy",
    "bases",
    "care",
    "failures",
    "restoring",
]
