"""PURE. Keys of the SASL mechanism OAUTHBEARER on the server's side, with Kafka's names.

* Tokens are JSON web tokens (RFC 7519), verified by the keys of a JWKS document (RFC 7517).
* Audience and issuer must be configured, because a token of another service of the same identity
  provider would be accepted otherwise. Kafka has required both since June 2026.
* Kafka's classes of the mechanism are accepted and have no effect.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from kraftjbod.core.config_model import HOUR_MS, SECOND_MS, KeyedModel, Long, split_list
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.jaas import OAUTHBEARER_MODULE, parse_jaas

OAUTHBEARER: Final = "OAUTHBEARER"
_SCHEMES: Final = ("https", "http", "file")
_PREFIX: Final = "sasl.oauthbearer."
_VALIDATOR_HANDLER: Final = "OAuthBearerValidatorCallbackHandler"
_VALIDATORS: Final = frozenset({"DefaultJwtValidator", "BrokerJwtValidator"})


class OauthbearerConfig(KeyedModel):
    """Keys of listeners on which clients log in by OAUTHBEARER."""

    sasl_oauthbearer_jwks_endpoint_url: str | None = None
    """Address of the JWKS document with the public keys that verify tokens: ``https://``,
    ``http://`` or ``file://``. OAUTHBEARER needs it."""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Long = Field(default=HOUR_MS, ge=SECOND_MS)
    """Time between two reads of the JWKS document. A token with an unknown key id causes an earlier
    read, at most once in ten seconds."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Long = Field(default=100, ge=1)
    """Wait after a failed read of the JWKS document. It doubles with each failure."""
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Long = Field(default=10_000, ge=1)
    """Longest wait after a failed read of the JWKS document."""
    sasl_oauthbearer_expected_audience: tuple[str, ...] = ()
    """Accepted audiences: the claim ``aud`` of a token must have one of them."""
    sasl_oauthbearer_expected_issuer: str | None = None
    """The claim ``iss`` of a token must have this value."""
    sasl_oauthbearer_allow_unverified_audience: bool = False
    """Whether ``sasl.oauthbearer.expected.audience`` may be missing: then tokens for every
    audience are accepted."""
    sasl_oauthbearer_allow_unverified_issuer: bool = False
    """Whether ``sasl.oauthbearer.expected.issuer`` may be missing: then tokens of every issuer
    are accepted."""
    sasl_oauthbearer_clock_skew_seconds: int = Field(default=30, ge=0, le=3600)
    """Accepted difference between the clocks of the identity provider and the broker."""
    sasl_oauthbearer_sub_claim_name: str = "sub"
    """Claim of a token that has the name of the user."""
    sasl_oauthbearer_scope_claim_name: str = "scope"
    """Claim of a token that has its scopes. A malformed one is refused."""
    oauthbearer_sasl_jaas_config: SecretStr | None = None
    """``org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;``, as in
    Kafka. It may be missing."""
    oauthbearer_sasl_server_callback_handler_class: str | None = None
    """Kafka's ``OAuthBearerValidatorCallbackHandler``, or not set. Both have the same effect."""
    sasl_oauthbearer_jwt_validator_class: str | None = None
    """Kafka's ``DefaultJwtValidator`` or ``BrokerJwtValidator``, or not set. All have the same
    effect."""

    @field_validator("sasl_oauthbearer_expected_audience", mode="before")
    @classmethod
    def _oauthbearer_lists(cls, value: object) -> object:
        return split_list(value)

    @field_validator("sasl_oauthbearer_jwks_endpoint_url")
    @classmethod
    def _readable_url(cls, value: str | None) -> str | None:
        return None if value is None or not value.strip() else require_url(value.strip())

    @field_validator("sasl_oauthbearer_sub_claim_name", "sasl_oauthbearer_scope_claim_name")
    @classmethod
    def _claim_name(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("the name of a claim is empty: remove the key for the default")
        return value.strip()

    @field_validator("oauthbearer_sasl_jaas_config")
    @classmethod
    def _oauthbearer_entry(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value().strip():
            return None
        entry = parse_jaas(value.get_secret_value())
        if entry.module != OAUTHBEARER_MODULE:
            raise ValueError(f"the login module is not {OAUTHBEARER_MODULE}")
        if any(option.startswith("unsecured") for option in entry.options):
            raise ValueError(
                "unsigned tokens are not accepted: remove the options whose names begin with "
                "unsecured"
            )
        return value

    @field_validator("oauthbearer_sasl_server_callback_handler_class")
    @classmethod
    def _known_handler(cls, value: str | None) -> str | None:
        if value and value.rpartition(".")[2] != _VALIDATOR_HANDLER:
            raise ValueError(f"Java classes are not loaded: use {_VALIDATOR_HANDLER}, or no value")
        return value

    @field_validator("sasl_oauthbearer_jwt_validator_class")
    @classmethod
    def _known_validator(cls, value: str | None) -> str | None:
        if value and value.rpartition(".")[2] not in _VALIDATORS:
            raise ValueError("Java classes are not loaded: use DefaultJwtValidator, or no value")
        return value


def require_url(url: str) -> str:
    """Return ``url`` if its document can be read.

    :raises ValueError: the URL has no host or path, another scheme, or a user and password.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError("expected a URL that begins with https://, http:// or file://")
    if "@" in parts.netloc:
        raise ValueError("a user and password in a URL are not supported: remove them")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path):
        raise ValueError("expected file:/// and the absolute path of a file of this host")
    if parts.scheme != "file":
        _ = parts.port  # Raises ValueError if it is no port.
        if not parts.hostname:
            raise ValueError("the URL has no host")
    return url


def require_oauthbearer(config: OauthbearerConfig, source: str) -> None:
    """Require the keys without which tokens cannot be verified.

    :param source: name of the listener, for error messages.
    :raises ConfigError: the address of the keys, the audience or the issuer is missing.
    """
    if config.sasl_oauthbearer_jwks_endpoint_url is None:
        raise ConfigError(
            f"{source}: the mechanism OAUTHBEARER has no keys that verify tokens: set "
            f"{_PREFIX}jwks.endpoint.url to the JWKS document of the identity provider. Unsigned "
            "tokens are not accepted"
        )
    for name, value, may_miss in (
        (
            "audience",
            config.sasl_oauthbearer_expected_audience,
            config.sasl_oauthbearer_allow_unverified_audience,
        ),
        (
            "issuer",
            config.sasl_oauthbearer_expected_issuer,
            config.sasl_oauthbearer_allow_unverified_issuer,
        ),
    ):
        if not value and not may_miss:
            raise ConfigError(
                f"{source}: {_PREFIX}expected.{name} is not set, so tokens that the identity "
                f"provider issued for other services would be accepted: set it, or set "
                f"{_PREFIX}allow.unverified.{name}=true"
            )
