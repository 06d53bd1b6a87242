"""A fake daemon that keeps a queue in a list, to test the load generator. It answers in the encoding of the request."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from bench.compare.wire import Address
from querator.wire import json, protobuf
from querator.wire.messages import (
    QueueCompleteRequest,
    QueueLeaseItem,
    QueueLeaseRequest,
    QueueLeaseResponse,
    QueueProduceRequest,
    payloads,
)

PARTITION = 7
"""The partition that its answers name, and that requests must name."""


class FakeDaemon:
    """With `short_leases`, a lease returns half the items it asks for, as a queue with many partitions may do."""

    def __init__(self, directory: Path, *, short_leases: bool = False) -> None:
        self.address = Address(path=str(directory / "fake.sock"))
        self.waiting: list[tuple[str, bytes]] = []
        self.leased: dict[str, bytes] = {}
        self.completed: list[bytes] = []
        self.requests: dict[str, int] = {}
        self._short_leases = short_leases
        self._made = 0
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address.path)
        self._listener.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as stream:
            while line := stream.readline():
                path = line.split()[1].decode()
                headers: dict[str, str] = {}
                while (field := stream.readline().strip()) != b"":
                    name, _, value = field.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = stream.read(int(headers.get("content-length", "0")))
                with self._lock:
                    reply = self._answer(path, body, headers.get("content-type") == "application/protobuf")
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply)
                # In two pieces, so that the load generator has to join them.
                sock.sendall(head + reply[:40])
                if len(reply) > 40:
                    sock.sendall(reply[40:])

    def _answer(self, path: str, body: bytes, is_protobuf: bool) -> bytes:
        self.requests[path] = self.requests.get(path, 0) + 1
        codec = protobuf if is_protobuf else json
        if path == "/v1/queue.produce":
            for payload in payloads(codec.decode(QueueProduceRequest, body)):
                self._made += 1
                self.waiting.append((f"{self._made:027d}", payload))
        elif path == "/v1/queue.complete":
            request = codec.decode(QueueCompleteRequest, body)
            assert request.partition == PARTITION
            self._complete(request.ids)
        else:
            lease = codec.decode(QueueLeaseRequest, body)
            self._complete(lease.complete_ids)
            count = max(1, lease.batch_size // 2) if self._short_leases else lease.batch_size
            taken, self.waiting = self.waiting[:count], self.waiting[count:]
            self.leased.update(taken)
            items = [QueueLeaseItem(id=item_id, attempts=1, bytes_=payload) for item_id, payload in taken]
            response = QueueLeaseResponse(queue_name=lease.queue_name, partition=PARTITION, items=items)
            return protobuf.encode(response) if is_protobuf else json.encode(response)
        return b"" if is_protobuf else b'{"code":200}'

    def _complete(self, ids: list[str]) -> None:
        self.completed.extend(self.leased.pop(item_id) for item_id in ids)
