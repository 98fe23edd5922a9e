"""PURE. Replication throttles (KIP-73): how fast listed replicas may be copied between brokers.

A reassignment copies whole replicas; a throttle leaves bandwidth to clients meanwhile. Two sides,
each with a rate of this broker and, per topic, a list of replicas:

* *leader*: what followers on other brokers may fetch from here. Data of a listed partition is left
  out of the answer while the quota is overdrawn, unless the follower is in sync.
* *follower*: what this broker may fetch. A listed replica is not asked for while the quota is
  overdrawn, unless it has caught up.

Bytes of listed replicas count whether they were held up or not, so that a rate means what it says.
In-sync replicas are never held up: that would cost acknowledgements, not background work.
A quota may be overdrawn by what one fetch brings; the debt is waited for afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.core.config import DynamicBrokerConfig
from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.core.loop.timing import TokenBucket
from kraftjbod.core.topic_config import ThrottledReplicas, TopicConfig


class ReplicationQuota:
    """One side. ``listed`` gives a topic's list."""

    def __init__(
        self, *, broker_id: BrokerId, listed: Callable[[str], ThrottledReplicas], now_ms: int
    ) -> None:
        self._broker_id = broker_id
        self._listed = listed
        self._bucket = TokenBucket(MAX_LONG, now_ms)

    def __repr__(self) -> str:
        return f"<ReplicationQuota {self._bucket!r}>"

    def set_rate(self, bytes_per_second: int, now_ms: int) -> None:
        """:data:`MAX_LONG` stands for no throttle."""
        self._bucket.set_rate(bytes_per_second, now_ms)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether the replica counts, and may have to wait."""
        if self._bucket.bytes_per_second == MAX_LONG:
            return False
        topic, partition = topic_partition
        return self._listed(topic).holds(partition, self._broker_id)

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """So many bytes of throttled replicas were copied."""
        self._bucket.spend(size_bytes, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """How long throttled replicas have to wait; 0 if they need not."""
        return self._bucket.wait_ms(now_ms)


class ReplicationQuotas:
    """Both sides of this broker. ``topic_config`` gives what holds for a topic now."""

    def __init__(
        self, *, broker_id: BrokerId, topic_config: Callable[[str], TopicConfig], now_ms: int
    ) -> None:
        self.leader = ReplicationQuota(
            broker_id=broker_id,
            listed=lambda topic: topic_config(topic).leader_replication_throttled_replicas,
            now_ms=now_ms,
        )
        self.follower = ReplicationQuota(
            broker_id=broker_id,
            listed=lambda topic: topic_config(topic).follower_replication_throttled_replicas,
            now_ms=now_ms,
        )

    def set_rates(self, config: DynamicBrokerConfig, now_ms: int) -> None:
        self.leader.set_rate(config.leader_replication_throttled_rate, now_ms)
        self.follower.set_rate(config.follower_replication_throttled_rate, now_ms)


class FetchTurns:
    """Who of the throttled replicas of one fetch loop may be fetched: they take turns.

    At most ``max_turns`` have one at a time, so that one answer overdraws the quota by a bounded
    number of bytes; a turn ends with the bytes that it brought. While the quota is overdrawn,
    nobody has one.
    """

    def __init__(self, quota: ReplicationQuota, max_turns: int) -> None:
        assert max_turns >= 1, max_turns
        self._quota = quota
        self._max_turns = max_turns
        #: In the order in which they came to it.
        self._having: dict[TopicPartition, None] = {}

    def begin(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Whether a throttled replica has a turn from now on, or has one already."""
        if self._quota.wait_ms(now_ms) > 0:
            return False
        if topic_partition not in self._having and len(self._having) >= self._max_turns:
            return False
        self._having[topic_partition] = None
        return True

    def end(self, topic_partition: TopicPartition) -> None:
        """The replica was fetched, caught up, or is not followed any more."""
        self._having.pop(topic_partition, None)

    def end_all(self) -> list[TopicPartition]:
        """Take every turn away; those that had one."""
        had, self._having = list(self._having), {}
        return had
