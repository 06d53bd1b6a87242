"""The journal of a storage: it makes batches durable before they are applied to the partition files.

Nothing here knows what a batch contains, and nothing here uses SQL. The rest of `store/` imports the names below only.
"""

from querator.daemon.store.journal.feed import (
    Feed,
    FeedChunk,
    HoldLost,
    News,
    Opening,
    Position,
    Survey,
    records_left,
    records_of,
    survey,
    take_together,
)
from querator.daemon.store.journal.history import History, Place
from querator.daemon.store.journal.records import BATCH, RECORD_HEADER_BYTES, NewRecord, size_of
from querator.daemon.store.journal.segments import Journal
from querator.daemon.store.journal.trimmed import Skip

__all__ = [
    "BATCH",
    "RECORD_HEADER_BYTES",
    "Feed",
    "FeedChunk",
    "History",
    "HoldLost",
    "Journal",
    "NewRecord",
    "News",
    "Opening",
    "Place",
    "Position",
    "Skip",
    "Survey",
    "records_left",
    "records_of",
    "size_of",
    "survey",
    "take_together",
]
