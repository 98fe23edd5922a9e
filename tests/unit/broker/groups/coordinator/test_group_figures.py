"""Metrics of groups: counts by state, rebalances and offsets."""

from __future__ import annotations

import asyncio

from kraftjbod.broker.groups.records.group_records import CommittedOffset, OffsetFact
from kraftjbod.core.ids import TopicPartition
from kraftjbod.metadata.records import RemoveTopicRecord
from kraftjbod.protocol.messages import DeleteGroupsRequest
from tests.unit.broker.broker_rig import TOPIC_ID, BrokerRig, partition
from tests.unit.broker.gates import until
from tests.unit.broker.groups.group_rig import (
    commit,
    committing,
    consumer,
    consumer_coordinator,
    coordinator,
    enter,
    join,
)


def figures(rig: BrokerRig, *names: str) -> tuple[float, ...]:
    snapshot = rig.around.metrics.snapshot()
    return tuple(snapshot[name] for name in names)


async def test_group_metrics_count_classic_groups_by_state() -> None:
    states = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable")
    names = [f"NumGroups{state}" for state in states]
    async with coordinator() as rig:
        assert figures(rig, *names, "CompletedRebalancesPerSec") == (0, 0, 0, 0, 0)
        # A group with commits only is empty.
        request = commit(1)
        request.group_id = "h"
        await rig.ask(request, 9)
        member_id, _ = await enter(rig)
        assert figures(rig, *names, "CompletedRebalancesPerSec") == (1, 0, 0, 1, 1)
        pending_join = await rig.ask(join(), 8)
        waiting = asyncio.ensure_future(rig.ask(join(pending_join.member_id), 8))
        await until(lambda: figures(rig, *names) == (1, 1, 0, 0))
        again = asyncio.ensure_future(rig.ask(join(member_id), 8))
        await asyncio.gather(waiting, again)
        assert figures(rig, *names, "CompletedRebalancesPerSec") == (1, 0, 1, 0, 1)
        assert figures(rig, "NumGroups", "NumGroupMembers", "NumConsumerGroups") == (2, 2, 0)


async def test_group_metrics_count_consumer_groups_by_state() -> None:
    states = ("Empty", "Assigning", "Reconciling", "Stable")
    names = [f"NumConsumerGroups{state}" for state in states]
    async with consumer_coordinator() as rig:
        await rig.ask(consumer("a"), 1)
        assert figures(rig, *names, "ConsumerGroupRebalancesPerSec") == (0, 0, 0, 1, 1)
        # The next member waits for a revoked partition or for the assignment interval.
        await rig.ask(consumer("b"), 1)
        assert figures(rig, "ConsumerGroupRebalancesPerSec") == (2,)
        assert sum(figures(rig, *names[1:3])) == 1
        for member_id in ("a", "b"):
            assert (await rig.ask(consumer(member_id, -1), 1)).error_code == 0
        assert figures(rig, *names) == (1, 0, 0, 0)
        assert figures(rig, "NumGroupsEmpty") == (0,)


async def test_group_metrics_count_commits_deletions_and_expirations() -> None:
    names = ("OffsetCommitsPerSec", "OffsetDeletionsPerSec", "OffsetExpirationsPerSec")
    async with coordinator(
        offsets_retention_minutes="1", offsets_retention_check_interval_ms="20"
    ) as rig:
        assert figures(rig, *names) == (0, 0, 0)
        await rig.follow(partition(1))
        assert await committing(rig, 1) == await committing(rig, 2) == 0
        assert await committing(rig, 1, index=9) != 0, "refused commits do not count"
        assert figures(rig, "NumOffsets", *names) == (1, 2, 0, 0)
        await rig.ask(DeleteGroupsRequest(groups_names=["g"]))
        assert figures(rig, "NumOffsets", *names) == (0, 2, 1, 0)
        assert await committing(rig, 1) == await committing(rig, 1, index=1) == 0
        groups = rig.parts.coordinator.find("g")
        where = TopicPartition("t", 0)
        old = groups.offsets("g")[where]
        older = CommittedOffset(offset=1, commit_ms=old.commit_ms - 60_001)
        groups.take(OffsetFact("g", where, older))
        rig.tasks.start(rig.parts.coordinator.run_expirations(), "expiry")
        await until(lambda: len(groups.offsets("g")) == 1)
        assert figures(rig, *names) == (4, 1, 1)
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        await until(lambda: not groups.offsets("g"))
        assert figures(rig, *names) == (4, 2, 1)
