"""PURE. The server's side of the mechanism PLAIN (RFC 4616).

The texts are Kafka's. Passwords are compared in constant time, also for unknown users.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from kraftjbod.net.sasl_mechanism import LoginFailedError, SaslStep

_PARTS: Final = 3


def plain_digests(passwords: Mapping[str, str]) -> dict[str, bytes]:
    """Return a digest of each password, by user name.

    Digests have one length, so that a comparison does not reveal the length of a password.
    """
    return {user: _digest(password) for user, password in passwords.items()}


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


class PlainMechanism:
    """The server's side of one login by PLAIN: checks the user and the password of one client."""

    def __init__(self, digests: Mapping[str, bytes]) -> None:
        """:param digests: digests of the users' passwords, see :func:`plain_digests`."""
        self._digests = digests

    def respond(self, message: bytes) -> SaslStep:
        """Check the client's only message (authorization id, user and password, separated by NUL).
        Return the last step of the login, with the user.

        :raises LoginFailedError: the message is malformed, or its user or password is wrong.
        """
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError as e:
            raise LoginFailedError("the message of PLAIN is not UTF-8") from e
        if len(parts) != _PARTS:
            raise _failed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise _failed("Authentication failed: username not specified")
        if not password:
            raise _failed("Authentication failed: password not specified")
        known = self._digests.get(user)
        is_right = hmac.compare_digest(_digest(password), known or _digest(""))
        if known is None or not is_right:
            raise _failed("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise _failed(
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
        return SaslStep(token=b"", user=user)


def _failed(reason: str) -> LoginFailedError:
    return LoginFailedError(reason, shown=reason)
