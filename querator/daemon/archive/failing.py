"""Errors of an archive as a command shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from querator.daemon.archive.bucket import ArchiveError, Away, Gap
from querator.daemon.archive.objects import DamagedObject
from querator.daemon.store import StorageError
from querator.errors import Unreachable


@contextmanager
def failures() -> Iterator[None]:
    try:
        yield
    except Gap as error:
        raise ArchiveError(str(error), hint="querator archive list shows the times that can be restored") from error
    except Away as error:
        raise Unreachable(f"the archive cannot be reached: {error}", hint="querator doctor tries it") from error
    except DamagedObject as error:
        hint = "a restore to an earlier time may not need it: querator archive list shows the times before it"
        raise ArchiveError(str(error), hint=hint) from error
    except StorageError as error:
        raise ArchiveError(f"the directory cannot be used: {error}") from error
