"""PURE. Replication throttles (KIP-73): limit the rate at which listed replicas are copied.

A reassignment copies whole replicas; a throttle leaves bandwidth for clients. There are two sides.
Each has a rate for this broker and a list of replicas per topic:

* *leader*: limits fetches by followers on other brokers. While the quota is overdrawn, the response
  omits records of a listed partition, unless the follower is in sync.
* *follower*: limits fetches by this broker. While the quota is overdrawn, a listed replica is not
  fetched, unless it has caught up.

Bytes of listed replicas count even if they were exempt, so that the rate limits all of them.
In-sync replicas are never delayed: that would delay acknowledgements, not background work.
One fetch may overdraw a quota; later fetches wait until the debt is paid.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.core.config import DynamicBrokerConfig
from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.core.loop.timing import TokenBucket
from kraftjbod.core.topic_config import ThrottledReplicas, TopicConfig


class ReplicationQuota:
    """A replication throttle (KIP-73): a rate in bytes per second for the listed replicas of this
    broker, either as leader or as follower.

    ``listed`` returns the throttled replicas of a topic. ``now_ms`` is monotonic in all methods.
    """

    def __init__(
        self, *, broker_id: BrokerId, listed: Callable[[str], ThrottledReplicas], now_ms: int
    ) -> None:
        self._broker_id = broker_id
        self._listed = listed
        self._bucket = TokenBucket(MAX_LONG, now_ms)

    def __repr__(self) -> str:
        return f"<ReplicationQuota {self._bucket!r}>"

    def set_rate(self, bytes_per_second: int, now_ms: int) -> None:
        """Set the rate; :data:`MAX_LONG` means no throttle."""
        self._bucket.set_rate(bytes_per_second, now_ms)

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Return whether the replica is listed and a rate is set, so that its bytes are charged to
        the quota.
        """
        if self._bucket.per_second == MAX_LONG:
            return False
        topic, partition = topic_partition
        return self._listed(topic).holds(partition, self._broker_id)

    def spend(self, size_bytes: int, now_ms: int) -> None:
        """Count ``size_bytes`` of throttled replicas against the rate. The quota may be overdrawn
        afterwards; see :meth:`wait_ms`.
        """
        self._bucket.spend(size_bytes, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """Return how many milliseconds throttled replicas must wait; 0 if the quota is not
        overdrawn."""
        return self._bucket.wait_ms(now_ms)


class ReplicationQuotas:
    """The replication throttles of this broker, one as leader and one as follower.

    ``topic_config`` returns the present configuration of a topic, which lists the throttled
    replicas.
    """

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
    """Decides which throttled replicas of one fetch loop may be fetched.

    At most ``max_turns`` replicas have a turn at a time, so that one response overdraws the quota
    by a bounded number of bytes. A replica's turn ends when its records have arrived or it has
    caught up. No turn begins while the quota is overdrawn.
    """

    def __init__(self, quota: ReplicationQuota, max_turns: int) -> None:
        assert max_turns >= 1, max_turns
        self._quota = quota
        self._max_turns = max_turns
        #: In the order in which the turns began.
        self._having: dict[TopicPartition, None] = {}

    def begin_turn(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Give the replica a turn, unless the quota is overdrawn or ``max_turns`` other replicas
        have one. Return whether it may be fetched now: False while the quota is overdrawn, even if
        it has a turn. ``now_ms`` is monotonic.
        """
        if self._quota.wait_ms(now_ms) > 0:
            return False
        if topic_partition not in self._having and len(self._having) >= self._max_turns:
            return False
        self._having[topic_partition] = None
        return True

    def end_turn(self, topic_partition: TopicPartition) -> None:
        """End the replica's turn: it was fetched, has caught up, or is no longer followed. No
        effect if it has no turn.
        """
        self._having.pop(topic_partition, None)

    def end_all(self) -> list[TopicPartition]:
        """End all turns; return the replicas that had one."""
        had, self._having = list(self._having), {}
        return had
