"""Regular expressions of clients: what they match, and that none takes long."""

from __future__ import annotations

import pytest

from kraftjbod.broker.groups.consumer.group_topics import ClusterTopics, check_regex, matching
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from tests.unit.broker.broker_rig import TOPIC_ID, partition, topic
from tests.unit.broker.groups.consumer.consumer_scene import Topics


def test_an_expression_matches_whole_names():
    topics = Topics(orders=1, orders2=1, myorders=1)
    assert matching("orders", topics) == {"orders"}
    assert matching("orders.*", topics) == {"orders", "orders2"}
    assert matching("(a+)+b", Topics(**{"a" * 200: 1})) == frozenset(), "in time that is linear"


@pytest.mark.parametrize("text", ["a(", "[z-a]", "(?=a)", "a" * 20_000])
def test_what_is_no_expression_is_said(text: str):
    with pytest.raises(OperatingError) as refused:
        check_regex(text)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_hash_changes_with_partitions():
    state = MetadataState()
    state.replay([topic(), partition()], offset=1, epoch=1, delta=MetadataDelta())
    topics = ClusterTopics(state)
    before = topics.hash_of({"t", "absent"})
    assert (topics.hash_of({"absent"}), topics.name(TOPIC_ID)) == (0, "t")
    state.replay([partition(index=1)], offset=2, epoch=1, delta=MetadataDelta())
    assert topics.version == 2 and topics.hash_of({"t"}) not in (0, before)
