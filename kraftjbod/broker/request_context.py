"""PURE. ``RequestContext``: the data about a request besides its body."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kraftjbod.broker.access import Access
from kraftjbod.net.connection_context import ConnectionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The data that a handler needs about a request besides its body: the connection, the header's
    version and client id, and the client's rights and quota.
    """

    connection: ConnectionContext
    api_version: int
    client_id: str | None
    access: Access | None = None
    """The rights of the client; None if the broker has no authorizer."""
    is_over_quota: bool = False
    """The client has to wait for its quota, so that a fetch returns no records."""

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name

    def with_access(self, access: Access) -> RequestContext:
        return replace(self, access=access)
