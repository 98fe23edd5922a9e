"""One partition of a produce, without the wire."""

from __future__ import annotations

import asyncio

from kraftjbod.broker.replica_appends import ReplicaAppends
from kraftjbod.broker.topic_configs import TopicConfigs
from kraftjbod.core.errors import ErrorCode
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, partition, topic
from tests.unit.broker.scripted_controller import RealClock


def appends_of(rig: BrokerRig) -> ReplicaAppends:
    return ReplicaAppends(
        replicas=rig.parts.hosted,
        topic_configs=TopicConfigs(defaults=rig.config.topic_defaults(), cache=rig.parts.cache),
        clock=RealClock(),
        metrics=rig.around.metrics,
    )


async def test_appends_that_are_queued_before_any_wait_keep_their_order():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends = appends_of(rig)
        pending = [appends.append(TP, batch(), acks=1, timeout_ms=1_000) for _ in range(5)]
        outcomes = await appends.outcomes(pending, suspect_after_ms=60_000)
        assert [outcome.base_offset for outcome in outcomes] == [0, 1, 2, 3, 4]


async def test_a_leader_that_was_replaced_while_it_wrote_does_not_acknowledge():
    """Checked again after the wait: what it wrote may be cut off by the new leader."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        pending = appends_of(rig).append(TP, batch(), acks=1, timeout_ms=1_000)
        rig.replay(partition(replicas=(1, 2), leader=2, epoch=1))
        assert (await pending.done).code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_an_append_takes_effect_even_if_nobody_waits_any_more():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends = appends_of(rig)
        pending = appends.append(TP, batch(2), acks=-1, timeout_ms=1_000)
        waiting = asyncio.create_task(appends.outcomes([pending], suspect_after_ms=60_000))
        await asyncio.sleep(0)
        waiting.cancel()
        replica = rig.parts.hosted.get(TP)
        assert replica is not None and replica.partition is not None
        while replica.partition.high_watermark != 2:
            await asyncio.sleep(0.001)


async def test_too_few_in_sync_replicas_are_told_before_anything_is_written():
    async with brokers(min_insync_replicas="2") as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        appends = appends_of(rig)
        refused = await appends.append(TP, batch(), acks=-1, timeout_ms=1_000).done
        assert refused.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await appends.append(TP, batch(), acks=1, timeout_ms=1_000).done).base_offset == 0


async def test_without_a_follower_an_acks_all_write_ends_at_its_deadline():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        pending = appends_of(rig).append(TP, batch(), acks=-1, timeout_ms=1)
        assert (await pending.done).code is ErrorCode.REQUEST_TIMED_OUT
