"""PURE. ``PlainCredential``: user and password of a node or a tool that logs in on the RPC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

PLAIN: Final = "PLAIN"
#: Share of a session's lifetime after which a client logs in again; Kafka's is 0.85 to 0.95.
RENEWAL_SHARE: Final = 0.85


@dataclass(frozen=True, slots=True)
class PlainCredential:
    """User and password with which this side logs in. Its representation shows no password."""

    mechanism: ClassVar = PLAIN

    user: str
    password: str = field(repr=False)

    @property
    def token(self) -> bytes:
        """The message of PLAIN (RFC 4616), without an authorization id."""
        return f"\0{self.user}\0{self.password}".encode()
