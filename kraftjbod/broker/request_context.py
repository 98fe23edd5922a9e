"""PURE. ``RequestContext``: what a handler may know of a request besides its body."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """One request on one listener."""

    listener_name: str
    api_version: int
    client_id: str | None
