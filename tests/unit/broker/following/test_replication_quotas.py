"""KIP-73: throttled replicas, waiting times, and the average rate of a quota."""

from __future__ import annotations

from kraftjbod.broker.following.replication_quotas import (
    FetchTurns,
    ReplicationQuota,
    ReplicationQuotas,
)
from kraftjbod.core.config import DynamicBrokerConfig
from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.core.topic_config import ThrottledReplicas, TopicConfig

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = BrokerId(7)


def quota(rate: int = 1000, listed: str = "0:7") -> ReplicationQuota:
    made = ReplicationQuota(
        broker_id=ME, listed=lambda _: ThrottledReplicas.parse(listed), now_ms=0
    )
    made.set_rate(rate, 0)
    return made


def test_is_throttled_only_for_listed_replicas_of_this_broker() -> None:
    assert quota().is_throttled(T0)
    assert not quota().is_throttled(T1)
    assert not quota(listed="0:8").is_throttled(T0)
    assert quota(listed="*").is_throttled(T1)


def test_is_throttled_without_a_rate_is_false() -> None:
    assert not quota(rate=MAX_LONG, listed="*").is_throttled(T0)


def test_wait_ms_covers_the_debt_and_shrinks_with_a_higher_rate() -> None:
    throttle = quota(rate=1000)
    throttle.spend(5000, 0)
    assert throttle.wait_ms(0) == 4000
    throttle.set_rate(4000, 0)
    assert throttle.wait_ms(0) == 1000
    throttle.set_rate(MAX_LONG, 0)
    assert throttle.wait_ms(1) == 0


def test_leader_and_follower_quotas_have_separate_lists_and_rates() -> None:
    config = TopicConfig(
        leader_replication_throttled_replicas=ThrottledReplicas.parse("0:7"),
        follower_replication_throttled_replicas=ThrottledReplicas.parse("1:7"),
    )
    quotas = ReplicationQuotas(broker_id=ME, topic_config=lambda _: config, now_ms=0)
    assert not quotas.leader.is_throttled(T0)
    quotas.set_rates(
        DynamicBrokerConfig(
            leader_replication_throttled_rate=10, follower_replication_throttled_rate=20
        ),
        0,
    )
    assert [quotas.leader.is_throttled(tp) for tp in (T0, T1)] == [True, False]
    assert [quotas.follower.is_throttled(tp) for tp in (T0, T1)] == [False, True]
    quotas.follower.spend(60, 0)
    assert (quotas.leader.wait_ms(0), quotas.follower.wait_ms(0)) == (0, 2000)


def test_fetch_turns_are_limited_and_end_when_the_quota_is_overdrawn() -> None:
    throttle = quota(listed="*")
    turns = FetchTurns(throttle, max_turns=2)
    replicas = [TopicPartition("t", i) for i in range(3)]
    assert [turns.begin_turn(replica, 0) for replica in replicas] == [True, True, False]
    assert turns.begin_turn(replicas[0], 0)
    turns.end_turn(replicas[0])
    assert turns.begin_turn(replicas[2], 0)
    throttle.spend(2000, 0)
    assert not turns.begin_turn(replicas[1], 0)
    assert set(turns.end_all()) == {replicas[1], replicas[2]}


def test_quota_keeps_the_rate_and_serves_all_replicas() -> None:
    """Fifty replicas share 1000 bytes per second for a minute of a simulated clock."""
    throttle, now_ms = quota(rate=1000, listed="*"), 0
    turns = FetchTurns(throttle, max_turns=3)
    waiting = [TopicPartition("t", i) for i in range(50)]
    fetched = dict.fromkeys(waiting, 0)
    while now_ms < 60_000:
        if throttle.wait_ms(now_ms) > 0:
            turns.end_all()
        answered = [replica for replica in waiting if turns.begin_turn(replica, now_ms)]
        for replica in answered:
            fetched[replica] += 300
            throttle.spend(300, now_ms)
            turns.end_turn(replica)
            waiting.remove(replica)
            waiting.append(replica)
        now_ms += throttle.wait_ms(now_ms) or 5
    total = sum(fetched.values())
    # The total includes the burst of the first second and the last overdrawn answers.
    assert 60_000 <= total <= 60_000 + 1000 + 3 * 300
    assert min(fetched.values()) > 0
    assert max(fetched.values()) - min(fetched.values()) <= 300
