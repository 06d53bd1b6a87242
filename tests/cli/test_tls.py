"""`querator tls` makes and renews certificates, and every command speaks TLS with a daemon."""

from __future__ import annotations

import ssl
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.cli.command_line import CommandLine
from tests.daemons import Daemon
from tests.pki import Pki


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, None)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_init_makes_a_ca_a_server_and_a_client(command: CommandLine, tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    records = command.json("tls", "init", str(directory), "--name", "queue.example", "--name", "::1", "--client", "ann")
    assert [(Path(one["file"]).name, one["name"]) for one in records] == [
        ("ca.crt", "Querator CA for queue.example"),
        ("server.crt", "queue.example"),
        ("client.crt", "ann"),
    ]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {
        "ca.crt": 0o644,
        "ca.key": 0o600,
        "server.crt": 0o644,
        "server.key": 0o600,
        "client.crt": 0o644,
        "client.key": 0o600,
    }
    names = certificate(directory / "server.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["queue.example"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    for name in ("server", "client"):
        certificate(directory / f"{name}.crt").verify_directly_issued_by(certificate(directory / "ca.crt"))
        ssl.create_default_context().load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")


@pytest.mark.parametrize("existing", ["ca.key", "client.crt"])
def test_init_overwrites_nothing_and_leaves_nothing(command: CommandLine, tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("precious")
    result = command("tls", "init", str(tmp_path), "--name", "localhost")
    assert result.exit_code == 5
    assert result.stderr == (
        f"error: {tmp_path / existing} exists; nothing was written\n\nhint: choose an empty directory\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


@pytest.mark.parametrize("name", ["https://queue.example", "queue.example:2319", "", "-x.example", "two words", "ä"])
def test_a_name_that_is_no_host_is_refused(command: CommandLine, tmp_path: Path, name: str) -> None:
    result = command("tls", "init", str(tmp_path / "tls"), f"--name={name}")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --name: '{name}' is not a host\n\nhint: ")
    assert not (tmp_path / "tls").exists()


def test_a_client_needs_a_name(command: CommandLine, tmp_path: Path) -> None:
    for name in ("", "x" * 65, "a\nb"):
        assert command("tls", "init", str(tmp_path), "--name", "x", f"--client={name}").exit_code == 2


def test_without_the_library_the_pip_line_is_reported(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    result = command("tls", "init", str(tmp_path / "tls"), "--name", "localhost")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "hint: pip install 'querator[tls]'"
    assert not (tmp_path / "tls").exists()


def test_renew_keeps_names_and_keys(command: CommandLine, tmp_path: Path) -> None:
    command.ok("tls", "init", str(tmp_path / "tls"), "--name", "queue.example", "--days", "1")
    before = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    command.ok("tls", "renew", str(tmp_path / "tls"), "--days", "90")
    after = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"server.crt", "client.crt"}
    assert after.keys() == before.keys()
    old, new = x509.load_pem_x509_certificate(before["server.crt"]), certificate(tmp_path / "tls" / "server.crt")
    assert (new.not_valid_after_utc - old.not_valid_after_utc).days == 89
    assert new.serial_number != old.serial_number
    for kind in (x509.SubjectAlternativeName, x509.ExtendedKeyUsage, x509.KeyUsage):
        assert new.extensions.get_extension_for_class(kind) == old.extensions.get_extension_for_class(kind)
    new.verify_directly_issued_by(certificate(tmp_path / "tls" / "ca.crt"))


def test_renew_says_what_is_missing_or_damaged(command: CommandLine, tmp_path: Path) -> None:
    result = command("tls", "renew", str(tmp_path))
    assert result.exit_code == 4
    assert result.stderr == (
        f"error: there is no {tmp_path / 'ca.crt'}\n\nhint: querator tls init {tmp_path} --name HOST\n"
    )
    command.ok("tls", "init", str(tmp_path), "--name", "localhost")
    (tmp_path / "ca.key").write_text("nothing")
    result = command("tls", "renew", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: certificate ca in {tmp_path} cannot be read: ")


# Commands over TLS


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"), "127.0.0.1", days=10)


@pytest.fixture(scope="module")
def tls_daemon(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), *pki.daemon_words, http=True) as daemon:
        daemon.client.create_queue("mail")
        yield daemon


def test_every_source_of_the_ca_works(command: CommandLine, tls_daemon: Daemon, pki: Pki, tmp_path: Path) -> None:
    endpoint = f"https://{tls_daemon.http}"
    flags = ("--endpoint", endpoint, "--ca-file", pki.path("ca.crt"))
    assert command.ok("queues", "list", "-q", *flags) == "mail\n"
    assert command.ok(*flags, "queues", "list", "-q") == "mail\n"
    variables = {"QUERATOR_ENDPOINT": endpoint, "QUERATOR_CA_FILE": pki.path("ca.crt")}
    assert command.ok("queues", "list", "-q", env=variables) == "mail\n"
    file = tmp_path / "querator.toml"
    file.write_text(f'[client]\nendpoint = "{endpoint}"\nca_file = "{pki.path("ca.crt")}"\n')
    assert command.ok("queues", "list", "-q", env={"QUERATOR_CONFIG": str(file)}) == "mail\n"
    command.ok("context", "add", "prod", *flags, "--client-cert", pki.path("client.crt"))
    command.ok("context", "add", "prod", "--replace", *flags)
    assert command.json("context", "show", "prod")["ca_file"] == pki.path("ca.crt")
    assert command.ok("queues", "list", "-q") == "mail\n"
    shown = {row["name"]: row["origin"] for row in command.json("config", "show")}
    assert shown["client.ca_file"] == "context prod"


def test_check_top_doctor_and_completion_work_over_tls(command: CommandLine, tls_daemon: Daemon, pki: Pki) -> None:
    flags = ("--endpoint", f"https://{tls_daemon.http}", "--ca-file", pki.path("ca.crt"))
    result = command("check", "daemon", *flags)
    assert result.exit_code == 1 and "; TLS certificate expires in 10.0 days | " in result.stdout
    assert command("check", "daemon", "--cert-warn", "9", *flags).exit_code == 0
    assert command("check", "queue", "mail", *flags).exit_code == 0
    assert command.json("top", "--once", *flags)[0]["queue_name"] == "mail"
    assert "expires in 10.0 days" in command("doctor", *flags).stdout
    assert 9 < command.json("daemon", "status", *flags)["certificate_days"] <= 10
    completed = command.process("__complete", "queues", "m", "", "queue", "stats", *flags, stdout=-1)
    assert completed.communicate()[0] in (b"mail\n", b"")  # nothing after 300 ms on a busy machine


@pytest.mark.parametrize(
    ("scheme", "host", "has_ca", "message"),
    [
        ("https", "127.0.0.1", False, "the certificate of {} comes from an unknown CA"),
        ("https", "localhost", True, "the certificate of {} is not for 'localhost'"),
        ("http", "127.0.0.1", True, "{} speaks TLS"),
    ],
)
def test_what_is_wrong_is_one_line_with_a_hint_and_at_once(
    command: CommandLine, tls_daemon: Daemon, pki: Pki, scheme: str, host: str, has_ca: bool, message: str
) -> None:
    endpoint = f"{scheme}://{host}:{tls_daemon.http.rpartition(':')[2]}"
    flags = ["--endpoint", endpoint, "--timeout", "60s", *(["--ca-file", pki.path("ca.crt")] if has_ca else [])]
    for words in (["queues", "list"], ["queue", "consume", "mail", "--exec", "true"], ["daemon", "status"]):
        result = command(*words, *flags)
        assert result.exit_code == 6
        error, blank, hint = result.stderr.splitlines()[-3:]
        assert (error, blank) == (f"error: {message.format(endpoint)}", "") and hint.startswith("hint: ")
    result = command("check", "daemon", *flags)
    assert result.exit_code == 2
    assert result.stdout == f"QUERATOR DAEMON CRITICAL - {message.format(endpoint)}\n"
