from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from querator.daemon.store.base import Storage, Store
from querator.daemon.store.batches import Batch, others_of
from querator.items import Item
from tests import ROOT

UUID = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
OTHER_UUID = "1190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
THIRD_UUID = "2190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
NO_BYTES_MAX = 1 << 40


def item(seq: int, **fields: Any) -> Item:
    return Item(**{"seq": seq, "created_at": seq * 10, "expire_deadline": seq * 1000, **fields})


def batch_of(**fields: Any) -> Batch:
    """A batch with these fields."""
    batch = Batch()
    for name, value in fields.items():
        setattr(batch if hasattr(batch, name) else others_of(batch), name, value)
    return batch


def added(*seqs: int) -> Batch:
    return batch_of(add=[item(seq) for seq in seqs], last_seq=max(seqs))


def leased(*leases: tuple[int, int, int]) -> Batch:
    """A batch that leases items, each given as (sequence, attempts, deadline)."""
    seqs, attempts, deadlines = (list(column) for column in zip(*leases, strict=True))
    return batch_of(lease_seqs=seqs, lease_attempts=attempts, lease_deadlines=deadlines)


def write(storage: Storage, store: Store, *batches: Batch) -> None:
    """Commits batches and makes them durable, but does not apply them."""
    for batch in batches:
        store.unapplied.commit(batch)
    taken = storage.take()
    if taken is not None:
        storage.write(taken)
        storage.absorb(taken)


def put(storage: Storage, store: Store, *batches: Batch) -> None:
    """Commits batches, makes them durable and applies them."""
    write(storage, store, *batches)
    store.flush()


def ready_seqs(store: Store) -> list[int]:
    return [found.seq for found in store.ready(0, None, 1_000_000, NO_BYTES_MAX)]


def in_a_process_that_is_killed(directory: Path, lines: str) -> None:
    """Runs lines of Python in a new process, with the names `storage` and `store`, and then kills the process."""
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from querator.daemon.store.duck.storage import DuckStorage
from tests.store.store_making import *
storage = DuckStorage("disk", {str(directory)!r})
storage.recover()
path = Path({str(directory)!r}) / (UUID + ".duckdb")
store = storage.open(UUID, "orders") if path.exists() else storage.create(UUID, "orders")
{textwrap.dedent(lines)}
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
