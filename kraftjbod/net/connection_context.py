"""PURE. ``ConnectionContext``: who speaks on a connection, and how it came in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Who has not said who it is; Kafka's ``KafkaPrincipal.ANONYMOUS``.
ANONYMOUS: Final = "User:ANONYMOUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionContext:
    """One object per connection; every request that comes on it has it."""

    #: "host:port" of the client.
    peer: str
    listener_name: str
    #: Numeric address of the client.
    peer_host: str = "?"
    security_protocol: str = "PLAINTEXT"
    principal: str = ANONYMOUS
