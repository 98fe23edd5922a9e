"""PURE. ``RequestContext``: the data about a request besides its body."""

from __future__ import annotations

from dataclasses import dataclass

from kraftjbod.net.connection_context import ConnectionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What a handler knows about a request besides its body."""

    connection: ConnectionContext
    api_version: int
    client_id: str | None

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name
