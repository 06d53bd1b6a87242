"""TLS of a real daemon: what it refuses at start, whom it lets in, and new certificates under open connections."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from querator.cli.lookups.health import certificate_days
from querator.cli.lookups.metrics import parse
from querator.cli.tls.certificates import new_client, new_server
from querator.config import TlsConfig, check_tls, daemon_config
from querator.daemon import certificates
from querator.errors import ConfigError
from tests.daemons import Daemon, UnixConnection, querator
from tests.pki import HOSTS, Pki, valid_between, with_names
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Pki]]:
    """A daemon that no test changes."""
    directory = tmp_path_factory.mktemp("tls")
    pki = Pki(directory / "pki")
    with Daemon(directory, *pki.daemon_words, "--tls-client-ca", pki.path("ca.crt"), http=True) as daemon:
        yield daemon, pki


@pytest.fixture(scope="module")
def renewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Pki]]:
    """A daemon whose certificates tests replace."""
    directory = tmp_path_factory.mktemp("renewed")
    pki = Pki(directory / "pki")
    with Daemon(directory, *pki.daemon_words, "--tls-client-ca", pki.path("ca.crt"), http=True) as daemon:
        yield daemon, pki


def connect(daemon: Daemon, context: ssl.SSLContext, host: str = "localhost") -> ssl.SSLSocket:
    return context.wrap_socket(connect_plain(daemon), server_hostname=host)


def connect_plain(daemon: Daemon) -> socket.socket:
    host, _, port = daemon.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def ask(connection: ssl.SSLSocket, path: str = "/health", body: Any = None) -> tuple[int, Any]:
    """One request on an open connection."""
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
    connection.sendall(head.encode() + text)
    return answer(connection)


def lease(connection: ssl.SSLSocket, queue: str) -> None:
    """Asks for an item of an empty queue. `answer` reads the answer."""
    body = json.dumps({"queue_name": queue, "batch_size": 1, "client_id": "c", "request_timeout": "1m"}).encode()
    connection.sendall(b"POST /v1/queue.lease HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def answer(connection: ssl.SSLSocket) -> tuple[int, Any]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read())


def serial(connection: ssl.SSLSocket) -> str:
    certificate = connection.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def complaints(daemon: Daemon) -> list[dict[str, Any]]:
    """What the log complains about, except that there are no tokens yet."""
    return [line for line in daemon.log if line["level"] != "info" and line["logger"] != "querator.access"]


# Who gets in


def test_hot_calls_and_others_work_over_tls(shared: tuple[Daemon, Pki]) -> None:
    daemon, pki = shared
    daemon.client.create_queue("hot")
    with connect(daemon, pki.client_context()) as connection:
        for number in range(3):
            body = {"queue_name": "hot", "request_timeout": "10s", "items": [{"utf8": str(number)}]}
            assert ask(connection, "/v1/queue.produce", body) == (200, {"code": 200})
        three = {"queue_name": "hot", "batch_size": 3, "client_id": "c", "request_timeout": "10s"}
        status, leased = ask(connection, "/v1/queue.lease", three)
        assert status == 200 and len(leased["items"]) == 3
        assert ask(connection, "/v1/queues.info", {"queue_name": "hot"})[0] == 200


def test_the_unix_socket_stays_plain(shared: tuple[Daemon, Pki]) -> None:
    assert shared[0].call("/health")[0] == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_spoken(shared: tuple[Daemon, Pki], version: ssl.TLSVersion) -> None:
    daemon, pki = shared
    context = pki.client_context()
    context.minimum_version = context.maximum_version = version
    with connect(daemon, context) as connection:
        assert ask(connection)[0] == 200


def test_older_versions_are_refused(shared: tuple[Daemon, Pki]) -> None:
    daemon, pki = shared
    context = pki.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)alert protocol version"):
        connect(daemon, context)


def test_plain_http_is_told_to_use_tls(shared: tuple[Daemon, Pki]) -> None:
    daemon, _ = shared
    with connect_plain(daemon) as connection:
        connection.sendall(
            b"POST /v1/queue.produce HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
        )
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert (response.status, response.getheader("upgrade")) == (426, "TLS/1.2, HTTP/1.1")
        assert json.loads(response.read())["message"] == "this address speaks TLS; use https://"


def test_a_client_certificate_of_the_ca_is_accepted_and_none_is_needed(shared: tuple[Daemon, Pki]) -> None:
    daemon, pki = shared
    for certificate in ("client", ""):
        with connect(daemon, pki.client_context(with_certificate=certificate)) as connection:
            assert ask(connection)[0] == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("flaw", ["unknown ca", "certificate expired", "unsupported certificate"])
def test_a_bad_client_certificate_is_refused_with_the_reason(
    shared: tuple[Daemon, Pki], tmp_path: Path, flaw: str, version: ssl.TLSVersion
) -> None:
    daemon, pki = shared
    other = Pki(tmp_path)
    if flaw == "certificate expired":
        other.put("client", valid_between(pki.ca, new_client(pki.ca, "ann", 1), -2, -1))
    elif flaw == "unsupported certificate":  # a server's
        other.put("client", new_server(pki.ca, HOSTS, 1))
    context = pki.client_context()
    context.load_cert_chain(other.path("client.crt"), other.path("client.key"))
    context.minimum_version = context.maximum_version = version
    with pytest.raises(ssl.SSLError, match=f"(?i)alert.{flaw}"), connect(daemon, context) as connection:
        ask(connection)


def test_a_client_that_breaks_off_its_handshake_disturbs_nobody(shared: tuple[Daemon, Pki]) -> None:
    daemon, pki = shared
    for sent in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x00\x05hello", os.urandom(2_000)):
        with connect_plain(daemon) as connection:
            connection.sendall(sent)
    with connect(daemon, pki.client_context()) as connection:
        assert ask(connection)[0] == 200
    assert daemon.process.poll() is None
    assert complaints(daemon) == []


# Names in certificates


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Pki]]:
    """A daemon that lets nobody in without a token or a certificate."""
    directory = tmp_path_factory.mktemp("guarded")
    pki = Pki(directory / "pki", client="ann")
    file = directory / "querator.toml"
    file.write_text(GUARDED.format(ca=pki.path("ca.crt")))
    with Daemon(directory, *pki.daemon_words, "--config", str(file), http=True) as daemon:
        for queue in ("mail", "other"):
            daemon.client.create_queue(queue)
        yield daemon, pki


GUARDED = """
[tls]
client_ca = "{ca}"

[access]
mode = "required"

[[access.certificates]]
name = "ann"
role = "producer"
queues = ["mail*"]
"""


def produce(connection: ssl.SSLSocket, queue: str) -> int:
    body = {"queue_name": queue, "request_timeout": "9s", "items": [{"utf8": "x"}]}
    return ask(connection, "/v1/queue.produce", body)[0]


def test_the_name_in_a_certificate_has_the_role_of_the_configuration(guarded: tuple[Daemon, Pki]) -> None:
    daemon, pki = guarded
    with connect(daemon, pki.client_context(with_certificate="client")) as connection:
        for _ in range(2):
            assert produce(connection, "mail") == 200
            assert produce(connection, "other") == produce(connection, "missing") == 403
            assert ask(connection, "/v1/queues.delete", {"queue_name": "mail"})[0] == 403
        assert ask(connection, "/v1/tokens.whoami", {})[1]["name"] == "ann"


def test_nobody_else_gets_in_with_the_same_request(guarded: tuple[Daemon, Pki]) -> None:
    daemon, pki = guarded
    pki.put("bob", new_client(pki.ca, "bob", 1))
    with connect(daemon, pki.client_context(with_certificate="client")) as connection:
        assert produce(connection, "mail") == 200
    for certificate in ("", "bob"):
        with connect(daemon, pki.client_context(with_certificate=certificate)) as connection:
            assert produce(connection, "mail") == 401


def test_a_certificate_with_two_names_is_nobody(guarded: tuple[Daemon, Pki]) -> None:
    daemon, pki = guarded
    pki.put("two", with_names(pki.ca, "bob", "ann"))
    with connect(daemon, pki.client_context(with_certificate="two")) as connection:
        assert produce(connection, "mail") == 401


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (2, "two of 'access.certificates' have the name 'ann'"),
        (1, "'access.certificates' needs TLS and the CA of clients"),
    ],
)
def test_roles_of_certificates_that_make_no_sense_are_refused(tmp_path: Path, tables: int, message: str) -> None:
    file = tmp_path / "querator.toml"
    file.write_text('[[access.certificates]]\nname = "ann"\nrole = "viewer"\n' * tables)
    with pytest.raises(ConfigError, match=message):
        check_tls(daemon_config(config=file, environ={"HOME": "/"}))


# At start


def load(pki: Pki, **other: str) -> None:
    certificates.load(daemon_config(config=None, http="", environ={"HOME": "/"}, **pki.daemon_settings | other).tls)


def refusal(pki: Pki, **other: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load(pki, **other)
    assert raised.value.hint
    return raised.value.message


def test_a_key_that_others_can_read_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    key = tmp_path / "pki" / "server.key"
    key.chmod(0o644)
    with Daemon(tmp_path, *pki.daemon_words, http=True, may_fail=True) as daemon:
        assert daemon.exit_code == 1
        allowed = "640" if os.getuid() == 0 else "600"
        assert daemon.output == f"error: key {key} can be read by other users\n\nhint: chmod {allowed} {key}\n"
        assert not daemon.data.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_group_may_read_only_a_key_of_root(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    key = tmp_path / "server.key"
    key.chmod(0o640)
    load(pki)
    os.chown(key, 65_534, 65_534)
    assert refusal(pki) == f"key {key} can be read by other users"


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    pki.put("server", valid_between(pki.ca, new_server(pki.ca, HOSTS, 1), -2, -1))
    assert refusal(pki).startswith(f"certificate {pki.path('server.crt')} expired at 20")


def test_a_certificate_of_the_future_is_refused(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    pki.put("server", valid_between(pki.ca, new_server(pki.ca, HOSTS, 1), 1, 2))
    assert refusal(pki).startswith(f"certificate {pki.path('server.crt')} is not valid before 20")


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    expected = f"key {pki.path('client.key')} does not belong to certificate {pki.path('server.crt')}"
    assert refusal(pki, tls_key=pki.path("client.key")) == expected


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("tls_cert", None, "certificate {} cannot be read: No such file or directory"),
        ("tls_cert", b"", "certificate {} has no certificate in it"),
        ("tls_cert", b"\xff\xfe" * 100, "certificate {} has no certificate in it"),
        ("tls_cert", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "certificate {} is damaged"),
        ("tls_key", None, "key {} cannot be read: No such file or directory"),
        ("tls_key", b"nothing", "key {} has no private key in it"),
        (
            "tls_key",
            b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "key {} is encrypted, and a daemon cannot ask for its passphrase",
        ),
        ("tls_client_ca", None, "client CA {} cannot be read: No such file or directory"),
        ("tls_client_ca", b"nothing", "client CA {} has no certificate"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, option: str, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    assert refusal(Pki(tmp_path), **{option: str(path)}) == message.format(path)


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    bad = tmp_path / "bad.key"
    bad.write_text("-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n")
    bad.chmod(0o600)
    assert refusal(pki, tls_key=str(bad)).startswith(
        f"certificate {pki.path('server.crt')} and key {bad} cannot be used: "
    )


@pytest.mark.parametrize("given", [{"tls_cert": "x"}, {"tls_key": "x"}, {"tls_client_ca": "x"}])
def test_half_of_the_settings_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="TLS needs a certificate and its key"):
        check_tls(daemon_config(http="", environ={"HOME": "/"}, **given))


def test_tls_without_tcp_is_refused() -> None:
    with pytest.raises(ConfigError, match="TLS needs a TCP address"):
        check_tls(daemon_config(tls_cert="x", tls_key="y", environ={"HOME": "/"}))


def test_settings_come_from_the_file_and_from_variables_too(tmp_path: Path) -> None:
    file = tmp_path / "querator.toml"
    file.write_text('http = true\n[tls]\ncert = "a.crt"\nkey = "a.key"\nclient_ca = "ca.crt"\n')
    found = daemon_config(config=file, environ={"HOME": "/", "QUERATOR_TLS_KEY": "/b.key"})
    assert found.tls == TlsConfig(tmp_path / "a.crt", Path("/b.key"), tmp_path / "ca.crt")
    assert found.settings["tls.key"].origin == "QUERATOR_TLS_KEY"


@pytest.mark.parametrize(("ends_in_days", "year"), [(20_000, 2081), (365 * 100, 2126)])
def test_the_end_is_read_before_and_after_2050(tmp_path: Path, ends_in_days: int, year: int) -> None:
    """Certificates write years up to 2049 in another way than later years."""
    pki = Pki(tmp_path)
    pki.put("server", valid_between(pki.ca, new_server(pki.ca, HOSTS, 1), -1, ends_in_days))
    text = (tmp_path / "server.crt").read_text()
    validity = certificates.validity_of(ssl.PEM_cert_to_DER_cert(text))
    assert validity.ends_at == pytest.approx(time.time() + ends_in_days * 86_400, abs=60)
    assert abs(time.gmtime(validity.ends_at).tm_year - year) <= 1
    assert (
        certificates.validity_of(ssl.PEM_cert_to_DER_cert(pki.ca.pem.decode())).ends_at < time.time() + 4_000 * 86_400
    )


# Days left


def test_the_days_left_are_told_everywhere(shared: tuple[Daemon, Pki]) -> None:
    daemon, _ = shared
    (check,) = daemon.call("/health")[1]["checks"]["tls:certificate"]
    assert 364 < check["observedValue"] <= 365 and check["observedUnit"] == "days"
    told = json.loads(querator(daemon.directory, "daemon", "status", "--data", str(daemon.data), "-o", "json").stdout)
    assert 364 < told["certificate_days"] <= 365
    socket_words = ("--socket", str(daemon.socket))
    done = querator(daemon.directory, "check", "daemon", *socket_words)
    assert done.returncode == 0
    assert "; TLS certificate expires in 365.0 days | " in done.stdout and ";14:;3:" in done.stdout
    assert querator(daemon.directory, "check", "daemon", "--cert-warn", "400", *socket_words).returncode == 1
    assert querator(daemon.directory, "check", "daemon", "--cert-critical", "400", *socket_words).returncode == 2
    series = expiry_in_metrics(daemon)
    assert 364 * 86_400 < series - time.time() <= 365 * 86_400


def expiry_in_metrics(daemon: Daemon) -> float:
    connection = UnixConnection(daemon.socket)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return next(s.value for s in parse(text) if s.name == "querator_tls_certificate_expires_timestamp_seconds")


def test_without_tls_no_certificate_is_reported() -> None:
    assert certificate_days({"checks": {"queues:storage": [{"status": "pass"}]}}) is None


# New certificates


def days(daemon: Daemon) -> float:
    return float(daemon.call("/health")[1]["checks"]["tls:certificate"][0]["observedValue"])


def test_sighup_brings_a_new_certificate_and_open_connections_stay(renewed: tuple[Daemon, Pki]) -> None:
    daemon, pki = renewed
    before = connect(daemon, pki.client_context())
    assert ask(before)[0] == 200
    pki.renew_server(days=30)
    daemon.process.send_signal(signal.SIGHUP)

    def is_new() -> bool:
        with connect(daemon, pki.client_context()) as connection:
            return serial(connection) != serial(before)

    until(is_new, "the old certificate is still in use")
    assert ask(before)[0] == 200
    assert 29 < days(daemon) <= 30
    before.close()


def test_changed_files_are_noticed_and_a_parked_lease_is_not_disturbed(renewed: tuple[Daemon, Pki]) -> None:
    daemon, pki = renewed
    daemon.client.create_queue("parked")
    parked = connect(daemon, pki.client_context())
    lease(parked, "parked")
    pki.renew_server("localhost", "elsewhere.example", days=20)
    until(lambda: days(daemon) <= 20, "the old certificate is still in use")
    with connect(daemon, pki.client_context(), "elsewhere.example") as connection:
        body = {"queue_name": "parked", "request_timeout": "10s", "items": [{"utf8": "x"}]}
        assert ask(connection, "/v1/queue.produce", body)[0] == 200
    assert len(answer(parked)[1]["items"]) == 1
    parked.close()


def test_a_broken_new_certificate_is_logged_and_the_old_one_stays(renewed: tuple[Daemon, Pki]) -> None:
    daemon, pki = renewed
    (pki.directory / "server.crt").write_text("nothing")

    until(lambda: len(complaints(daemon)) == 1, "nothing is logged")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: len(complaints(daemon)) == 2, "nothing is logged after SIGHUP")
    for told in complaints(daemon):
        assert told["message"] == "the new TLS certificate is not used; the old one stays"
        assert told["reason"] == f"certificate {pki.path('server.crt')} has no certificate in it"
    with connect(daemon, pki.client_context()) as connection:
        assert ask(connection)[0] == 200
    pki.renew_server(days=10)
    until(lambda: days(daemon) <= 10, "the old certificate is still in use")


def test_a_new_client_ca_replaces_the_old_one(renewed: tuple[Daemon, Pki], tmp_path: Path) -> None:
    daemon, pki = renewed
    other = Pki(tmp_path)
    mine, theirs = pki.client_context(with_certificate="client"), pki.client_context()
    theirs.load_cert_chain(other.path("client.crt"), other.path("client.key"))
    (pki.directory / "ca.crt").write_bytes(other.ca.pem)

    def is_refused() -> bool:
        try:
            with connect(daemon, mine) as connection:
                return ask(connection)[0] != 200
        except ssl.SSLError as error:
            return "UNKNOWN_CA" in str(error.reason)

    until(is_refused, "the old CA is still trusted")
    with connect(daemon, theirs) as connection:
        assert ask(connection)[0] == 200
    (pki.directory / "ca.crt").write_bytes(pki.ca.pem)


# The end


def test_a_stop_answers_who_waits_and_does_not_wait_for_idle_clients(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    with Daemon(tmp_path, *pki.daemon_words, http=True) as daemon:
        daemon.client.create_queue("q")
        idle, waiting = connect(daemon, pki.client_context()), connect(daemon, pki.client_context())
        assert ask(idle)[0] == 200
        lease(waiting, "q")
        until(lambda: daemon.client.stats("q").logical_queues[0].lease_waiting > 0, "no lease is parked")
        assert daemon.stop() == 0
        assert answer(waiting)[1]["message"] == "queue is shutting down"
        assert complaints(daemon) == []
        for connection in (idle, waiting):
            connection.close()
