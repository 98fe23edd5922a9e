"""PURE. ``SaslMechanism``: the server's side of one login, and what all mechanisms share.

A mechanism takes the client's messages one after the other. It knows no connection and no request.
Principals are ``User:`` and the name of the user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kraftjbod.core.errors import KraftJbodError

#: ACLs use it for every user, so that no session may have it.
ANY_USER: Final = "*"
MAX_USER_NAME_CHARS: Final = 1_000


class LoginFailedError(KraftJbodError):
    """The login failed. The text is for the server's telemetry and contains no secret.

    :param shown: text for the client. If None, the client gets a fixed text that reveals nothing.
    """

    def __init__(self, reason: str, *, shown: str | None = None) -> None:
        super().__init__(reason)
        self.shown = shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslStep:
    """The answer to one message of the client, unless its login fails (``LoginFailedError``)."""

    token: bytes
    user: str | None = None
    """Name of the user after the last message; None before."""
    lifetime_ms: int | None = None
    """Remaining lifetime of the credential, None if it is unlimited."""
    failure: str | None = None
    """Reason of a failed login whose mechanism tells the client in ``token``: the next message
    only confirms the failure. None if the login has not failed. Contains no secret."""


class SaslMechanism(Protocol):
    """One login by a SASL mechanism such as PLAIN, on the server's side: receives the client's
    messages one after the other.
    """

    def respond(self, message: bytes) -> SaslStep:
        """Return the answer to the next message of the client.

        :raises LoginFailedError: the login failed. No further message is passed.
        """
        ...


MakeSaslMechanism = Callable[[], SaslMechanism]


def require_user(user: str) -> str:
    """Return ``user`` if it can be the name of a session's user.

    :raises LoginFailedError: the name is ``*``, or too long for events.
    """
    if user == ANY_USER:
        raise LoginFailedError("the user name is *, which stands for all users in ACLs")
    if len(user) > MAX_USER_NAME_CHARS:
        raise LoginFailedError(f"the user name has more than {MAX_USER_NAME_CHARS} characters")
    return user
