"""PURE. The client for which a broker is handling a request, for requests to the controller.

A context variable carries it from the listener to :class:`ControllerChannel`, because each of the
layers in between would only pass it on. It is set only if the broker has an authorizer, and only in
the task of the client's request.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, NamedTuple


class ForwardedClient(NamedTuple):
    """The client on whose behalf a broker forwards a request: its principal (such as
    ``User:alice``) and its numeric address.
    """

    principal: str
    host: str


FORWARDED_CLIENT: Final[ContextVar[ForwardedClient | None]] = ContextVar(
    "forwarded_client", default=None
)
