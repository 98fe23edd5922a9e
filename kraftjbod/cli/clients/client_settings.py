"""WIRE. ``ClientSettings``: the file of ``--command-config``, with the keys of Kafka's clients.

Keys that this project's clients do not need are ignored, because one file serves Kafka's tools and
these. Passwords occur in no message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import Field, SecretStr, field_validator

from kraftjbod.core.config_model import parse_model
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from kraftjbod.core.oauthbearer_config import OAUTHBEARER, require_url
from kraftjbod.core.security_keys import SASL_PROTOCOLS, SSL, TLS_PROTOCOLS
from kraftjbod.core.ssl_config import SslConfig
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.kafka_client import Login
from kraftjbod.net.plain_credential import PLAIN as PLAIN_MECHANISM
from kraftjbod.net.plain_credential import PlainCredential
from kraftjbod.net.sasl_login import MECHANISMS, SaslLogin
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.net.token_login import TokenLogin
from kraftjbod.net.token_source import TokenSource

CLIENT_ID: Final = "kraftjbod-tools"


class ClientSettings(SslConfig):
    """Settings of a client by Kafka's keys, as in the file of ``--command-config``."""

    client_id: str = CLIENT_ID
    """Name of the client in the brokers' diagnostics."""
    request_timeout_ms: int | None = Field(default=None, ge=1)
    """Time limit of a request. If not set: the tool's."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Security protocol of the listener."""
    sasl_mechanism: str = "GSSAPI"
    """Mechanism of the login. Kafka's default is not served, so a listener with SASL needs one."""
    sasl_jaas_config: SecretStr | None = None
    """User and password, as in Kafka: ``…ScramLoginModule required username="…" password="…";``"""
    sasl_oauthbearer_token_endpoint_url: str | None = None
    """Address of the tokens for OAUTHBEARER: of an identity provider, or of a file with a token
    (``file://``)."""
    sasl_oauthbearer_client_credentials_client_id: str = ""
    """Client id for the identity provider, by the client credentials grant."""
    sasl_oauthbearer_client_credentials_client_secret: SecretStr | None = None
    """Secret of that client."""
    sasl_oauthbearer_scope: str = ""
    """Scope that the identity provider is asked for."""

    @field_validator("sasl_oauthbearer_token_endpoint_url")
    @classmethod
    def _token_url(cls, value: str | None) -> str | None:
        return None if value is None or not value.strip() else require_url(value.strip())

    @field_validator("security_protocol", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @classmethod
    def from_values(cls, values: Mapping[str, str], source: str) -> Self:
        """Parse the values of a properties file. Unknown keys are ignored.

        :param source: path of the file, for error messages.
        :raises ConfigError: naming ``source`` and each key with a wrong value.
        """
        return parse_model(cls, values, source)

    def make_dialer(self, source: str) -> Dialer:
        """Return a dialer for listeners with ``security.protocol``. Reads key stores.

        :raises ConfigError: keys or certificates cannot be used.
        """
        if self.security_protocol not in TLS_PROTOCOLS:
            return PLAIN
        return tls_dialer(self, source)

    def make_login(self, source: str) -> Login | None:
        """Return the login for a listener with SASL; None for another listener.

        :raises ConfigError: the mechanism is not served, or user, password or the address of
            tokens is missing.
        """
        if self.security_protocol in SASL_PROTOCOLS and self.sasl_mechanism == OAUTHBEARER:
            return TokenLogin(self.make_token_source(source).token)
        return self.make_password_login(source)

    def make_token_source(self, source: str) -> TokenSource:
        """Return the source of tokens for OAUTHBEARER, from the keys of Kafka 4 or from the options
        of ``sasl.jaas.config``.

        :raises ConfigError: the address of the tokens, or the client's id or secret is missing.
        """
        if self.sasl_oauthbearer_token_endpoint_url is None:
            raise ConfigError(
                f"{source}: the mechanism OAUTHBEARER needs "
                "sasl.oauthbearer.token.endpoint.url: the token endpoint of the identity provider, "
                "or a file with a token (file:///…)"
            )
        options = self._jaas_options(source)
        secret = self.sasl_oauthbearer_client_credentials_client_secret
        found = TokenSource(
            url=self.sasl_oauthbearer_token_endpoint_url,
            client_id=self.sasl_oauthbearer_client_credentials_client_id
            or options.get("clientId", ""),
            client_secret=options.get("clientSecret", "")
            if secret is None
            else secret.get_secret_value(),
            scope=self.sasl_oauthbearer_scope or options.get("scope", ""),
        )
        if not found.url.startswith("file:") and not (found.client_id and found.client_secret):
            prefix = "sasl.oauthbearer.client.credentials.client."
            raise ConfigError(
                f"{source}: the token endpoint needs the credentials of a client: set {prefix}id "
                f"and {prefix}secret"
            )
        return found

    def _jaas_options(self, source: str) -> Mapping[str, str]:
        """Return the options of ``sasl.jaas.config`` for OAUTHBEARER, which may be missing.

        :raises ConfigError: it is malformed, or for another mechanism.
        """
        text = "" if self.sasl_jaas_config is None else self.sasl_jaas_config.get_secret_value()
        if not text.strip():
            return {}
        try:
            entry = parse_jaas(text)
        except ValueError as e:
            raise ConfigError(f"{source}: sasl.jaas.config: {e}") from None
        if entry.module != OAUTHBEARER_MODULE:
            raise ConfigError(
                f"{source}: sasl.jaas.config does not fit the mechanism: its login module is not "
                f"{OAUTHBEARER_MODULE}"
            )
        return entry.options

    def make_password_login(self, source: str) -> SaslLogin | None:
        """Return the login by user and password; None for a listener without SASL.

        :raises ConfigError: the mechanism has no password or is not served, or user or password is
            missing.
        """
        if self.security_protocol not in SASL_PROTOCOLS:
            return None
        if self.sasl_mechanism not in MECHANISMS:
            raise ConfigError(
                f"{source}: sasl.mechanism is {self.sasl_mechanism}: use "
                f"{', '.join((*MECHANISMS, OAUTHBEARER))}"
            )
        wanted = PLAIN_MODULE if self.sasl_mechanism == "PLAIN" else SCRAM_MODULE
        how = f'set sasl.jaas.config to {wanted} required username="NAME" password="PASSWORD";'
        if self.sasl_jaas_config is None:
            raise ConfigError(f"{source}: a login needs a user and a password: {how}")
        try:
            entry = parse_jaas(self.sasl_jaas_config.get_secret_value())
        except ValueError as e:
            raise ConfigError(f"{source}: sasl.jaas.config: {e}") from None
        user, password = entry.options.get("username"), entry.options.get("password")
        if entry.module != wanted or not user or not password:
            raise ConfigError(f"{source}: sasl.jaas.config does not fit the mechanism: {how}")
        return SaslLogin(self.sasl_mechanism, user, password, os.urandom)

    def require_for_controllers(self, source: str) -> None:
        """Require a protocol that controllers serve.

        :raises ConfigError: the file has SASL with another mechanism than PLAIN.
        """
        if self.security_protocol in SASL_PROTOCOLS and self.sasl_mechanism != PLAIN_MECHANISM:
            raise ConfigError(
                f"{source}: controllers serve the mechanism PLAIN only, and sasl.mechanism is "
                f"{self.sasl_mechanism}: use PLAIN with the user of a node"
            )

    def make_controller_dialer(self, source: str) -> Dialer:
        """Return a dialer for listeners of controllers, which logs in if they have SASL.

        :raises ConfigError: keys, certificates, user or password cannot be used.
        """
        self.require_for_controllers(source)
        dialer, login = self.make_dialer(source), self.make_password_login(source)
        if login is None:
            return dialer
        return dialer.with_credential(PlainCredential(login.user, login.password))


def tls_dialer(config: SslConfig, source: str) -> Dialer:
    """Return a dialer with the keys and certificates of ``config``. Reads key stores.

    :param source: origin of the values, for error messages.
    :raises ConfigError: keys or certificates cannot be used.
    """
    # The package cryptography takes 0.1 s.
    from kraftjbod.net.tls.contexts import load_contexts

    try:
        context = load_contexts(config, serves=False, dials=True).client
    except ConfigError as e:
        raise ConfigError(f"{source}: {e}") from e
    assert context is not None
    return Dialer(
        TlsSettings(
            listener_name=SSL,
            context=lambda: context,
            handshake_timeout_ms=config.ssl_handshake_timeout_ms,
        )
    )
