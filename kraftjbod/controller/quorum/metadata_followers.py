"""PURE. ``MetadataFollowers``: brokers that follow the metadata log, and their offsets.

Kafka calls them observers. Their fetches do not count for commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kraftjbod.core.ids import BrokerId

#: A follower is forgotten after this long without a fetch, as in Kafka.
SILENT_MS: Final = 300_000


@dataclass(slots=True)
class Follower:
    """The progress of one broker that fetches the metadata log.

    ``next_offset`` is the offset of the last fetch, and ``end_at_fetch`` the offset after the log's
    last entry at that time. Times are wall-clock milliseconds, -1 if unknown.
    """

    next_offset: int
    last_fetch_ms: int
    end_at_fetch: int
    last_caught_up_ms: int = -1


class MetadataFollowers:
    """The brokers that follow the metadata log during one leader's term."""

    def __init__(self) -> None:
        self._followers: dict[BrokerId, Follower] = {}

    def fetched(self, broker: BrokerId, next_offset: int, *, end: int, wall_ms: int) -> None:
        """Note a fetch from ``next_offset`` on.

        The broker is caught up if it has the whole log, or the log as of its previous fetch.

        :param end: offset after the last entry of the log.
        """
        before = self._followers.get(broker)
        now = Follower(next_offset, wall_ms, end)
        if next_offset >= end:
            now.last_caught_up_ms = wall_ms
        elif before is not None:
            caught_up = next_offset >= before.end_at_fetch
            now.last_caught_up_ms = before.last_fetch_ms if caught_up else before.last_caught_up_ms
        self._followers[broker] = now

    def active_followers(self, wall_ms: int) -> dict[BrokerId, Follower]:
        """Return the followers that fetched within ``SILENT_MS``, by broker id, and forget the
        others."""
        self._followers = {
            broker: follower
            for broker, follower in self._followers.items()
            if wall_ms - follower.last_fetch_ms <= SILENT_MS
        }
        return dict(sorted(self._followers.items()))

    def forget(self) -> None:
        """Forget all followers, because the leadership was lost."""
        self._followers.clear()
