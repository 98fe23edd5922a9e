"""WIRE. ``CertificateAuthority``: issues the certificates of the nodes and users of a cluster.

* Keys and certificates are PEM. Keys are P-256, which costs a broker 0.1 ms for each connection.
* Certificates are valid for ten years, from a day ago, so that the clock may be corrected.

It is for clusters on one machine, for samples and for containers. It revokes no certificate.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Self

from kraftjbod.core.errors import StartupError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_VALIDITY: Final = datetime.timedelta(days=3650)
_BACKDATED: Final = datetime.timedelta(days=1)


class CertificateAuthority:
    """A private key and its certificate, which sign other certificates."""

    # The package cryptography takes 0.1 s to import, and clusters without security do not need it.

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, common_name: str) -> Self:
        """Create an authority with a new key."""
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(common_name)
        return cls(key, _signed(name, key.public_key(), issuer=name, issuer_key=key, hosts=None))

    @classmethod
    def load(cls, key_pem: bytes, certificate_pem: bytes, source: str) -> Self:
        """Return the authority with this key and certificate.

        :param source: path of the key, for the error message.
        :raises StartupError: the key is no private key on a curve, or the certificate malformed.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(key_pem, password=None)
            certificate = x509.load_pem_x509_certificate(certificate_pem)
        except (TypeError, ValueError) as e:
            raise StartupError(f"{source}: key or certificate of the authority: {e}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise StartupError(f"{source}: expected a key on an elliptic curve")
        return cls(key, certificate)

    @property
    def certificate_pem(self) -> bytes:
        from cryptography.hazmat.primitives.serialization import Encoding

        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _key_pem(self._key)

    def issue(self, common_name: str, hosts: Iterable[str]) -> bytes:
        """Return a new private key and its certificate, as PEM.

        :param hosts: host names and addresses that clients may use to reach the certificate's
            owner.
        """
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding

        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(
            _name(common_name),
            key.public_key(),
            issuer=self._certificate.subject,
            issuer_key=self._key,
            hosts=tuple(hosts),
        )
        return _key_pem(key) + certificate.public_bytes(Encoding.PEM)


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    hosts: tuple[str, ...] | None,
) -> x509.Certificate:
    """Return the certificate of ``subject``, of an authority if ``hosts`` is None."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    now = datetime.datetime.now(datetime.UTC)
    own = issuer_key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
        .add_extension(_key_usage(is_authority=hosts is None), critical=True)
    )
    if hosts:
        names = [_general_name(host) for host in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
