"""PURE. ``FollowUps``: partitions that a change of their broker concerns, and that wait for a turn.

What is decided about them goes by the state of their turn, so nothing is lost when they are
forgotten: the next controller finds them in the state (replication_control.py).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from kraftjbod.core.ids import BrokerId, TopicIdPartition


class FollowUps:
    """Of each broker in the order in which they came; a partition waits once for each broker."""

    def __init__(self) -> None:
        self._waiting: dict[BrokerId, deque[TopicIdPartition]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, broker_id: BrokerId, keys: Collection[TopicIdPartition]) -> None:
        if keys:
            before: Iterable[TopicIdPartition] = self._waiting.pop(broker_id, ())
            self._waiting[broker_id] = deque(dict.fromkeys(itertools.chain(before, keys)))

    def first(self, count: int) -> tuple[BrokerId, Sequence[TopicIdPartition]]:
        """The next ones, ``count`` at most, all of one broker; there have to be some."""
        broker_id, keys = next(iter(self._waiting.items()))
        return broker_id, tuple(itertools.islice(keys, count))

    def drop(self, broker_id: BrokerId, count: int) -> None:
        """The first ``count`` of that broker have had their turn; other brokers go first now."""
        keys = self._waiting.pop(broker_id)
        for _ in range(count):
            keys.popleft()
        if keys:
            self._waiting[broker_id] = keys

    def clear(self) -> None:
        self._waiting.clear()
