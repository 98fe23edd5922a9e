"""``ClusterTopics`` and regular expressions of subscriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kraftjbod.broker.groups.consumer.group_topics import ClusterTopics, check_regex, matching
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicId, Uuid
from kraftjbod.metadata.records import (
    PartitionChangeRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
)
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from tests.unit.broker.broker_rig import TOPIC_ID, dir_of, partition, topic
from tests.unit.broker.groups.consumer.consumer_scene import Topics


def test_regex_matching_compares_whole_topic_names_in_linear_time() -> None:
    topics = Topics(orders=1, orders2=1, myorders=1)
    assert matching("orders", topics) == {"orders"}
    assert matching("orders.*", topics) == {"orders", "orders2"}
    assert matching("(a+)+b", Topics(**{"a" * 200: 1})) == frozenset(), "matching takes linear time"


@pytest.mark.parametrize("text", ["a(", "[z-a]", "(?=a)", "a" * 20_000])
def test_check_regex_rejects_invalid_expressions(text: str) -> None:
    with pytest.raises(OperatingError) as refused:
        check_regex(text)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_topic_hash_changes_with_the_partition_count() -> None:
    state = MetadataState()
    state.replay([topic(), partition()], offset=1, epoch=1, delta=MetadataDelta())
    topics = ClusterTopics(state)
    before = topics.hash_of({"t", "absent"})
    assert (topics.hash_of({"absent"}), topics.name(TOPIC_ID)) == (0, "t")
    state.replay([partition(index=1)], offset=2, epoch=1, delta=MetadataDelta())
    assert topics.version == 2 and topics.hash_of({"t"}) not in (0, before)


def test_topic_layout_changes_with_ids_sizes_replicas_and_racks_of_its_topics_only() -> None:
    state = MetadataState()
    topics = ClusterTopics(state)
    seen: list[object] = []

    def changes_after(*records: Record) -> tuple[bool, bool]:
        """Return whether the layout of all topics has changed, and that of ``t`` and ``absent``."""
        before = topics.layout, topics.layout_of({"t", "absent"})
        state.replay(records, offset=state.offset + 1, epoch=1, delta=MetadataDelta())
        after = topics.layout, topics.layout_of({"absent", "t"})
        seen.append(after[1])
        return before[0] != after[0], before[1] != after[1]

    other = TopicId(b"u" * 16)
    change: dict[str, Any] = {"topic_id": TOPIC_ID, "partition_id": 0}
    broker = RegisterBrokerRecord(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(-1),
        incarnation_id=Uuid(bytes(16)),
        listeners=(),
        rack="a",
        fenced=True,
        in_controlled_shutdown=False,
        log_dirs=(),
    )
    assert changes_after(broker) == (True, True)
    assert changes_after(topic(), partition()) == (True, True)
    assert changes_after(broker) == (False, False), "the broker returned with the same rack"
    assert changes_after(PartitionChangeRecord(leader=BrokerId(2), **change)) == (False, False)
    assert changes_after(topic("u", other), partition(topic_id=other)) == (True, False)
    assert changes_after(partition(1)) == (True, True)
    two, dirs = tuple(map(BrokerId, (1, 2))), (dir_of(1, 1), dir_of(2, 1))
    assert changes_after(PartitionChangeRecord(replicas=two, directories=dirs, **change)) == (
        True,
        True,
    )
    assert changes_after(replace(broker, rack="b")) == (True, True)
    assert changes_after(RemoveTopicRecord(topic_id=TOPIC_ID)) == (True, True)
    assert changes_after(topic("absent", TOPIC_ID)) == (True, True)
    assert len(set(seen)) == 7
