"""Clients over TLS: blocking, asyncio and bulk, against a real daemon; and what goes wrong, in one line each."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from querator import AsyncClient, Client, ClientTls
from querator.cli.tls.certificates import new_client, new_server
from querator.client import BulkClient
from querator.client.connection import Aborted
from querator.errors import ConfigError, TlsFailed, UsageError
from tests.daemons import Daemon
from tests.pki import HOSTS, Pki, valid_between
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"), "127.0.0.1")


@pytest.fixture(scope="module")
def daemon(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    words = (*pki.daemon_words, "--tls-client-ca", pki.path("ca.crt"))
    with Daemon(tmp_path_factory.mktemp("daemon"), *words, http=True) as daemon:
        daemon.client.create_queue("anything")
        yield daemon


@pytest.fixture(scope="module")
def tls(pki: Pki) -> ClientTls:
    return ClientTls(pki.path("ca.crt"))


def https(daemon: Daemon) -> str:
    return f"https://{daemon.http}"


# The three clients


def ask_blocking(endpoint: str, tls: ClientTls) -> None:
    with Client(endpoint, tls=tls, timeout=PATIENCE_SECONDS) as client:
        client.list_queues()


def ask_async(endpoint: str, tls: ClientTls) -> None:
    async def ask() -> None:
        async with AsyncClient(endpoint, tls=tls, timeout=PATIENCE_SECONDS) as client:
            await client.list_queues()

    asyncio.run(ask())


def ask_bulk(endpoint: str, tls: ClientTls) -> None:
    with BulkClient(endpoint, tls=tls, patience=PATIENCE_SECONDS) as client:
        client.plan("anything")


every_client = pytest.mark.parametrize("ask", [ask_blocking, ask_async, ask_bulk])
Ask = Callable[[str, ClientTls], None]


def test_an_item_lives_its_life_over_tls(daemon: Daemon, tls: ClientTls) -> None:
    queue = "life"
    with Client(https(daemon), tls=tls) as client:
        client.create_queue(queue)
        client.produce(queue, ["x" * 1_000_000])
        with client.leased(queue) as (item,):
            assert len(item.bytes_) == 1_000_000
    with BulkClient(https(daemon), tls=tls) as bulk:
        assert list(bulk.scan(queue, 0)) == []

    async def stats() -> Any:
        async with AsyncClient(https(daemon), tls=tls) as client:
            return await client.stats(queue)

    assert asyncio.run(stats()).queue_name == queue


@every_client
def test_a_client_certificate_can_be_shown(daemon: Daemon, pki: Pki, ask: Ask) -> None:
    tls = ClientTls(pki.path("ca.crt"), pki.path("client.crt"), pki.path("client.key"))
    ask(https(daemon), tls)


def test_an_abort_ends_a_waiting_lease(daemon: Daemon, tls: ClientTls) -> None:
    daemon.client.create_queue("waiting")
    raised: list[BaseException] = []
    with Client(https(daemon), tls=tls) as client:

        def wait() -> None:
            try:
                client.lease("waiting", timeout=PATIENCE_SECONDS)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: daemon.client.stats("waiting").logical_queues[0].lease_waiting > 0, "no lease is parked")
        client.abort()
        thread.join(PATIENCE_SECONDS)
    assert [type(error) for error in raised] == [Aborted]


# What goes wrong


def failure(ask: Ask, endpoint: str, tls: ClientTls) -> TlsFailed:
    with pytest.raises(TlsFailed) as raised:
        ask(endpoint, tls)
    assert raised.value.hint and "\n" not in raised.value.message
    return raised.value


@every_client
def test_an_unknown_ca_is_reported(daemon: Daemon, pki: Pki, tmp_path: Path, ask: Ask) -> None:
    told = failure(ask, https(daemon), ClientTls())
    assert told.message == f"the certificate of {https(daemon)} comes from an unknown CA"
    assert told.hint == "--ca-file FILE with the CA of the daemon"
    other = Pki(tmp_path).path("ca.crt")
    assert failure(ask, https(daemon), ClientTls(other)).hint == f"is {other} the CA of this daemon?"


@every_client
def test_another_host_is_reported(daemon: Daemon, tls: ClientTls, ask: Ask) -> None:
    endpoint = https(daemon).replace("127.0.0.1", "localhost")
    assert failure(ask, endpoint, tls).message == f"the certificate of {endpoint} is not for 'localhost'"


@every_client
def test_plain_http_to_a_tls_port_is_reported(daemon: Daemon, tls: ClientTls, ask: Ask) -> None:
    plain = https(daemon).replace("https:", "http:")
    told = failure(ask, plain, tls)
    assert told.message == f"{plain} speaks TLS"
    assert told.hint == f"--endpoint {https(daemon)} --ca-file FILE"


@every_client
def test_a_bad_client_certificate_is_reported(daemon: Daemon, pki: Pki, tmp_path: Path, ask: Ask) -> None:
    other = Pki(tmp_path)
    shown = ClientTls(pki.path("ca.crt"), other.path("client.crt"), other.path("client.key"))
    told = failure(ask, https(daemon), shown)
    assert told.message == f"{https(daemon)} refuses the certificate of this client: unknown ca"
    other.put("client", valid_between(pki.ca, new_client(pki.ca, "ann", 1), -2, -1))
    assert failure(ask, https(daemon), shown).message.endswith("of this client: certificate expired")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("plain"), http=True) as daemon:
        yield daemon


@every_client
def test_tls_to_a_plain_port_is_reported(plain: Daemon, tls: ClientTls, ask: Ask) -> None:
    told = failure(ask, https(plain), tls)
    assert told.message == f"{https(plain)} does not speak TLS"
    assert told.hint == f"--endpoint {https(plain).replace('https:', 'http:')}"


@pytest.mark.parametrize(
    ("begins", "ends", "message"), [(-2, -1, "has expired"), (1, 2, "is not valid yet")], ids=["expired", "future"]
)
def test_a_certificate_outside_of_its_time_is_reported(
    pki: Pki, tls: ClientTls, tmp_path: Path, begins: int, ends: int, message: str
) -> None:
    """A daemon refuses to start with such a certificate, so a bare server shows it."""
    files = Pki(tmp_path)
    files.put("server", valid_between(pki.ca, new_server(pki.ca, HOSTS, 1), begins, ends))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.path("server.crt"), files.path("server.key"))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                context.wrap_socket(listener.accept()[0], server_side=True)
            except (ssl.SSLError, OSError):
                return

        threading.Thread(target=serve, daemon=True).start()
        endpoint = f"https://localhost:{listener.getsockname()[1]}"
        assert failure(ask_blocking, endpoint, tls).message == f"the certificate of {endpoint} {message}"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ca_file": "missing"}, "CA file missing cannot be read: No such file or directory"),
        ({"ca_file": "empty"}, "CA file empty has no certificate in it"),
        ({"client_cert": "missing"}, "client certificate: missing cannot be read: No such file or directory"),
        ({"client_cert": "empty"}, "client certificate empty cannot be used"),
        (
            {"client_cert": "client.crt", "client_key": "server.key"},
            "client key server.key does not belong to client.crt",
        ),
        (
            {"client_cert": "client.crt", "client_key": "shared.key"},
            "client key shared.key can be read by other users",
        ),
    ],
)
@every_client
def test_files_that_cannot_be_used_are_named(
    pki: Pki, monkeypatch: pytest.MonkeyPatch, ask: Ask, files: dict[str, str], message: str
) -> None:
    monkeypatch.chdir(pki.directory)
    Path("empty").touch(0o600)
    Path("shared.key").write_bytes(Path("client.key").read_bytes())
    Path("shared.key").chmod(0o644)
    with pytest.raises(ConfigError) as raised:
        ask("https://localhost:1", ClientTls(**files))
    assert raised.value.message == message
    assert raised.value.hint


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(UsageError, match="no client certificate"):
        ask_blocking("https://localhost:1", ClientTls(client_key="x"))
