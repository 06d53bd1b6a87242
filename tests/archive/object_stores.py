"""A real S3 server on loopback, and a proxy in front of it that fails on demand."""

from __future__ import annotations

import http.client
import itertools
import random
import re
import socket
import sys
import threading
from collections.abc import Callable, Collection
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
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # tests kill daemons that wait for an answer
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Otherwise the body of each answer waits 40 ms for the client to acknowledge the head."""
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

    def half_sent(self, body: bytes) -> None:
        """The server gets the head, which says how long the body is, and half of the body."""
        with socket.create_connection(("127.0.0.1", int(self.upstream.rpartition(":")[2]))) as upstream:
            lines = [f"{self.command} {self.path} HTTP/1.1", *(f"{k}: {v}" for k, v in self.headers.items())]
            upstream.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body[: len(body) // 2])

    def half_answered(self, body: bytes) -> bool:
        self.answer_half(body)
        return self.hang_up()

    def answer_half(self, body: bytes) -> None:
        """The client gets the head, which says how long the answer is, and half of the answer."""
        status, headers, answer = self.passed_on(body)
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer[: len(answer) // 2])

    @property
    def is_list(self) -> bool:
        return self.command == "GET" and "list-type=2" in self.path

    def answer_without(self, body: bytes, hidden: Collection[str]) -> bool:
        """Answers a list without the objects whose names end like one of `hidden`."""
        status, headers, answer = self.passed_on(body)
        shown = re.sub(
            r"<Contents>.*?</Contents>",
            lambda found: "" if any(f"{name}</Key>" in found.group() for name in hidden) else found.group(),
            answer.decode(),
            flags=re.DOTALL,
        )
        self.answer(status, headers, shown.encode())
        return True

    def hang_up(self) -> bool:
        """Ends the connection without an answer."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return True

    def log_message(self, format: str, *args: object) -> None:
        pass


class BadWeather:
    """A fault that makes requests fail at random, in every way in which an object store fails.

    A list that lags does not show the objects that were written last.
    """

    def __init__(self, chance: random.Random, share: float = 0.3, lag: int = 5) -> None:
        self._chance = chance
        self._share = share
        self._lag = lag
        self._written: list[str] = []
        self.faults: dict[str, int] = {}

    def __call__(self, handler: Handler, body: bytes) -> bool:
        is_put = handler.command == "PUT"
        if is_put:
            self._written.append("/".join(handler.path.partition("?")[0].split("/")[3:]))
        if handler.is_list and self._lag:
            return handler.answer_without(body, self._written[-self._lag :])
        if self._chance.random() > self._share:
            return False
        kinds = ["refused", "dropped", "carried out and refused", "carried out and dropped"]
        kinds += ["torn", "in conflict"] if is_put else ["half answered"]
        kind = self._chance.choice(kinds)
        self.faults[kind] = self.faults.get(kind, 0) + 1
        if kind == "half answered":
            return handler.half_answered(body)
        if kind == "torn":
            handler.half_sent(body)
        if kind.startswith("carried out"):
            handler.passed_on(body)
        if kind == "in conflict":
            return handler.refuse(409)
        return handler.refuse() if kind.endswith("refused") else handler.hang_up()
