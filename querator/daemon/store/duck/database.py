"""What all users of a DuckDB instance share: more memory for a statement, and the reason of an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import duckdb

if TYPE_CHECKING:
    from querator.daemon.store.duck.instance import Instance

T = TypeVar("T")
Cursor: TypeAlias = duckdb.DuckDBPyConnection


def with_room(instance: Instance, work: Callable[[], T]) -> T:
    """Calls `work`, and repeats it with more memory while DuckDB runs out of memory.

    `work` must change nothing when it fails.
    """
    while True:
        had_bytes, forgotten = instance.memory_bytes, instance.forgotten
        try:
            return work()
        except duckdb.Error as error:
            if not is_lack_of_memory(error) or not instance.make_room(had_bytes, forgotten):
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


def reason_of(error: BaseException) -> str:
    """The first line of an error. DuckDB adds a stack trace, or advice that is not for operators."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
