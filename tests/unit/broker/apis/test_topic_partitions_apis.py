"""DescribeTopicPartitions over a real listener."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId, TopicId
from kraftjbod.core.metadata_version import ELIGIBLE_LEADER_REPLICAS_VERSION
from kraftjbod.metadata.records import FeatureLevelRecord, PartitionChangeRecord
from kraftjbod.protocol.messages import DescribeTopicPartitionsRequest
from tests.unit.broker.broker_rig import TOPIC_ID, BrokerRig, brokers, partition, topic

KIND = DescribeTopicPartitionsRequest
OTHER_ID = TopicId(b"o" * 16)


async def _two_topics(rig: BrokerRig) -> None:
    await rig.follow(
        topic("b"),
        *(partition(index) for index in range(3)),
        topic("a", OTHER_ID),
        *(partition(index, topic_id=OTHER_ID) for index in range(2)),
    )


def _asking(*names: str, **more: Any) -> Any:
    return KIND(topics=[KIND.TopicRequest(name=name) for name in names], **more)


async def _pages(rig: BrokerRig, *names: str, limit: int) -> list[list[tuple[str, int]]]:
    pages, cursor = [], None
    while True:
        answer = await rig.ask(_asking(*names, response_partition_limit=limit, cursor=cursor))
        pages.append([(t.name, p.partition_index) for t in answer.topics for p in t.partitions])
        if answer.next_cursor is None:
            return pages
        cursor = KIND.Cursor(
            topic_name=answer.next_cursor.topic_name,
            partition_index=answer.next_cursor.partition_index,
        )


async def test_describe_topic_partitions_returns_eligible_and_last_known_leader_replicas() -> None:
    """KIP-966"""
    async with brokers(2) as (rig, _):
        elr = FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=1)
        change = PartitionChangeRecord(
            topic_id=TOPIC_ID,
            partition_id=0,
            isr=(),
            leader=BrokerId(-1),
            elr=(BrokerId(1), BrokerId(2)),
            last_known_elr=(BrokerId(2),),
        )
        await rig.follow(elr, topic(), partition(replicas=(1, 2)), change)
        (answered,) = (await rig.ask(_asking("t"))).topics
        (part,) = answered.partitions
        assert (answered.topic_id, part.leader_id, part.isr_nodes) == (TOPIC_ID, -1, [])
        assert (part.eligible_leader_replicas, part.last_known_elr) == ([1, 2], [2])
        assert part.error_code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("names", [(), ("b", "a")])
async def test_describe_topic_partitions_pages_return_each_partition_once_in_order(
    limit: int, names: tuple[str, ...]
) -> None:
    async with brokers() as (rig,):
        await _two_topics(rig)
        pages = await _pages(rig, *names, limit=limit)
        found = [one for page in pages for one in page]
        assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
        assert all(len(page) <= max(1, limit) for page in pages)


async def test_describe_topic_partitions_accepts_cursor_at_a_deleted_partition() -> None:
    async with brokers() as (rig,):
        await _two_topics(rig)
        gone = KIND.Cursor(topic_name="aa", partition_index=7)
        answer = await rig.ask(_asking(cursor=gone))
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("b", 3)]
        beyond = KIND.Cursor(topic_name="b", partition_index=3)
        answer = await rig.ask(_asking(cursor=beyond))
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("b", 0)]


@pytest.mark.parametrize(("name", "index"), [("b", 0), ("a", -1)])
async def test_describe_topic_partitions_rejects_a_cursor_before_the_first_topic_or_partition(
    name: str, index: int
) -> None:
    async with brokers() as (rig,):
        await _two_topics(rig)
        cursor = KIND.Cursor(topic_name=name, partition_index=index)
        (answered,) = (await rig.ask(_asking("a", cursor=cursor))).topics
        assert (answered.name, answered.error_code) == ("a", ErrorCode.INVALID_REQUEST)


async def test_describe_topic_partitions_unknown_names_return_errors_in_sorted_order() -> None:
    async with brokers() as (rig,):
        await _two_topics(rig)
        answer = await rig.ask(_asking("nope", "a", "a b"))
        assert [(t.name, t.error_code) for t in answer.topics] == [
            ("a", ErrorCode.NONE),
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
