"""WIRE. ``TlsContexts``: the contexts of a listener and of connections to it, from configuration.

The private key reaches OpenSSL through a file in memory, because Python's ``ssl`` loads keys from
files only.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import ssl
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ssl_config import SslConfig
from kraftjbod.net.tls.stores import (
    KeyMaterial,
    certificates_pem,
    has_keystore,
    load_keystore,
    load_truststore,
)

_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: Python cannot choose among these: they are all served or none.
#: Suites of TLS 1.2 that a listener accepts by default: those without CBC.
_DEFAULT_SUITES: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_TLS_1_3_SUITES: Final = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """OpenSSL contexts of one listener, created from the same keys, and when the first of their
    certificates expires.
    """

    server: ssl.SSLContext | None
    """For accepted connections; None if the node does not serve the listener."""
    client: ssl.SSLContext | None
    """For connections to this listener of other nodes; None if the node opens none."""
    subject: str
    """Subject of the node's certificate as RFC 4514 text; empty without one."""
    expires: datetime.datetime | None
    """Earliest expiry of the certificates in the node's chain, in UTC; None without one."""


def load_contexts(config: SslConfig, *, serves: bool, dials: bool) -> TlsContexts:
    """Create the contexts of a listener. Reads files, so it must not run in the event loop.

    :param serves: whether the node serves the listener.
    :param dials: whether the node connects to this listener of other nodes.
    :raises ConfigError: keys, certificates or settings cannot be used.
    """
    try:
        material = load_keystore(config) if serves or has_keystore(config) else None
        trusted = load_truststore(config)
        chain = () if material is None else material.chain
        return TlsContexts(
            _server_context(config, material, trusted) if serves else None,
            _client_context(config, material, trusted) if dials else None,
            chain[0].subject.rfc4514_string() if chain else "",
            min((one.not_valid_after_utc for one in chain), default=None),
        )
    except (ssl.SSLError, ValueError, x509.InvalidVersion) as e:
        # Parts of a certificate are parsed only when they are used.
        raise ConfigError(f"a certificate of keystore or truststore is damaged: {e}") from e


def _server_context(
    config: SslConfig, material: KeyMaterial | None, trusted: Sequence[x509.Certificate]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(_DEFAULT_SUITES)
    _apply(context, config, material, trusted)
    if config.ssl_client_auth != "none" and not trusted:
        raise ConfigError(
            f"ssl.client.auth={config.ssl_client_auth} needs ssl.truststore.location or "
            "ssl.truststore.certificates: without them no client's certificate could be verified"
        )
    context.verify_mode = _VERIFY[config.ssl_client_auth]
    return context


def _client_context(
    config: SslConfig, material: KeyMaterial | None, trusted: Sequence[x509.Certificate]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.ssl_endpoint_identification_algorithm == "https"
    _apply(context, config, material, trusted)
    if not trusted:
        raise ConfigError(
            "connections with TLS need ssl.truststore.location or ssl.truststore.certificates: "
            "without them no node's certificate could be verified"
        )
    return context


def _apply(
    context: ssl.SSLContext,
    config: SslConfig,
    material: KeyMaterial | None,
    trusted: Sequence[x509.Certificate],
) -> None:
    context.options |= ssl.OP_NO_RENEGOTIATION
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    _set_ciphers(context, config.ssl_cipher_suites)
    if material is not None:
        _load_key(context, material)
    if trusted:
        context.load_verify_locations(cadata=certificates_pem(trusted).decode())
        # Each certificate of a truststore is an anchor, as in Java, not only roots.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _load_key(context: ssl.SSLContext, material: KeyMaterial) -> None:
    with _memory_file(material.pem()) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as e:
            subject = material.chain[0].subject.rfc4514_string()
            raise ConfigError(
                f"the first certificate of the keystore, {subject}, does not belong to its private "
                f"key, or is too weak ({e.reason}): put the certificate of the key first"
            ) from e


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[str]:
    """Provide a path to ``data`` that never reaches a disk."""
    descriptor = os.memfd_create("kraftjbod-tls")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _set_ciphers(context: ssl.SSLContext, suites: Collection[str]) -> None:
    """Restrict the cipher suites, and the TLS versions to those that have one.

    :raises ConfigError: a suite is unknown, or a part of the suites of TLS 1.3 is named.
    """
    if not suites:
        return
    newest = _TLS_1_3_SUITES.intersection(suites)
    if newest and newest != _TLS_1_3_SUITES:
        raise ConfigError(
            f"ssl.cipher.suites names {', '.join(sorted(newest))}: either all suites of TLS 1.3 "
            f"are served or none, so name {', '.join(sorted(_TLS_1_3_SUITES))}, or set "
            "ssl.enabled.protocols=TLSv1.2"
        )
    older = [openssl_name(suite) for suite in suites if suite not in newest]
    for suite in older:
        try:
            context.set_ciphers(suite)
        except ssl.SSLError as e:
            raise ConfigError(f"ssl.cipher.suites: OpenSSL does not have {suite}") from e
    if older:
        context.set_ciphers(":".join(older))
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if context.minimum_version > context.maximum_version:
        raise ConfigError(
            "ssl.cipher.suites has no suite of the versions in ssl.enabled.protocols: add one"
        )


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLS 1.2; ``suite`` is its IANA name or already
    OpenSSL's.
    """
    exchange, found, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return suite
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    prefix = "" if exchange == "RSA" else f"{exchange}-"
    return f"{prefix}{cipher}".replace("_", "-")


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a DER certificate as RFC 2253 text, as Java does.

    Attributes without a keyword in RFC 2253 are ``OID=#`` and the DER value in hexadecimal.

    :raises ValueError: the certificate is malformed.
    """
    try:
        name = x509.load_der_x509_certificate(certificate).subject
    except x509.InvalidVersion as e:
        raise ValueError(str(e)) from e
    return ",".join(
        "+".join(_attribute(attribute) for attribute in rdn) for rdn in reversed(name.rdns)
    )


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    single = x509.Name([attribute])
    if attribute.oid in _KEYWORDS:
        return single.rfc4514_string()
    der = single.public_bytes()
    # Name and its set, each with tag and length; then the sequence of OID and value.
    for _ in range(3):
        der = _content(der)
    oid_bytes = 2 + der[1]
    return f"{attribute.oid.dotted_string}=#{der[oid_bytes:].hex()}"


def _content(der: bytes) -> bytes:
    """Return the content of a DER element."""
    return der[2:] if der[1] < 0x80 else der[2 + (der[1] & 0x7F) :]


_KEYWORDS: Final = frozenset(
    {
        x509.NameOID.COMMON_NAME,
        x509.NameOID.LOCALITY_NAME,
        x509.NameOID.STATE_OR_PROVINCE_NAME,
        x509.NameOID.ORGANIZATION_NAME,
        x509.NameOID.ORGANIZATIONAL_UNIT_NAME,
        x509.NameOID.COUNTRY_NAME,
        x509.NameOID.STREET_ADDRESS,
        x509.NameOID.DOMAIN_COMPONENT,
        x509.NameOID.USER_ID,
    }
)
