"""PURE. ``ConnectionContext``: the principal and the addresses of a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

#: Principal of an unauthenticated client; Kafka's ``KafkaPrincipal.ANONYMOUS``.
ANONYMOUS: Final = "User:ANONYMOUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionContext:
    """The client's principal and addresses, and the listener, of one connection.

    The handler receives it with each request of the connection. ``mute`` stops reading from the
    connection for a number of milliseconds.
    """

    #: "host:port" of the client.
    peer: str
    listener_name: str
    #: Numeric address of the client.
    peer_host: str = "?"
    security_protocol: str = "PLAINTEXT"
    principal: str = ANONYMOUS
    #: Stops reading from the connection for so many milliseconds.
    mute: Callable[[int], None] = field(default=lambda _ms: None, compare=False, repr=False)
