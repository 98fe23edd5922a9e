"""PURE. ``MetadataFollowers``: which brokers follow the metadata log, and how far they are.

Kafka calls them observers: their fetches are heard of and never counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kraftjbod.core.ids import BrokerId

#: Of silence, after which a follower is forgotten; Kafka's.
SILENT_MS: Final = 300_000


@dataclass(slots=True)
class Follower:
    """Offsets are of the next entry; times are wall time, -1 if there was none."""

    next_offset: int
    last_fetch_ms: int
    end_at_fetch: int
    last_caught_up_ms: int = -1


class MetadataFollowers:
    """As one leader saw them in its term."""

    def __init__(self) -> None:
        self._followers: dict[BrokerId, Follower] = {}

    def fetched(self, broker: BrokerId, next_offset: int, *, end: int, wall_ms: int) -> None:
        """``broker`` asks for entries from ``next_offset`` on, of a log that ends before ``end``.

        It is caught up when it has all that is there, or had all that was there the last time.
        """
        before = self._followers.get(broker)
        now = Follower(next_offset, wall_ms, end)
        if next_offset >= end:
            now.last_caught_up_ms = wall_ms
        elif before is not None:
            caught_up = next_offset >= before.end_at_fetch
            now.last_caught_up_ms = before.last_fetch_ms if caught_up else before.last_caught_up_ms
        self._followers[broker] = now

    def of_now(self, wall_ms: int) -> dict[BrokerId, Follower]:
        """Those that were heard of lately."""
        self._followers = {
            broker: follower
            for broker, follower in self._followers.items()
            if wall_ms - follower.last_fetch_ms <= SILENT_MS
        }
        return dict(sorted(self._followers.items()))

    def forget(self) -> None:
        """Another one leads."""
        self._followers.clear()
