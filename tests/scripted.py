"""A fake daemon that gives the answers of a test, for lost connections, 454s and other failures."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import msgspec


class Asked(NamedTuple):
    path: str
    request: dict[str, Any]
    headers: dict[str, str]


class Drop:
    """Closes the connection instead of answering."""


Answer = Drop | tuple[int, Any]
OK: Answer = (200, {"code": 200})


def refusal(code: int, message: str) -> Answer:
    return (code, {"code": code, "code_text": "as it may be", "message": message})


class ScriptedDaemon:
    """Answers each request with the next answer, and repeats the last one. `asked` records the requests."""

    def __init__(self, directory: Path, *answers: Answer | Callable[[Asked], Answer]) -> None:
        self.socket = directory / "scripted.sock"
        self.asked: list[Asked] = []
        self._answers = list(answers)
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked = Asked(self.path, msgspec.json.decode(body or b"{}"), dict(self.headers))
                daemon.asked.append(asked)
                answer: Any = daemon._answers.pop(0) if len(daemon._answers) > 1 else daemon._answers[0]
                if callable(answer):
                    answer = answer(asked)
                if isinstance(answer, Drop):
                    self.close_connection = True
                    return
                code, content = answer
                data = content if isinstance(content, bytes) else msgspec.json.encode(content)
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def address_string(self) -> str:
                return "test"

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self._server = Server(str(self.socket), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"unix:{self.socket}"

    def __enter__(self) -> ScriptedDaemon:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
