"""Creates, reads, lists and deletes objects in an object store. Only this module uses obstore.

The objects of an archive in a directory (`file://`) are written by `object_files`, because obstore does not sync them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from querator import limits
from querator.daemon.archive import object_files
from querator.errors import ConfigError, QueratorError

SCHEMES: Final = ("s3", "gs", "az", "file")
_PIECE_BYTES: Final = 4 << 20
_FAILED_REQUEST: Final = re.compile(
    r"Error performing (\w+) (\w+://[^/\s]+)\S* in \S+ - (?:Server returned non-2xx status code: )?"
    r"(.*?)(?:: <.*|[:\s]*)$"
)
"""How obstore reports a request that failed: with its duration, and with the first line of the answer."""
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
"""What S3 says about it."""


class Away(Exception):
    """The object store does not answer, or refuses. The request may still have been carried out."""


class Gap(Away):
    """A log object is missing and the log goes on after it. Perhaps it was pruned, and a list that lags does not show
    the index that leads past it.
    """


class ArchiveError(QueratorError):
    """The archive cannot be used."""


class NothingYet(ArchiveError):
    """The archive has no complete state so far."""


class StoredObject(NamedTuple):
    name: str
    size: int
    modified_us: int


class Bucket:
    """The objects below a URL. All methods block, and raise Away if the object store cannot be reached."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None, is_made: bool = True) -> None:
        """`is_made` says whether a missing directory is made. A command that only reads must not make one."""
        self.url = url
        scheme, host, path = urlsplit(url)[:3]
        if scheme not in SCHEMES:
            raise ConfigError(
                f"'{url}' is not an archive",
                hint="it begins with s3://, gs://, az:// or file://, such as s3://bucket/queue",
            )
        if scheme == "file" and host:
            raise ConfigError(f"'{url}' names no directory", hint="it has three slashes, such as file:///srv/archive")
        self._directory = Path(unquote(path)) if scheme == "file" else None
        if self._directory is not None and not is_made and not self._directory.is_dir():
            raise ArchiveError(
                f"there is no archive {url}: the directory does not exist",
                hint="check the URL, and whether the disk is mounted",
            )
        self._library, self._store = _opened(url, dict(options or {}), self._directory)
        self._errors = self._library.exceptions

    def create(self, name: str, data: bytes) -> bytes | None:
        """Creates an object. If an object of this name exists, changes nothing and returns its bytes.

        An object with the same bytes is our own: an earlier attempt succeeded, although it looked like a failure. An
        object that is cut off is our own too. Stores with atomic puts show none, but if there is one, only its writer
        can complete it.
        """
        if self._create(name, data):
            return None
        there = self.read(name)
        if there is None:
            raise Away(f"{name} exists and cannot be read")
        if there == data:
            if self._directory is not None:
                with self._failures():
                    object_files.sync_names(self._directory, name)
            return None
        if len(there) < len(data) and data.startswith(there):
            self.replace(name, data)
            return None
        return there

    def _create(self, name: str, data: bytes) -> bool:
        with self._failures():
            if self._directory is not None:
                return object_files.create(self._directory, name, data)
            try:
                self._library.put(self._store, name, data, mode="create", use_multipart=False)
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                return False
        return True

    def replace(self, name: str, data: bytes) -> None:
        with self._failures():
            if self._directory is not None:
                object_files.replace(self._directory, name, data)
            else:
                self._library.put(self._store, name, data, use_multipart=False)

    def upload(self, name: str, path: Path) -> None:
        """Uploads a file, in parts if it is large. Nobody else uses the name."""
        with self._failures():
            if self._directory is not None:
                object_files.upload(self._directory, name, path)
            else:
                self._library.put(self._store, name, path, max_concurrency=2)

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""
        with self._failures():
            try:
                return bytes(self._library.get(self._store, name).bytes())
            except (self._errors.NotFoundError, FileNotFoundError) as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def read_start(self, name: str, size: int) -> tuple[bytes, int] | None:
        """The first bytes of an object, at most `size` of them, and how many it has; None if there is none."""
        with self._failures():
            try:
                found = self._library.get(self._store, name, options={"range": (0, size)})
                return bytes(found.bytes()), int(found.meta["size"])
            except (self._errors.NotFoundError, FileNotFoundError) as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def read_rest(self, name: str, begin: int, end: int) -> bytes:
        """The bytes of an object from `begin` up to `end`. The object must be there."""
        with self._failures():
            return bytes(self._library.get_range(self._store, name, start=begin, end=end))

    def has(self, name: str) -> bool:
        """Whether there is an object of this name."""
        with self._failures():
            try:
                self._library.head(self._store, name)
            except (self._errors.NotFoundError, FileNotFoundError):
                return False
        return True

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a large object, in pieces."""
        with self._failures():
            try:
                for piece in self._library.get(self._store, name).stream(min_chunk_size=_PIECE_BYTES):
                    yield bytes(piece)
            except (self._errors.NotFoundError, FileNotFoundError):
                raise ArchiveError(f"{name} is missing from the archive {self.url}") from None

    def entries(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        """The objects whose names begin with a prefix, in the order of their names. A list may lag behind."""
        with self._failures():
            found: list[StoredObject] = []
            for page in self._library.list(self._store, prefix, offset=after or None):
                for one in page:
                    modified_us = int(one["last_modified"].timestamp() * 1_000_000)
                    found.append(StoredObject(str(one["path"]), int(one["size"]), modified_us))
        # A directory is listed in any order.
        yield from sorted(found)

    def delete(self, names: list[str]) -> None:
        """Deletes objects. An object that is gone already, because somebody else deletes too, is no error."""
        # A directory reports a missing file, and does not delete the files after it.
        count = limits.ARCHIVE_DELETES_MAX if self._directory is None else 1
        with self._failures():
            for at in range(0, len(names), count):
                with contextlib.suppress(self._errors.NotFoundError, FileNotFoundError):
                    self._library.delete(self._store, names[at : at + count])

    def delete_unfinished(self, dry_run: bool) -> list[int]:
        """Deletes what writers that crashed have left in a directory. Returns the sizes."""
        with self._failures():
            return object_files.delete_unfinished(self._directory, dry_run) if self._directory is not None else []

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (self._errors.BaseError, OSError) as error:
            text = str(error).strip()
            if "NoSuchBucket" in text:
                raise Away(f"there is no bucket '{urlsplit(self.url).netloc}'") from error
            raise Away(_reason(text) or type(error).__name__) from error


def _reason(text: str) -> str:
    """What went wrong, from the text of an error. The same failure gives the same reason each time."""
    first = text.partition("\n")[0]
    if (found := _FAILED_REQUEST.search(first)) is None:
        return first
    method, server, failure = found.groups()
    code = _CODE.search(text)
    what = f"{method} at {server}: {failure}" + (f", {code[1]}" if code else "")
    is_denied = failure.startswith(("401", "403"))
    return f"access is denied, so check the credentials and their rights: {what}" if is_denied else what


def _opened(url: str, options: dict[str, str], directory: Path | None) -> tuple[Any, Any]:
    try:
        import obstore
        from obstore.store import LocalStore, from_url
    except ImportError:
        raise ConfigError(
            "an archive needs a library that is not installed", hint="pip install 'querator[archive]'"
        ) from None
    try:
        if directory is not None:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return obstore, LocalStore(prefix=directory)
        for name in options:
            if name.lower() in _CLIENT_OPTIONS:
                raise ConfigError(
                    f"'archive.options.{name}' is a setting of HTTP connections, and not of an object store",
                    hint="leave it out: an endpoint may begin with http://, and time limits are set by the daemon",
                )
        client_options = {
            "timeout": f"{limits.ARCHIVE_TIMEOUT_SECONDS}s",
            "connect_timeout": f"{limits.ARCHIVE_CONNECT_SECONDS}s",
            "allow_http": True,
        }
        store = _checked(from_url)(url, config=options, client_options=client_options, retry_config=_NO_RETRIES)
        return obstore, store
    except ConfigError:
        raise
    except Exception as error:  # the library has an error of its own for every setting
        hint = "check the URL, such as s3://bucket/queue, and [archive.options]"
        raise ConfigError(f"the archive {url} cannot be used: {str(error).splitlines()[0]}", hint=hint) from None


_CLIENT_OPTIONS: Final = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "timeout",
        "user_agent",
    ]
)
"""Settings that obstore takes elsewhere. It panics if they are among those of a store."""

_NO_RETRIES: Final[Any] = {"max_retries": 0}
"""Retries are made by the caller, who knows what else to do meanwhile."""


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The settings of a store for obstore. Its types name each setting, but ours come from a file, and obstore checks
    them.
    """
    return function
