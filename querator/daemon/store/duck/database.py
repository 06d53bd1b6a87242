"""The DuckDB instance as a partition file sees it, and how a statement gets more memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import duckdb
import pyarrow as pa

T = TypeVar("T")


class Relation(Protocol):
    def to_arrow_table(self) -> pa.Table: ...


class Cursor(Protocol):
    """The part of a DuckDB connection that the store uses."""

    def execute(self, query: str, parameters: object = ...) -> Any: ...

    def sql(self, query: str, *, params: object = ...) -> Relation: ...

    def register(self, view_name: str, python_object: object) -> Any: ...

    def unregister(self, view_name: str) -> Any: ...


class Database(Protocol):
    """The DuckDB instance that a file is attached to."""

    def cursor(self) -> Cursor:
        """The calling thread's own cursor."""

    @property
    def memory_bytes(self) -> int:
        """How much memory the instance may use."""

    def make_room(self, had_bytes: int) -> bool:
        """Allows the instance more memory than `had_bytes`. False if it cannot have more."""

    def new_cursor(self) -> Any:
        """A cursor for a transaction that outlives a call."""


def with_room(database: Database, work: Callable[[], T]) -> T:
    """Calls `work`, and repeats it with more memory while DuckDB runs out of memory.

    `work` must change nothing when it fails.
    """
    while True:
        had_bytes = database.memory_bytes
        try:
            return work()
        except duckdb.Error as error:
            if not is_lack_of_memory(error) or not database.make_room(had_bytes):
                raise


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether DuckDB ran out of memory.

    A statement raises OutOfMemoryException. A commit, a checkpoint and an attach wrap that error in one of their own
    kind, whose text always ends with the advice to raise this setting. An error that asks for the file to be attached
    again may quote an earlier lack of memory. More memory does not help then.
    """
    if isinstance(error, duckdb.OutOfMemoryException):
        return True
    return isinstance(error, duckdb.Error) and "SET memory_limit=" in str(error) and "reattach" not in str(error)
