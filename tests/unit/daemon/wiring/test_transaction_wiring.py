"""Whom markers go to, as metadata has it."""

from __future__ import annotations

from kraftjbod.core.ids import NO_LEADER, TopicPartition
from tests.unit.broker.broker_rig import TP, brokers, partition, topic


async def test_a_leader_that_cannot_be_reached_is_none() -> None:
    async with brokers() as (rig,):
        leader_of = rig.wiring.transactions._leader_of
        await rig.follow(topic(), partition(), partition(1, replicas=(1, 2), leader=2))
        assert leader_of(TP) == 1
        # It is fenced.
        assert leader_of(TopicPartition("t", 1)) == NO_LEADER
        assert leader_of(TopicPartition("t", 2)) is None
