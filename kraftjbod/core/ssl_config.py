"""PURE. Keys of TLS: stores of keys and certificates, protocol versions, client authentication.

Names, types and defaults are Kafka's. Values of ``Password`` keys appear in no message, event or
response.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator

from kraftjbod.core.config_model import KeyedModel, split_list
from kraftjbod.core.ssl_principal_rules import parse_principal_rules

StoreType = Literal["JKS", "PKCS12", "PEM"]
CLIENT_AUTH: Final = "ssl.client.auth"
PRINCIPAL_RULES: Final = "ssl.principal.mapping.rules"
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")


class SslConfig(KeyedModel):
    """Keys of listeners whose security protocol is SSL, and of connections to such listeners."""

    ssl_keystore_type: StoreType = "JKS"
    """Form of the keystore: PEM or PKCS12. JKS, Kafka's default, means PKCS12 here, because
    keytool writes PKCS12 files by default. A file in the old JKS format is refused, and the message
    has the command that converts the file."""
    ssl_keystore_location: str | None = None
    """File with the private key and the certificate chain, the certificate of the key first. See
    [security.md](security.md)."""
    ssl_keystore_password: SecretStr | None = None
    """Password of a PKCS12 keystore."""
    ssl_key_password: SecretStr | None = None
    """Password of the private key in a PEM keystore; not needed for a key in plain text."""
    ssl_keystore_key: SecretStr | None = None
    """Private key as PEM text, instead of a file (KIP-651)."""
    ssl_keystore_certificate_chain: SecretStr | None = None
    """Certificate chain of ``ssl.keystore.key`` as PEM text."""
    ssl_truststore_type: StoreType = "JKS"
    """Form of the truststore, as for the keystore."""
    ssl_truststore_location: str | None = None
    """File with the certificates that sign those of clients and of other nodes."""
    ssl_truststore_password: SecretStr | None = None
    """Password of a PKCS12 truststore."""
    ssl_truststore_certificates: SecretStr | None = None
    """Certificates that sign those of clients and of other nodes, as PEM text instead of a file
    (KIP-651)."""
    ssl_client_auth: Literal["none", "requested", "required"] = "none"
    """Whether clients present a certificate: ``required``, ``requested`` (a client without one is
    User:ANONYMOUS) or ``none``."""
    ssl_enabled_protocols: tuple[str, ...] = TLS_VERSIONS
    """TLS versions that are accepted: TLSv1.2, TLSv1.3 or both."""
    ssl_cipher_suites: tuple[str, ...] = ()
    """Cipher suites that are accepted, by their IANA or OpenSSL names. If not set: those of TLS
    1.3, and of TLS 1.2 those with ECDHE and AES-GCM or ChaCha20."""
    ssl_principal_mapping_rules: str = "DEFAULT"
    """Rules that map the distinguished name of a client's certificate to its principal:
    ``DEFAULT`` or ``RULE:pattern/replacement/[L|U]``, separated by commas. The first one that
    matches is used; a client whose name matches none is refused."""
    ssl_endpoint_identification_algorithm: Literal["https", ""] = "https"
    """Whether this node checks the host name in the certificate of another node that it connects
    to: ``https``, or an empty value for no check."""
    ssl_handshake_timeout_ms: int = Field(default=10_000, ge=1)
    """A connection is closed if its TLS handshake takes longer."""
    ssl_store_check_interval_ms: int = Field(default=10_000, ge=100)
    """How often the files of keystore and truststore are checked for changes. New connections use
    changed files."""

    @field_validator("ssl_enabled_protocols", "ssl_cipher_suites", mode="before")
    @classmethod
    def _ssl_lists(cls, value: object) -> object:
        return split_list(value)

    @field_validator("ssl_enabled_protocols")
    @classmethod
    def _ssl_versions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [version for version in value if version not in TLS_VERSIONS]
        if unknown or not value:
            found = ", ".join(unknown) or "no version"
            raise ValueError(f"{found} is not served: use {' or '.join(TLS_VERSIONS)}, or both")
        return value

    @field_validator("ssl_principal_mapping_rules")
    @classmethod
    def _ssl_rules(cls, value: str) -> str:
        parse_principal_rules(value)
        return value

    @field_validator("ssl_endpoint_identification_algorithm", mode="before")
    @classmethod
    def _ssl_identification(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("ssl_keystore_type", "ssl_truststore_type", mode="before")
    @classmethod
    def _ssl_types(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value
