"""``FollowerSession``: which partitions a fetch request names or forgets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kraftjbod.broker.following.follower_session import FetchLimits, FollowerSession
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicPartition
from tests.unit.broker.broker_rig import TOPIC, brokers, partition, topic

LIMITS = FetchLimits(
    max_wait_ms=500, min_bytes=1, max_bytes=1000, max_partition_bytes=100, timeout_ms=1000
)
COUNT = 3


class Rig:
    """A session, and replicas to follow."""

    def __init__(self, replicas: list[HostedReplica]) -> None:
        self.replicas = replicas
        self.session = FollowerSession(broker_id=BrokerId(1), limits=LIMITS)

    def fetch(self) -> tuple[list[int], list[int]]:
        """Name all unreported partitions; return the named and the forgotten partitions."""
        ready = list(self.session.unreported)
        request: Any = self.session.request(ready, broker_epoch=BrokerEpoch(5), wait_ms=7)
        named = [p.partition for t in request.topics for p in t.partitions]
        forgotten = [i for t in request.forgotten_topics_data for i in t.partitions]
        return named, forgotten


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with brokers() as (broker,):
        parts = (partition(i, replicas=(1, 2), leader=2) for i in range(COUNT))
        await broker.follow(topic(), *parts)
        broker.parts.fetchers.close()
        yield Rig([broker.parts.hosted.require(TopicPartition(TOPIC, i)) for i in range(COUNT)])


async def test_follower_session_names_all_partitions_once_then_only_changed_ones(rig: Rig) -> None:
    for replica in rig.replicas:
        rig.session.follow(replica)
    assert (rig.session.has_reported, len(rig.session)) == (False, COUNT)
    assert rig.fetch() == ([0, 1, 2], [])
    assert rig.session.has_reported
    assert rig.fetch() == ([], [])
    one = rig.session.named(rig.replicas[1].key)
    assert one is not None
    rig.session.name(one)
    assert rig.fetch() == ([1], [])


async def test_dropped_partition_is_forgotten_once_and_its_responses_are_ignored(rig: Rig) -> None:
    rig.session.follow(rig.replicas[0])
    rig.fetch()
    rig.session.drop(rig.replicas[0].topic_partition)
    assert rig.session.named(rig.replicas[0].key) is None
    assert rig.fetch() == ([], [0])
    assert rig.fetch() == ([], [])


async def test_partition_followed_again_is_named_and_not_forgotten(rig: Rig) -> None:
    rig.session.follow(rig.replicas[0])
    rig.fetch()
    rig.session.follow(rig.replicas[0])
    assert rig.fetch() == ([0], [])


async def test_restarted_follower_session_names_all_partitions_again(rig: Rig) -> None:
    for replica in rig.replicas:
        rig.session.follow(replica)
    rig.fetch()
    rig.session.was_answered(77)
    request: Any = rig.session.request([], broker_epoch=BrokerEpoch(5), wait_ms=7)
    assert (request.session_id, request.session_epoch) == (77, 1)
    rig.session.restart_session()
    assert not rig.session.has_reported
    request = rig.session.request([], broker_epoch=BrokerEpoch(5), wait_ms=-7)
    assert (request.session_id, request.session_epoch, request.max_wait_ms) == (77, 0, 0)
    assert rig.fetch() == ([0, 1, 2], [])


async def test_name_last_moves_a_partition_to_the_end_of_the_request(rig: Rig) -> None:
    for replica in rig.replicas:
        rig.session.follow(replica)
    first = rig.session.get(rig.replicas[0].topic_partition)
    assert first is not None
    rig.session.name_last(first)
    assert rig.fetch() == ([1, 2, 0], [])


async def test_former_state_of_a_partition_followed_again_is_ignored(rig: Rig) -> None:
    rig.session.follow(rig.replicas[0])
    old = rig.session.get(rig.replicas[0].topic_partition)
    assert old is not None
    rig.session.follow(rig.replicas[0])
    assert not rig.session.is_followed(old)
    rig.session.drop(rig.replicas[0].topic_partition)
    rig.session.name(old)
    assert rig.fetch() == ([], [])
