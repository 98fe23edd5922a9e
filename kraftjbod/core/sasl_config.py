"""PURE. Keys of SASL: mechanisms, their JAAS configuration, limits before a login.

Names, types and defaults are Kafka's, but no mechanism is enabled by default. Values of
``Password`` keys appear in no message, event or response.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pydantic import Field, SecretStr, field_validator

from kraftjbod.core.config_model import MIB, Long, split_list
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from kraftjbod.core.node_principals import NO_NODES, NODE_PRINCIPALS_KEY, NodePrincipals
from kraftjbod.core.oauthbearer_config import (
    OAUTHBEARER,
    OauthbearerConfig,
    require_oauthbearer,
)
from kraftjbod.core.scram import MECHANISM_NAMES

PLAIN: Final = "PLAIN"
#: Mechanisms by which nodes log in to each other.
NODE_MECHANISMS: Final = (PLAIN, *MECHANISM_NAMES)
MECHANISMS: Final = (*NODE_MECHANISMS, OAUTHBEARER)
#: Prefix of the options of PlainLoginModule that define users.
USER_OPTION: Final = "user_"


class SaslConfig(OauthbearerConfig):
    """Keys of listeners whose security protocol is SASL_PLAINTEXT or SASL_SSL."""

    sasl_enabled_mechanisms: tuple[str, ...] = ()
    """Mechanisms by which clients log in: ``SCRAM-SHA-256``, ``SCRAM-SHA-512``, ``PLAIN`` and
    ``OAUTHBEARER``. A listener with SASL needs at least one."""
    plain_sasl_jaas_config: SecretStr | None = None
    """Users of the mechanism PLAIN, as in Kafka:
    ``org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="…";`` On a
    listener between nodes also the node's own ``username`` and ``password``."""
    scram_sha_256_sasl_jaas_config: SecretStr | None = Field(
        default=None, alias="scram-sha-256.sasl.jaas.config"
    )
    """User and password with which this broker logs in to other brokers by SCRAM-SHA-256:
    ``org.apache.kafka.common.security.scram.ScramLoginModule required username="…" password="…";``
    """
    scram_sha_512_sasl_jaas_config: SecretStr | None = Field(
        default=None, alias="scram-sha-512.sasl.jaas.config"
    )
    """As ``scram-sha-256.sasl.jaas.config``, by SCRAM-SHA-512."""
    sasl_server_max_unauthenticated_bytes: Long = Field(default=16 * MIB, ge=MIB)
    """Limit of the bytes of unanswered requests of all connections without a login."""
    sasl_server_max_receive_size: int = Field(default=524_288, ge=1024)
    """Largest request before a login."""
    sasl_login_timeout_ms: int = Field(default=30_000, ge=1)
    """A connection is closed if a login takes longer, its TLS handshake included."""
    connection_failed_authentication_delay_ms: int = Field(default=100, ge=0)
    """Delay of the answer to a failed login."""
    connections_max_reauth_ms: Long = Field(default=0, ge=0)
    """Lifetime of a login in ms. A connection is closed at its next request after this time,
    unless the client logged in again (KIP-368). 0: unlimited."""

    @field_validator("sasl_enabled_mechanisms", mode="before")
    @classmethod
    def _sasl_lists(cls, value: object) -> object:
        return split_list(value)

    @field_validator("sasl_enabled_mechanisms")
    @classmethod
    def _known_mechanisms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in value if name not in MECHANISMS]
        if unknown:
            raise ValueError(f"{', '.join(unknown)} is not served: use {', '.join(MECHANISMS)}")
        return tuple(dict.fromkeys(value))

    @field_validator("plain_sasl_jaas_config")
    @classmethod
    def _plain_entry(cls, value: SecretStr | None) -> SecretStr | None:
        return _entry_of(value, PLAIN_MODULE)

    @field_validator("scram_sha_256_sasl_jaas_config", "scram_sha_512_sasl_jaas_config")
    @classmethod
    def _scram_entry(cls, value: SecretStr | None) -> SecretStr | None:
        return _entry_of(value, SCRAM_MODULE)


def _entry_of(value: SecretStr | None, module: str) -> SecretStr | None:
    if value is None or not value.get_secret_value().strip():
        return None
    if parse_jaas(value.get_secret_value()).module != module:
        raise ValueError(f"the login module is not {module}")
    return value


def plain_users(config: SaslConfig) -> dict[str, str]:
    """Return the passwords of the users of the mechanism PLAIN, by user name; empty if none is
    configured.
    """
    value = config.plain_sasl_jaas_config
    if value is None:
        return {}
    options = parse_jaas(value.get_secret_value()).options
    return {
        key.removeprefix(USER_OPTION): password
        for key, password in options.items()
        if key.startswith(USER_OPTION)
    }


def require_sasl(
    config: SaslConfig, source: str, *, node_principals: NodePrincipals = NO_NODES
) -> None:
    """Require what a listener with SASL needs.

    :param source: name of the listener, for error messages.
    :param node_principals: principals of nodes, which no user of this listener may have.
    :raises ConfigError: no mechanism is enabled, OAUTHBEARER lacks a key, PLAIN has no user, or a
        user of PLAIN has no name or password, is called ``*`` or has the principal of a node.
    """
    if not config.sasl_enabled_mechanisms:
        raise ConfigError(
            f"{source}: sasl.enabled.mechanisms is not set: name the mechanisms by which clients "
            f"of this listener log in, of {', '.join(MECHANISMS)}"
        )
    if OAUTHBEARER in config.sasl_enabled_mechanisms:
        require_oauthbearer(config, source)
    if PLAIN in config.sasl_enabled_mechanisms and not plain_users(config):
        raise ConfigError(
            f"{source}: the mechanism PLAIN has no user: set plain.sasl.jaas.config to "
            f'{PLAIN_MODULE} required user_NAME="PASSWORD";'
        )
    for user, password in plain_users(config).items():
        if not user or user == "*" or not password:
            raise ConfigError(
                f"{source}: plain.sasl.jaas.config has a user without a name or password, or the "
                "user *, which stands for all users in ACLs"
            )
        if node_principals.node_of(f"User:{user}") is not None:
            raise ConfigError(
                f"{source}: plain.sasl.jaas.config has the user {user}, whose principal is that of "
                f"a broker or controller by {NODE_PRINCIPALS_KEY}: choose another user name"
            )


@dataclass(frozen=True, slots=True)
class NodeLogin:
    """The login of this node on a listener between nodes. Its representation shows no password."""

    mechanism: str
    user: str
    password: str = field(repr=False)


def node_login(config: SaslConfig, mechanism: str, *, key: str, source: str) -> NodeLogin:
    """Return the login of this node on a listener between nodes.

    :param mechanism: the value of ``key``.
    :param source: name of the listener, for error messages.
    :raises ConfigError: the mechanism is not served, or user or password is missing.
    """
    if mechanism not in NODE_MECHANISMS:
        raise ConfigError(
            f"{source}: {key} is {mechanism or 'not set'}: name the mechanism by which nodes log "
            f"in, of {', '.join(NODE_MECHANISMS)}"
        )
    values = {
        PLAIN: config.plain_sasl_jaas_config,
        "SCRAM-SHA-256": config.scram_sha_256_sasl_jaas_config,
        "SCRAM-SHA-512": config.scram_sha_512_sasl_jaas_config,
    }
    value = values[mechanism]
    options = {} if value is None else parse_jaas(value.get_secret_value()).options
    user, password = options.get("username"), options.get("password")
    if not user or not password:
        module = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
        raise ConfigError(
            f"{source}: this node has no user to log in with: set "
            f"{mechanism.lower()}.sasl.jaas.config to "
            f'{module} required username="NAME" password="PASSWORD";'
        )
    return NodeLogin(mechanism, user, password)
