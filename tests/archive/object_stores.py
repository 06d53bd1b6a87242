"""A real S3 server on loopback, and a proxy in front of it that fails on demand."""

from __future__ import annotations

import http.client
import itertools
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import boto3
from moto.server import ThreadedMotoServer

KEYS = {"access_key_id": "testing", "secret_access_key": "testing", "region": "us-east-1"}
_numbers = itertools.count(1)


class S3:
    """moto's server. Each archive has a bucket of its own."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
            region_name=KEYS["region"],
        )

    def archive(self, endpoint: str = "") -> tuple[str, dict[str, str]]:
        """A new archive: its URL and the settings with which it is reached."""
        bucket = f"bucket-{next(_numbers)}"
        self.client.create_bucket(Bucket=bucket)
        return f"s3://{bucket}/queue", {**KEYS, "endpoint": endpoint or self.endpoint}

    def stop(self) -> None:
        self._server.stop()


Fault = Callable[["Handler", bytes], bool]
"""Gets a request and its body. Returns whether the fault has dealt with it."""


class FaultyProxy:
    """Passes requests on to an S3 server, unless `fault` deals with them."""

    def __init__(self, endpoint: str) -> None:
        self.fault: Fault | None = None
        self.puts = 0
        handler = type("Handler", (Handler,), {"proxy": self, "upstream": urlsplit(endpoint).netloc})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy
    upstream: str

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT":
            self.proxy.puts += 1
        fault = self.proxy.fault
        if fault is None or not fault(self, body):
            self.answer(*self.passed_on(body))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def passed_on(self, body: bytes, path: str = "") -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
            connection.request(self.command, path or self.path, body or None, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        else:
            for name, value in headers:
                if name.lower() == "content-length":
                    self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int = 503) -> bool:
        self.answer(status, [], b"")
        return True

    def hang_up(self) -> bool:
        """Ends the connection without an answer."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return True

    def log_message(self, format: str, *args: object) -> None:
        pass
