"""SQLite has no server, so the workers are threads of the load process. Each thread has its own connection.

Write transactions wait for a lock of the process. A careful user would add such a lock, because SQLite's own busy
handler sleeps and polls. The CPU and memory of the server are those of the load process.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

from bench.compare.drive import Phase
from bench.compare.wire import TEMPLATES, payloads

_SCHEMA = """
create table if not exists items (
    id integer primary key, payload blob not null, leased_until integer not null default 0);
create index if not exists items_waiting on items (id) where leased_until = 0;
"""
_PRODUCE = "insert into items (payload) values (?)"
_LEASE = """
update items set leased_until = unixepoch() + 600
where id in (select id from items where leased_until = 0 order by id limit ?) returning id, payload
"""
_COMPLETE = "delete from items where id = ?"


class SqliteWorkers:
    """The workers of a cell. `produce` and `consume` run one phase and return its seconds."""

    def __init__(self, file: Path, batch: int, clients: int, payload_bytes: int = 200) -> None:
        self._lock = threading.Lock()
        self._connections = []
        self._rows = []
        for index in range(clients):
            connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, cached_statements=16)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            connection.executescript(_SCHEMA)
            self._connections.append(connection)
            templates = [payloads(batch, payload_bytes, index * TEMPLATES + turn) for turn in range(TEMPLATES)]
            self._rows.append(cycle([[(item,) for item in template] for template in templates]))

    def produce(self, phase: Phase) -> float:
        def work(worker: int) -> None:
            connection, rows, samples = self._connections[worker], self._rows[worker], phase.samples("produce")
            while True:
                began = time.perf_counter_ns()
                with self._lock:
                    if not phase.claim():
                        return
                    connection.execute("begin immediate")
                    connection.executemany(_PRODUCE, next(rows))
                    connection.execute("commit")
                samples.append(time.perf_counter_ns() - began)

        return self._run(work)

    def consume(self, phase: Phase) -> float:
        def work(worker: int) -> None:
            connection = self._connections[worker]
            leases, completes = phase.samples("lease"), phase.samples("complete")
            while True:
                began = time.perf_counter_ns()
                with self._lock:
                    count = phase.claim()
                    if not count:
                        return
                    leased = connection.execute(_LEASE, (count,)).fetchall()
                leases.append(time.perf_counter_ns() - began)
                ids = [row[:1] for row in leased]
                began = time.perf_counter_ns()
                with self._lock:
                    connection.execute("begin immediate")
                    connection.executemany(_COMPLETE, ids)
                    connection.execute("commit")
                completes.append(time.perf_counter_ns() - began)

        return self._run(work)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _run(self, work: Callable[[int], None]) -> float:
        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(len(self._connections))]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began
