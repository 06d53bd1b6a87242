"""Makes keys and certificates for a CA, a server and a client. It writes no files.

Only this module imports `cryptography`, which is an optional dependency.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from querator.errors import UsageError

CA_DAYS: Final = 3_650
CLOCK_SKEW: Final = datetime.timedelta(minutes=5)
NAME_MAX: Final = 64
"""X.509 allows no longer common name."""
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST: Final = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*{_LABEL}", re.IGNORECASE)


class Issued(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read(pem: bytes, key_pem: bytes) -> Issued:
    """Raises ValueError or TypeError if the bytes are no certificate or no key."""
    key: Any = load_pem_private_key(key_pem, None)
    return Issued(x509.load_pem_x509_certificate(pem), key)


def name_of(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def new_ca(host: str) -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"Querator CA for {host}")
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Issued(_valid_for(builder, CA_DAYS).sign(key, hashes.SHA256()), key)


def new_server(ca: Issued, hosts: Sequence[str], days: int) -> Issued:
    """A certificate for host names and IP addresses. Raises UsageError for a name that is neither."""
    alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
    key, builder = _leaf(hosts[0], ExtendedKeyUsageOID.SERVER_AUTH)
    return Issued(_signed(builder.add_extension(alternatives, critical=False), ca, days), key)


def new_client(ca: Issued, name: str, days: int) -> Issued:
    key, builder = _leaf(name, ExtendedKeyUsageOID.CLIENT_AUTH)
    return Issued(_signed(builder, ca, days), key)


def renewed(ca: Issued, old: Issued, days: int) -> Issued:
    """A new certificate with the same names, for the same key."""
    builder = x509.CertificateBuilder().subject_name(old.certificate.subject).public_key(old.key.public_key())
    for extension in old.certificate.extensions:
        if not isinstance(extension.value, x509.AuthorityKeyIdentifier):
            builder = builder.add_extension(extension.value, critical=extension.critical)
    return Issued(_signed(builder, ca, days), old.key)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if _HOST.fullmatch(name):
            return x509.DNSName(name)
        raise UsageError(
            f"--name: '{name}' is not a host", hint="a host name or an IP address, without scheme and port"
        ) from None


def _leaf(name: str, purpose: x509.ObjectIdentifier) -> tuple[ec.EllipticCurvePrivateKey, x509.CertificateBuilder]:
    """A new key, and a certificate for it that has no issuer and no dates yet."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    return key, builder


def _signed(builder: x509.CertificateBuilder, ca: Issued, days: int) -> x509.Certificate:
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = builder.issuer_name(ca.certificate.subject).add_extension(issuer, critical=False)
    return _valid_for(builder, days).sign(ca.key, hashes.SHA256())


def _valid_for(builder: x509.CertificateBuilder, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:NAME_MAX])])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
