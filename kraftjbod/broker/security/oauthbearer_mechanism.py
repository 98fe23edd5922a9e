"""PURE. The server's side of the mechanism OAUTHBEARER (RFC 7628), as Kafka's brokers speak it.

* The client's first message has the token. The answer to a valid one is empty.
* The answer to a refused token is JSON. The client confirms it with one byte, and then the login
  fails. The client learns only ``invalid_token``; the reason is for the broker's events.
* Extensions (SASL extensions of KIP-342) are checked for their form and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol

from kraftjbod.broker.security.jwt_validator import MAX_TOKEN_CHARS, ValidToken
from kraftjbod.net.sasl_mechanism import LoginFailedError, SaslStep, require_user

REFUSAL: Final = '{"status":"invalid_token"}'
_CONFIRMATION: Final = b"\x01"
#: The token, and room for extensions.
_MAX_MESSAGE_BYTES: Final = MAX_TOKEN_CHARS + 16 * 1024
_MESSAGE: Final = re.compile(
    r"n,(?:a=(?P<authorization_id>(?:[^=,\0\x01]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_TOKEN: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>\S+) *")


class Validator(Protocol):
    def validate(self, token: str) -> ValidToken:
        """:raises LoginFailedError: the token is refused."""
        ...


class OauthbearerMechanism:
    """The server's side of one login by OAUTHBEARER: checks the token of one client."""

    def __init__(self, validator: Validator, *, is_node: Callable[[str], bool]) -> None:
        """:param is_node: whether a user has the principal of a broker or controller. Tokens of
        such users are refused, because the identity provider does not know the nodes.
        """
        self._validator = validator
        self._is_node = is_node
        self._has_failed = False

    def respond(self, message: bytes) -> SaslStep:
        """Return the answer to the message with the token: the last step with the user, or the
        step that tells the client that its token was refused.

        :raises LoginFailedError: the message is malformed, or confirms the failure.
        """
        if self._has_failed:
            reason = "" if message == _CONFIRMATION else ", and its confirmation is malformed"
            raise LoginFailedError(f"the token was refused{reason}", shown=REFUSAL)
        token, authorization_id = _parsed(message)
        try:
            valid = self._validator.validate(token)
            self._require_user(valid.user, authorization_id)
        except LoginFailedError as e:
            self._has_failed = True
            return SaslStep(token=REFUSAL.encode(), failure=str(e))
        return SaslStep(token=b"", user=valid.user, lifetime_ms=valid.lifetime_ms)

    def _require_user(self, user: str, authorization_id: str) -> None:
        require_user(user)
        if authorization_id not in ("", user):
            raise LoginFailedError("the authorization id is not the user of the token")
        if self._is_node(user):
            raise LoginFailedError(
                f"the user {user} of the token has the principal of a broker or controller"
            )


def _parsed(message: bytes) -> tuple[str, str]:
    """Return the token and the authorization id of the client's first message.

    :raises LoginFailedError: the message is malformed.
    """
    if len(message) > _MAX_MESSAGE_BYTES:
        raise LoginFailedError(f"the message of OAUTHBEARER has {len(message)} bytes")
    try:
        found = _MESSAGE.fullmatch(message.decode())
    except UnicodeDecodeError as e:
        raise LoginFailedError("the message of OAUTHBEARER is not UTF-8") from e
    if found is None:
        raise LoginFailedError("the message of OAUTHBEARER is malformed")
    pairs = [pair.partition("=")[::2] for pair in found["pairs"].split("\x01")[:-1]]
    values = dict(pairs)
    if len(values) != len(pairs):
        raise LoginFailedError("the message of OAUTHBEARER has an extension twice")
    token = _TOKEN.fullmatch(values.get("auth", ""))
    if token is None:
        raise LoginFailedError("the message of OAUTHBEARER has no bearer token")
    escaped = found["authorization_id"] or ""
    return token["token"], escaped.replace("=2C", ",").replace("=3D", "=")
