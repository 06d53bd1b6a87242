"""Coroutines that ask a queue for something and wait for it: a change, a read, work with a store, close and open.

A caller may be cancelled while it waits. The queue then finishes the work, and its result is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from querator.daemon.queue import STOPPING, Change, Logical, Partition, Request, Respond, failing
from querator.daemon.store import LackOfMemory, Store, is_harmless
from querator.errors import InternalError, QueratorError, RequestFailed, RetryRequest

T = TypeVar("T")


async def ask(logical: Logical, request: Callable[[Respond], Request]) -> Any:
    """Submits a request and returns its result. Raises the error with which the queue answers."""
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def respond(result: Any) -> None:
        (_fail if isinstance(result, QueratorError) else _finish)(ended, result)

    logical.submit(request(respond))
    return await ended


async def change(logical: Logical, partitions: Sequence[Partition], run: Callable[[int], T]) -> T:
    """Changes partitions in a pass of its own, and returns when the change is durable."""
    result: T = await ask(logical, lambda respond: Change(respond, partitions, run))
    return result


async def at_store(logical: Logical, partition: Partition, work: Callable[[Store], T]) -> T:
    """Runs blocking work with a partition's open store, after other work of the partition. Raises what it raises."""
    store = _store_of(partition)
    return await at_file(logical, partition, lambda: work(store))


async def at_file(logical: Logical, partition: Partition, work: Callable[[], T]) -> T:
    """`at_store` for work that needs no open store."""
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    logical.files.block(partition, work, partial(_finish, ended), partial(_fail, ended))
    logical.wake()
    return await ended


async def read(logical: Logical, partition: Partition, work: Callable[[Store], T], *, flush: bool = True) -> T:
    """Reads for a client, with errors that a client may see. A fault of the store fails the partition.

    With `flush`, the partition's file gets everything from the journal first.
    """
    if logical.is_stopping:
        raise RequestFailed(STOPPING)
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    store = _store_of(partition)
    logical.files.read(
        partition,
        lambda: work(store),
        partial(_finish, ended),
        flush=flush,
        failed=partial(_fail, ended),
        fails_partition=lambda error: not is_harmless(error),
    )
    logical.wake()
    try:
        return await ended
    except LackOfMemory as error:
        raise RequestFailed(f"partition '{partition.number}' cannot be read; {error}") from error
    except Exception as error:
        raise (InternalError() if is_harmless(error) else RetryRequest(failing(partition.number))) from error


async def close_partition(logical: Logical, partition: Partition) -> str:
    """Closes a partition's file in a pass. Returns the reason if that failed; then the partition is in error."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    await change(logical, [], lambda now_us: logical.close_partition(partition, partial(_finish_text, ended)))
    return await ended


async def open_partition(logical: Logical, partition: Partition) -> str:
    """Opens a closed partition in a pass and reads all of it. Returns the reason if that failed."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def run(now_us: int) -> None:
        partition.allow_opening()
        logical.files.open(partition, partial(_finish_text, ended))

    await change(logical, [], run)
    return await ended


def _store_of(partition: Partition) -> Store:
    if partition.store is None or not partition.allows.storage:
        raise RetryRequest(failing(partition.number))
    return partition.store


def _finish(ended: asyncio.Future[T], result: T) -> None:
    if not ended.done():
        ended.set_result(result)


def _fail(ended: asyncio.Future[T], error: Exception) -> None:
    if not ended.done():
        ended.set_exception(error)


def _finish_text(ended: asyncio.Future[str], error: Exception | None) -> None:
    _finish(ended, "" if error is None else str(error))
