"""Certificates for tests: a certificate authority that signs with P-256, and files with them."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


def _name(common_name: str, *units: str) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


@dataclass(frozen=True)
class Identity:
    """A private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    issuer: x509.Certificate

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(
        self, password: str | None = None, form: PrivateFormat = PrivateFormat.PKCS8
    ) -> bytes:
        return self.key.private_bytes(Encoding.PEM, form, _encryption(password))

    def write_pem(self, path: Path, password: str | None = None) -> Path:
        """Write key and certificate to ``path``, as Kafka's PEM keystores have them."""
        path.write_bytes(self.key_pem(password) + self.certificate_pem)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"kafka", self.key, self.certificate, [self.issuer], _encryption(password)
            )
        )
        return path


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "test-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        self.certificate = (
            _builder(subject, subject, self._key.public_key(), 3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def write_pem(self, path: Path) -> Path:
        path.write_bytes(self.pem)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        """Write a truststore."""
        trusted = [pkcs12.PKCS12Certificate(self.certificate, b"ca")]
        path.write_bytes(pkcs12.serialize_java_truststore(trusted, _encryption(password)))
        return path

    def issue(self, name: str = "localhost", *units: str, days: int = 365) -> Identity:
        """Issue a certificate for ``CN=name`` on this machine; with ``days`` below 0 an expired
        one."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts: Sequence[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        certificate = (
            _builder(_name(name, *units), self.certificate.subject, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return Identity(key, certificate, self.certificate)

    def client_context(self) -> ssl.SSLContext:
        """Return a client's context that trusts this authority only."""
        context = ssl.create_default_context(cadata=self.pem.decode())
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 400 * _DAY)
        .not_valid_after(now + days * _DAY)
    )


def _encryption(password: str | None) -> KeySerializationEncryption:
    return NoEncryption() if password is None else BestAvailableEncryption(password.encode())
