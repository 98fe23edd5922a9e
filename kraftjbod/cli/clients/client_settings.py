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
from kraftjbod.core.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from kraftjbod.core.security_keys import SASL_PROTOCOLS, SSL, TLS_PROTOCOLS
from kraftjbod.core.ssl_config import SslConfig
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.plain_credential import PLAIN as PLAIN_MECHANISM
from kraftjbod.net.plain_credential import PlainCredential
from kraftjbod.net.sasl_login import MECHANISMS, SaslLogin
from kraftjbod.net.tls_transport import TlsSettings

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

    def make_login(self, source: str) -> SaslLogin | None:
        """Return the login for a listener with SASL; None for another listener.

        :raises ConfigError: the mechanism is not served, or user or password is missing.
        """
        if self.security_protocol not in SASL_PROTOCOLS:
            return None
        if self.sasl_mechanism not in MECHANISMS:
            raise ConfigError(
                f"{source}: sasl.mechanism is {self.sasl_mechanism}: use {', '.join(MECHANISMS)}"
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
        dialer, login = self.make_dialer(source), self.make_login(source)
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
