"""The parts that all protocols share: addresses, the interface of a connection, and the payloads."""

from __future__ import annotations

import abc
import random
import socket
import time
from typing import NamedTuple

from bench.compare.drive import Phase, Script

TEMPLATES = 8
"""A connection encodes this many produce requests in advance and sends them in turn, so that the client is not the
bottleneck. They differ, because equal payloads would favour a peer that compresses."""

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_CONNECT_SECONDS_MAX = 5.0


class Address(NamedTuple):
    """A Unix socket when `path` is set, otherwise a port on loopback."""

    path: str = ""
    port: int = 0


class PeerError(Exception):
    """The peer answered with an error."""


def connect(address: Address) -> socket.socket:
    if address.path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(_CONNECT_SECONDS_MAX)
        _connect_when_there_is_room(sock, address.path)
    else:
        sock = socket.create_connection(("127.0.0.1", address.port), _CONNECT_SECONDS_MAX)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _connect_when_there_is_room(sock: socket.socket, path: str) -> None:
    """Retries, because a Unix socket refuses a connection at once when its backlog is full. TCP would wait."""
    deadline = time.monotonic() + _CONNECT_SECONDS_MAX
    while True:
        try:
            sock.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.005)


def payloads(count: int, size_bytes: int, seed: int) -> list[bytes]:
    """Random text, which does not compress and is valid in every text protocol."""
    source = random.Random(seed)
    table = bytes(_ALPHABET[value % 64] for value in range(256))
    return [source.randbytes(size_bytes).translate(table) for _ in range(count)]


class Connection(abc.ABC):
    """One connection to a peer. It runs one script after another."""

    sock: socket.socket

    @abc.abstractmethod
    def produce(self, phase: Phase) -> Script:
        """Produces until the phase has no more items to claim. Each exchange is one batch, acknowledged as durable."""

    @abc.abstractmethod
    def consume(self, phase: Phase) -> Script:
        """Leases and completes batches until the phase has no more items to claim."""

    def close(self) -> None:
        self.sock.close()
