"""What a queue keeps on disk: the store contract, DuckDB files, and the journal in front of them.

`base` states the contract. `duck` implements it with files and `journal`, and the tests have a storage in memory.
Nothing here knows what a queue decides, and nothing here calls upwards. Other packages import the names below and
nothing else.

Inside, calls go one way: a storage calls its stores, and a store calls its file and the journal. A store does not know
its storage. It leaves its batches in `StagedBatches`, and the storage takes them from there.
"""

from querator.daemon.store.base import (
    Due,
    Found,
    LackOfMemory,
    Leased,
    Loss,
    RecordLost,
    Storage,
    StorageError,
    Store,
    Summary,
    is_harmless,
)
from querator.daemon.store.batches import Batch, joined, others_of, spread_lease
from querator.daemon.store.batches import decode as decode_batch
from querator.daemon.store.columnar import ItemColumns, RunColumns, items_from, items_in
from querator.daemon.store.duck import (
    ITEMS,
    SCHEDULED,
    FileSnapshot,
    Scan,
    Slice,
    SlicedStore,
    SnapshotLost,
    copies,
    open_storage,
    schemas,
)
from querator.daemon.store.files import open_regular, private, replace_file, sync_directory
from querator.daemon.store.fingerprints import (
    FINGERPRINT_SQL,
    DroppedFingerprints,
    Fingerprints,
    ascending,
    fingerprint,
)
from querator.daemon.store.journal import (
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
from querator.daemon.store.runs import LeasedStripe, Rows, Run, Stripe
from querator.daemon.store.unapplied import Unapplied

__all__ = [
    "FINGERPRINT_SQL",
    "ITEMS",
    "SCHEDULED",
    "Batch",
    "DroppedFingerprints",
    "Due",
    "Feed",
    "FeedChunk",
    "FileSnapshot",
    "Fingerprints",
    "Found",
    "HoldLost",
    "ItemColumns",
    "LackOfMemory",
    "Leased",
    "LeasedStripe",
    "Loss",
    "News",
    "Opening",
    "Position",
    "RecordLost",
    "Rows",
    "Run",
    "RunColumns",
    "Scan",
    "Slice",
    "SlicedStore",
    "SnapshotLost",
    "Storage",
    "StorageError",
    "Store",
    "Stripe",
    "Summary",
    "Survey",
    "Unapplied",
    "ascending",
    "copies",
    "decode_batch",
    "fingerprint",
    "is_harmless",
    "items_from",
    "items_in",
    "joined",
    "open_regular",
    "open_storage",
    "others_of",
    "private",
    "records_left",
    "records_of",
    "replace_file",
    "schemas",
    "spread_lease",
    "survey",
    "sync_directory",
    "take_together",
]
