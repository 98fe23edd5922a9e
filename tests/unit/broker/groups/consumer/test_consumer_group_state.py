"""``GroupChanges`` reverts decisions; test_consumer_group_events.py covers all other behaviour."""

from __future__ import annotations

from kraftjbod.broker.groups.consumer.consumer_group_state import ConsumerGroupState, GroupChanges
from kraftjbod.broker.groups.records.consumer_group_records import EpochFact, PartitionMetadataFact
from tests.unit.broker.groups.consumer.consumer_scene import ConsumerScene, two


def test_group_changes_of_a_whole_group_can_be_reverted_or_removed() -> None:
    scene, _ = two()
    state = ConsumerGroupState("g")
    changes = GroupChanges(state)
    changes.put(*scene.group.state.facts())
    assert state.holders == scene.group.state.holders and state.names == scene.group.state.names
    changes.take_back()
    assert not state.is_written and not state.holders and not state.names
    changes.put(*scene.group.state.facts())
    changes.put(*state.end())
    assert not state.is_written and not state.holders


def test_partition_metadata_of_older_kafka_is_removed_with_the_next_epoch() -> None:
    scene = ConsumerScene()
    scene.group.load(PartitionMetadataFact("g", is_there=True))
    scene.join("a")
    at = scene.log.index(PartitionMetadataFact("g", is_there=False))
    assert isinstance(scene.log[at + 1], EpochFact)
