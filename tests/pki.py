"""Certificates for tests: those of `querator tls init`, and faulty ones that it never makes."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from querator.cli.tls.certificates import Issued, new_ca, new_client, new_server

HOSTS = ("localhost", "127.0.0.1")


class Pki:
    """A CA with a server's and a client's certificate, in a directory."""

    def __init__(self, directory: Path, *hosts: str, days: int = 365, client: str = "ann") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ca = new_ca("tests")
        self.put("ca", self.ca)
        self.put("server", new_server(self.ca, hosts or HOSTS, days))
        self.put("client", new_client(self.ca, client, days))

    def put(self, name: str, issued: Issued) -> None:
        """Replaces a certificate and its key, as a careful tool does: each file at once."""
        for path, content, mode in (
            (self.directory / f"{name}.key", issued.key_pem, 0o600),
            (self.directory / f"{name}.crt", issued.pem, 0o644),
        ):
            draft = path.with_suffix(".draft")
            draft.write_bytes(content)
            draft.chmod(mode)
            draft.replace(path)

    def renew_server(self, *hosts: str, days: int = 365) -> None:
        self.put("server", new_server(self.ca, hosts or HOSTS, days))

    def path(self, name: str) -> str:
        return str(self.directory / name)

    @property
    def daemon_settings(self) -> dict[str, str]:
        return {"tls_cert": self.path("server.crt"), "tls_key": self.path("server.key")}

    @property
    def daemon_words(self) -> list[str]:
        return ["--tls-cert", self.path("server.crt"), "--tls-key", self.path("server.key")]

    def client_context(self, *, with_certificate: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.path("ca.crt"))
        if with_certificate:
            context.load_cert_chain(self.path(f"{with_certificate}.crt"), self.path(f"{with_certificate}.key"))
        return context


def valid_between(ca: Issued, old: Issued, begins_in_days: float, ends_in_days: float) -> Issued:
    """The same certificate, valid at another time."""
    now = datetime.datetime.now(datetime.UTC)
    key: Any = old.key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.certificate.subject)
        .issuer_name(ca.certificate.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begins_in_days))
        .not_valid_after(now + datetime.timedelta(days=ends_in_days))
    )
    for extension in old.certificate.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    return Issued(builder.sign(ca.key, hashes.SHA256()), old.key)


def with_names(ca: Issued, *names: str) -> Issued:
    """A client's certificate with several common names."""
    one = new_client(ca, names[0], 1)
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.certificate.subject)
        .public_key(one.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    return Issued(builder.sign(ca.key, hashes.SHA256()), one.key)
