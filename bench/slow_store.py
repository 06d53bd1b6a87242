"""An object store in memory whose puts and gets take a given time: as much of S3 as an archive uses. For benchmarks.

python -m bench.slow_store --port 9000 --put-ms 5 --get-ms 20
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import re
import socket
import socketserver
import time
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MODIFIED = "2026-01-01T00:00:00.000Z"
MODIFIED_HEADER = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT"
CONNECTION_SECONDS_MAX = 3_600.0
PR_SET_TIMERSLACK = 29


class Connection(socketserver.StreamRequestHandler):
    """A connection has a thread of its own, which sleeps between a request and its answer. The answer is made before
    that, so that nothing but the given time passes.
    """

    store: ClassVar[Store]

    def handle(self) -> None:
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.settimeout(CONNECTION_SECONDS_MAX)
        # Otherwise a sleep of a thread may last 50 µs longer than asked for. Only Linux has this.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1))
        while line := self.rfile.readline():
            begun = time.monotonic()
            method, target, _ = line.decode().split(" ")
            fields = {}
            while field := self.rfile.readline().decode().rstrip("\r\n"):
                name, _, value = field.partition(": ")
                fields[name.lower()] = value
            body = self.rfile.read(int(fields.get("content-length", "0")))
            answer = self.store.answer(method, target, fields, body)
            if seconds := self.store.seconds.get(method):
                time.sleep(max(0.0, begun + seconds - time.monotonic()))
            self.connection.sendall(answer)


class Store:
    def __init__(self, put_seconds: float, get_seconds: float) -> None:
        self.seconds = {"PUT": put_seconds, "GET": get_seconds}
        self._objects: dict[str, bytes] = {}

    def answer(self, method: str, target: str, fields: dict[str, str], body: bytes) -> bytes:
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True)
        name = unquote(parts.path).lstrip("/").partition("/")[2]
        if method == "PUT":
            if fields.get("if-none-match") != "*":
                self._objects[name] = body
            elif self._objects.setdefault(name, body) is not body:
                return _reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return _reply(200, b"", body)
        if method == "POST" and "delete" in query:
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for key in keys:
                self._objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return _reply(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if "list-type" in query:
            return _reply(200, self._list(query.get("prefix", [""])[0], query.get("start-after", [""])[0]))
        if name not in self._objects:
            return _reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
        whole = self._objects[name]
        if not (wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", fields.get("range", ""))):
            return _reply(200, whole, whole)
        begin, end = int(wanted[1]), min(int(wanted[2]) + 1, len(whole))
        return _reply(206, whole[begin:end], whole, f"Content-Range: bytes {begin}-{end - 1}/{len(whole)}\r\n")

    def _list(self, prefix: str, after: str) -> bytes:
        entries = [
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self._objects[name])}</Size>"
            f"<LastModified>{MODIFIED}</LastModified><ETag>&quot;x&quot;</ETag></Contents>"
            for name in sorted(self._objects)
            if name.startswith(prefix) and name > after
        ]
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
        return text.encode()


def _reply(status: int, body: bytes, named: bytes = b"", fields: str = "") -> bytes:
    tag = hashlib.md5(named, usedforsecurity=False).hexdigest()
    head = f'HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nETag: "{tag}"\r\n{MODIFIED_HEADER}\r\n{fields}\r\n'
    return head.encode() + body


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--put-ms", type=float, default=5.0)
    parser.add_argument("--get-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    Connection.store = Store(arguments.put_ms / 1_000, arguments.get_ms / 1_000)
    with Server(("127.0.0.1", arguments.port), Connection) as server:
        server.serve_forever()
