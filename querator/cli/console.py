"""`querator console`: opens the daemon's web console through a local port, which is open as long as the command runs.

The command passes requests on to the daemon's socket, as the user who runs it. A secret in the first address, and then
a cookie, keep out everybody else on the machine. Other users see the address in the list of processes when it opens a
browser, so it then works only for a browser of the same user. Only `/console` is passed on.
"""

from __future__ import annotations

import http.client
import http.server
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Annotated, Final

import typer

from querator.cli.shell.options import command
from querator.cli.terminal.session import Session

app = typer.Typer(add_completion=False, rich_markup_mode=None)

BODY_BYTES_MAX: Final = 1_000_000
NOBODY_UID: Final = -1
_ESTABLISHED: Final = "01"
"""The state of a connection in the kernel's table."""
HOP_BY_HOP: Final = ("connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "proxy-connection")


@command(app, "console")
def console(
    session: Session,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Local port. Default: a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Open the web console of the daemon in a browser.

    The command ends with Ctrl-C. It also works for a daemon without TCP: a local port, which only the printed address
    opens, leads to its socket.
    """
    from querator.client import parse_address

    address = parse_address(str(session.settings.address.value))
    if not address.socket:
        link = f"{address}/console"
        session.output.record({"url": link}, name="url")
        _open(link, not no_browser)
        return
    session.client.health()  # fails with a hint if no daemon answers
    gate = Gate(None if no_browser else _own_uids())
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), _handler(gate, address.socket)) as server:
        server.daemon_threads = True
        link = f"http://127.0.0.1:{server.server_port}/{gate.secret}"
        session.output.record({"url": link}, name="url")
        session.streams.stdout.flush()
        _open(link, not no_browser)
        server.serve_forever()


def _open(link: str, wanted: bool) -> None:
    if wanted:
        import webbrowser

        webbrowser.open(link)


class Gate:
    """Admits the first request with the secret, and after that every request with the cookie."""

    def __init__(self, uids: frozenset[int] | None = None) -> None:
        """The first request must come from a process of one of these users, if they are given."""
        self._uids = uids
        self.secret = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(24)
        self._is_used = False

    def enter(self, path: str, uid: int | None) -> str | None:
        """The cookie, for the first request with the secret. `uid` is the user whose process sent it, if known."""
        if self._is_used or not secrets.compare_digest(path.lstrip("/").encode(), self.secret.encode()):
            return None
        if self._uids is not None and uid is not None and uid not in self._uids:
            return None
        self._is_used = True
        return self._cookie

    def knows(self, header: str, name: str) -> bool:
        try:
            given = SimpleCookie(header).get(name)
        except CookieError:
            return False
        return given is not None and secrets.compare_digest(given.value.encode(), self._cookie.encode())


def _own_uids() -> frozenset[int]:
    """This user, and the one who became this user with sudo, because that user's browser opens."""
    import os

    return frozenset((os.geteuid(), int(os.environ.get("SUDO_UID") or os.geteuid())))


def _uid_at(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user of the process at the other end of a connection on this machine. None if the kernel does not say."""
    import socket
    import sys

    def entry(address: tuple[str, int]) -> str:
        return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"

    try:
        with open("/proc/net/tcp") as table:
            for line in table:
                fields = line.split()
                if fields[1:4] == [entry(client), entry(server), _ESTABLISHED]:
                    return int(fields[7])
    except OSError:
        return None  # not Linux
    return NOBODY_UID


def _handler(gate: Gate, socket_path: str) -> Callable[..., http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            cookie = gate.enter(self.path, _uid_at(self.client_address, self.connection.getsockname()))
            if cookie is not None:
                self._answer(
                    303,
                    b"",
                    location="/console",
                    set_cookie=f"{self._name}={cookie}; Path=/; HttpOnly; SameSite=Strict",
                )
            elif self._may_pass():
                self._pass_on(None)

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            if length > BODY_BYTES_MAX:
                self._answer(413, b"the form is too long\n")
            elif self._may_pass():
                self._pass_on(self.rfile.read(length))

        @property
        def _port(self) -> int:
            return int(self.connection.getsockname()[1])

        @property
        def _name(self) -> str:
            return f"querator_gate_{self._port}"

        def _may_pass(self) -> bool:
            own = {f"{host}:{self._port}" for host in ("127.0.0.1", "localhost")}
            if self.headers.get("host") not in own:
                self._answer(403, b"this address is not ours\n")
            elif not gate.knows(self.headers.get("cookie", ""), self._name):
                self._answer(403, b"run 'querator console' and open the address that it prints\n")
            elif self.path != "/console" and not self.path.startswith(("/console/", "/console?")):
                self._answer(404, b"only /console is here\n")
            else:
                return True
            return False

        def _pass_on(self, body: bytes | None) -> None:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            daemon = _UnixConnection(socket_path)
            try:
                daemon.request(self.command, self.path, body, headers)
                answer = daemon.getresponse()
                content = answer.read()
            except OSError as error:
                self._answer(502, f"the daemon does not answer: {error}\n".encode())
                return
            finally:
                daemon.close()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in (*HOP_BY_HOP, "content-length"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _answer(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.send_header("content-length", str(len(content)))
            self.send_header("connection", "close")
            self.close_connection = True
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Prints nothing, because the user needs the terminal."""

    return Handler


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self) -> None:
        import os
        import socket

        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(os.path.expanduser(self._path))
        except OSError as error:
            raise OSError(f"{self._path}: {error.strerror}") from None
