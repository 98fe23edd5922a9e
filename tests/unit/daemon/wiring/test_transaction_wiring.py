"""Wiring of the transaction coordinator: leaders that receive markers, from the metadata."""

from __future__ import annotations

from kraftjbod.core.ids import NO_LEADER, TopicPartition
from tests.unit.broker.broker_rig import TP, brokers, partition, topic


async def test_leader_of_fenced_broker_is_no_leader() -> None:
    async with brokers() as (rig,):
        leader_of = rig.wiring.transactions._leader_of
        await rig.follow(topic(), partition(), partition(1, replicas=(1, 2), leader=2))
        assert leader_of(TP) == 1
        # Broker 2 is fenced.
        assert leader_of(TopicPartition("t", 1)) == NO_LEADER
        assert leader_of(TopicPartition("t", 2)) is None
