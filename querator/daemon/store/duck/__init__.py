"""The store contract with DuckDB files. All SQL of partition files is in this package.

`storage` opens partitions, `duckstore` is one partition, and `attached` handles the files. The statements are in
`reading` and `applying`, and the schema is in `tables`. `sandbox` is a program of its own, which `bulk/` runs. The rest
of `store/` imports the names below only.
"""

from querator.daemon.store.duck import copies
from querator.daemon.store.duck.slices import ITEMS, SCHEDULED, Scan, Slice, SlicedStore, schemas
from querator.daemon.store.duck.snapshot import FileSnapshot, SnapshotLost
from querator.daemon.store.duck.storage import open_storage

__all__ = [
    "ITEMS",
    "SCHEDULED",
    "FileSnapshot",
    "Scan",
    "Slice",
    "SlicedStore",
    "SnapshotLost",
    "copies",
    "open_storage",
    "schemas",
]
