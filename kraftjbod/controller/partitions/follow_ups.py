"""PURE. ``FollowUps``: queued partitions that a change of their broker affects.

Each partition is decided by the state at that time. So nothing is lost if the queue is lost: the
next controller finds the partitions in the state (replication_control.py).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from kraftjbod.core.ids import BrokerId, TopicIdPartition


class FollowUps:
    """Partitions that a change of a broker affects and that are not decided yet, in one queue per
    broker.

    A queue keeps the order of arrival and has each partition once. The object is false if all
    queues are empty.
    """

    def __init__(self) -> None:
        self._waiting: dict[BrokerId, deque[TopicIdPartition]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, broker_id: BrokerId, keys: Collection[TopicIdPartition]) -> None:
        if keys:
            before: Iterable[TopicIdPartition] = self._waiting.pop(broker_id, ())
            self._waiting[broker_id] = deque(dict.fromkeys(itertools.chain(before, keys)))

    def first(self, count: int) -> tuple[BrokerId, Sequence[TopicIdPartition]]:
        """Return the first broker with a queue, and at most ``count`` partitions of that queue.

        The partitions stay queued. At least one partition must be queued.
        """
        broker_id, keys = next(iter(self._waiting.items()))
        return broker_id, tuple(itertools.islice(keys, count))

    def drop(self, broker_id: BrokerId, count: int) -> None:
        """Remove the first ``count`` partitions of the broker's queue, and put other brokers
        first."""
        keys = self._waiting.pop(broker_id)
        for _ in range(count):
            keys.popleft()
        if keys:
            self._waiting[broker_id] = keys

    def clear(self) -> None:
        self._waiting.clear()
