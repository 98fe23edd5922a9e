"""WIRE. Keystores and truststores: reads PEM and PKCS#12, from files or from the configuration.

* Every error names the key of the configuration, the file, what was found, and what to do.
* Kafka's default type JKS accepts PKCS#12 files, as Java does. The old JKS format is refused.
* Kafka's rules for combinations of keys apply (KIP-651).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from pydantic import SecretStr

from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ssl_config import SslConfig

_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM_BEGIN: Final = b"-----BEGIN "
#: A larger file is no keystore.
MAX_STORE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """The private key of a listener, and its certificate chain, its own certificate first."""

    key: PrivateKeyTypes
    chain: Sequence[x509.Certificate]

    def pem(self) -> bytes:
        """Return key and chain in plain text, as OpenSSL reads them."""
        return self.key_pem() + certificates_pem(self.chain)

    def key_pem(self) -> bytes:
        """Return the key in plain text."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificates_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """Return certificates as PEM text."""
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def has_keystore(config: SslConfig) -> bool:
    """Return whether a keystore is configured."""
    given = (
        config.ssl_keystore_location,
        config.ssl_keystore_key,
        config.ssl_keystore_certificate_chain,
    )
    return any(one is not None for one in given)


def load_keystore(config: SslConfig) -> KeyMaterial:
    """Load key and certificates of a listener.

    :raises ConfigError: there are none, they cannot be read, or the settings exclude each other.
    """
    key, chain = config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    path, password = config.ssl_keystore_location, config.ssl_keystore_password
    if key is not None or chain is not None:
        _require(config.ssl_keystore_type == "PEM", "ssl.keystore.key needs ssl.keystore.type=PEM")
        _require(
            key is not None and chain is not None,
            "ssl.keystore.key and ssl.keystore.certificate.chain belong together: set both",
        )
        _require(
            path is None and password is None,
            "ssl.keystore.key excludes ssl.keystore.location and ssl.keystore.password: keep one",
        )
        assert key is not None
        assert chain is not None
        return KeyMaterial(
            _pem_key(_bytes_of(key), config.ssl_key_password, "ssl.keystore.key"),
            _pem_certificates(_bytes_of(chain), "ssl.keystore.certificate.chain"),
        )
    if path is None:
        raise ConfigError(
            "ssl.keystore.location is not set: a listener with TLS needs a private key and its "
            "certificates"
        )
    where = f"ssl.keystore.location={path}"
    data = read_store_file(path, where)
    if config.ssl_keystore_type == "PEM":
        _require(
            password is None,
            "ssl.keystore.password is for PKCS12: the password of a PEM key is ssl.key.password",
        )
        _require_pem(data, where)
        return KeyMaterial(
            _pem_key(data, config.ssl_key_password, where), _pem_certificates(data, where)
        )
    _require_pkcs12(data, path, where, "ssl.keystore")
    _require(password is not None, f"{where} needs ssl.keystore.password")
    return _pkcs12_key(data, password, config.ssl_key_password, where)


def load_truststore(config: SslConfig) -> Sequence[x509.Certificate]:
    """Load the certificates that sign those of the other side, client or node; empty if no
    truststore is configured.

    :raises ConfigError: they cannot be read, or the settings exclude each other.
    """
    inline = config.ssl_truststore_certificates
    path, password = config.ssl_truststore_location, config.ssl_truststore_password
    if inline is not None:
        _require(
            config.ssl_truststore_type == "PEM",
            "ssl.truststore.certificates needs ssl.truststore.type=PEM",
        )
        _require(
            path is None and password is None,
            "ssl.truststore.certificates excludes ssl.truststore.location and "
            "ssl.truststore.password: keep one",
        )
        return _pem_certificates(_bytes_of(inline), "ssl.truststore.certificates")
    if path is None:
        _require(password is None, "ssl.truststore.password is set without ssl.truststore.location")
        return ()
    where = f"ssl.truststore.location={path}"
    data = read_store_file(path, where)
    if config.ssl_truststore_type == "PEM":
        _require(password is None, "ssl.truststore.password is for PKCS12: remove it for PEM")
        _require_pem(data, where)
        return _pem_certificates(data, where)
    _require_pkcs12(data, path, where, "ssl.truststore")
    return _pkcs12_certificates(data, password, where)


def _require(is_given: bool, message: str) -> None:
    if not is_given:
        raise ConfigError(message)


def read_store_file(path: str, where: str) -> bytes:
    """Return the contents of a keystore or truststore.

    :param where: key and path, for error messages.
    :raises ConfigError: the file cannot be read, or is too large.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_STORE_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"{where} cannot be read: {e.strerror}") from e
    _require(len(data) <= MAX_STORE_BYTES, f"{where} has more than {MAX_STORE_BYTES} bytes")
    return data


def _bytes_of(secret: SecretStr) -> bytes:
    return secret.get_secret_value().encode()


def _password_of(secret: SecretStr | None) -> bytes | None:
    return None if secret is None else _bytes_of(secret)


def _require_pem(data: bytes, where: str) -> None:
    if _PEM_BEGIN not in data:
        raise ConfigError(
            f"{where} has no line that begins with -----BEGIN: it is no PEM file. Set the type to "
            "PKCS12 if it was made by keytool or openssl pkcs12"
        )


def _require_pkcs12(data: bytes, path: str, where: str, prefix: str) -> None:
    if data.startswith(_JKS_MAGIC):
        raise ConfigError(
            f"{where} is in the JKS format, which only Java reads. Convert it: keytool "
            f"-importkeystore -srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12; "
            f"then set {prefix}.location={path}.p12 and {prefix}.type=PKCS12"
        )
    if _PEM_BEGIN in data[:4096]:
        raise ConfigError(f"{where} is a PEM file: set {prefix}.type=PEM")


def _pem_key(data: bytes, password: SecretStr | None, where: str) -> PrivateKeyTypes:
    """Return the private key among the blocks of ``data``; text between the blocks is ignored."""
    begin = data.find(b"PRIVATE KEY-----")
    begin = data.rfind(_PEM_BEGIN, 0, begin) if begin >= 0 else -1
    if begin < 0:
        raise ConfigError(f"{where} has no private key: add the block -----BEGIN PRIVATE KEY-----")
    try:
        return load_pem_private_key(data[begin:], _password_of(password))
    except TypeError as e:
        if password is None:
            raise ConfigError(f"{where} has an encrypted key: set ssl.key.password") from e
        # Kafka accepts a password for a key in plain text.
        return load_pem_private_key(data[begin:], None)
    except (ValueError, UnsupportedAlgorithm) as e:
        does = "is ssl.key.password right?" if password is not None else "is it PKCS#8?"
        raise ConfigError(f"{where} has a private key that cannot be read: {does}") from e


def _pem_certificates(data: bytes, where: str) -> Sequence[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as e:
        raise ConfigError(
            f"{where} has no certificate that can be read: write blocks of -----BEGIN "
            f"CERTIFICATE----- ({e})"
        ) from e


def _pkcs12_key(
    data: bytes, password: SecretStr | None, key_password: SecretStr | None, where: str
) -> KeyMaterial:
    _require(
        key_password is None or password == key_password,
        "ssl.key.password differs from ssl.keystore.password: a PKCS12 file has one password",
    )
    try:
        store = pkcs12.load_pkcs12(data, _password_of(password))
    except (ValueError, UnsupportedAlgorithm) as e:
        raise ConfigError(f"{where} is no PKCS12 file of this ssl.keystore.password") from e
    if store.key is None or store.cert is None:
        raise ConfigError(f"{where} has no private key with a certificate: it may be a truststore")
    return KeyMaterial(
        store.key,
        _in_order(store.cert.certificate, [one.certificate for one in store.additional_certs]),
    )


def _in_order(
    leaf: x509.Certificate, others: Sequence[x509.Certificate]
) -> Sequence[x509.Certificate]:
    """Return the chain from ``leaf`` to its root. PKCS#12 stores certificates in any order."""
    chain, left = [leaf], list(others)
    while following := next((one for one in left if one.subject == chain[-1].issuer), None):
        left.remove(following)
        chain.append(following)
    return chain


def _pkcs12_certificates(
    data: bytes, password: SecretStr | None, where: str
) -> Sequence[x509.Certificate]:
    try:
        store = pkcs12.load_pkcs12(data, _password_of(password))
    except (ValueError, UnsupportedAlgorithm) as e:
        raise ConfigError(f"{where} is no PKCS12 file of this ssl.truststore.password") from e
    found = [one.certificate for one in store.additional_certs]
    found += [] if store.cert is None else [store.cert.certificate]
    _require(bool(found), f"{where} has no certificate")
    return found
