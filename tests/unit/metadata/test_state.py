"""``MetadataState``: replay, deltas and snapshots; ``tests/golden`` has longer transcripts."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.core.ids import MIGRATING_DIR, BrokerId, TopicIdPartition, TopicPartition
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.record_codec import decode_entry, encode_entry
from kraftjbod.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    RemoveTopicRecord,
    ResourceType,
)
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from tests.golden.transcript import World, directory


def _world() -> World:
    world = World()
    for line in (
        "feature 33",
        "controller 100 incarnation=a",
        "controller 100 incarnation=b",
        "controller 101",
        "up 1 dirs=a,b",
        "up 2 dirs=c",
        "topic t replicas=1,2|2,1 retention.ms=1000",
        "assign 1 t-0=a t-1=b",
        "heartbeat 1 offline=a",
        "producer_ids 2",
        "acl TOPIC LITERAL t User:alice * READ ALLOW",
        "acl TOPIC PREFIXED t User:bob * ALL DENY",
        "delete_acl TOPIC LITERAL t User:alice * READ ALLOW",
        "scram alice 1 bob 2",
        "scram alice 2",
        "scram -bob 2",
        "quota user=alice client-id= producer_byte_rate=5 consumer_byte_rate=6",
        "quota user=alice client-id= producer_byte_rate=",
        "quota user=bob producer_byte_rate=5",
        "quota user=bob producer_byte_rate=",
    ):
        list(world.run(line))
    return world


def _rebuilt(state: MetadataState) -> MetadataState:
    records = list(state.snapshot_records())
    assert len(records) == state.snapshot_record_count()
    twin = MetadataState()
    twin.replay(
        decode_entry(encode_entry(records, state.metadata_version)),
        offset=state.offset,
        epoch=state.epoch,
        delta=MetadataDelta(),
    )
    return twin


def test_snapshot_records_rebuild_the_same_state() -> None:
    state = _world().state
    assert vars(_rebuilt(state)) == vars(state)


def test_session_limit_is_kept_by_snapshots_and_by_records_without_it() -> None:
    state = _world().state
    level = FeatureLevelRecord(name="metadata.version", feature_level=30)
    for said, kept in ((0, 10_000), (19_000, 19_000), (0, 19_000)):
        record = dataclasses.replace(level, session_limit_ms=said)
        state.replay([record], offset=state.offset + 1, epoch=1, delta=MetadataDelta())
        assert state.session_limit_ms == kept
        assert vars(_rebuilt(state)) == vars(state)
    assert state.copy().session_limit_ms == 19_000


def test_copy_is_equal_and_independent() -> None:
    world = _world()
    copy, before = world.state.copy(), _rebuilt(world.state)
    list(world.run("grow t 3"))
    list(world.run("delete t"))
    list(world.run("controller 101 incarnation=b"))
    assert vars(copy) == vars(before)


def test_state_finds_topics_and_partitions_by_name_and_id() -> None:
    state = _world().state
    topic = state.topic("t")
    key = TopicIdPartition(topic.topic_id, 1)
    assert state.partition(key) == state.partition_named(TopicPartition("t", 1))
    assert dict(state.partitions())[key] == topic.partitions[1]
    assert state.partition_named(TopicPartition("nope", 1)) is None
    assert state.topic_config("t") == {"retention.ms": "1000"}
    assert state.topic_config("nope") == {}


def test_is_replica_online_requires_broker_and_directory() -> None:
    state = _world().state
    assert state.is_replica_online(BrokerId(1), directory("b"))
    assert not state.is_replica_online(BrokerId(1), directory("a"))
    assert not state.is_replica_online(BrokerId(9), directory("a"))


def test_delta_contains_changed_objects_with_their_previous_values() -> None:
    world = _world()
    state, topic = world.state, world.state.topic("t")
    key = TopicIdPartition(topic.topic_id, 1)
    before = state.partition(key)
    delta = world.managers.replay(
        world.managers.fence_broker(BrokerId(2)).records, offset=state.offset + 1, epoch=1
    )
    assert delta.brokers == {2}
    assert delta.partitions[key] == before
    assert state.partition(key) != before


def test_remove_topic_record_removes_partitions_and_configs() -> None:
    state = _world().state
    topic, delta = state.topic("t"), MetadataDelta()
    state.replay(
        [RemoveTopicRecord(topic_id=topic.topic_id)],
        offset=state.offset + 1,
        epoch=1,
        delta=delta,
    )
    assert delta.deleted_topics == {topic.topic_id: topic}
    assert not delta.partitions
    assert not state.configs
    assert not state.topic_ids


def test_config_record_without_value_removes_the_config() -> None:
    state, delta = _world().state, MetadataDelta()
    record = ConfigRecord(
        resource_type=ResourceType.TOPIC, resource_name="t", name="retention.ms", value=None
    )
    state.replay([record], offset=state.offset + 1, epoch=1, delta=delta)
    assert delta.configs == {(ResourceType.TOPIC, "t")}
    assert state.topic_config("t") == {}


def test_empty_delta_is_false() -> None:
    assert not MetadataDelta()
    assert MetadataDelta(features=True)


def _set_level(state: MetadataState, level: int) -> MetadataDelta:
    delta = MetadataDelta()
    record = FeatureLevelRecord(name="metadata.version", feature_level=level)
    state.replay([record], offset=state.offset + 1, epoch=1, delta=delta)
    return delta


def test_metadata_version_downgrade_removes_directories_and_the_delta_has_the_changes() -> None:
    state = _world().state
    topic = state.topic("t")
    before = dict(topic.partitions)
    delta = _set_level(state, 14)
    assert not any(broker.known_log_dirs for broker in state.brokers.values())
    assert delta.features
    assert delta.brokers == {1, 2}
    assert delta.partitions == {TopicIdPartition(topic.topic_id, n): before[n] for n in (0, 1)}
    assert all(p.directories == (MIGRATING_DIR,) * 2 for p in topic.partitions.values())
    assert vars(_rebuilt(state)) == vars(state)


def test_metadata_version_upgrade_keeps_migrating_directories_until_they_are_assigned() -> None:
    state = _world().state
    _set_level(state, 14)
    delta = _set_level(state, 17)
    assert delta.features
    assert not delta.partitions
    assert all(p.directories == (MIGRATING_DIR,) * 2 for p in state.topic("t").partitions.values())
    assert state.metadata_version is MetadataVersion.IV_3_7_IV2


def test_unknown_metadata_version_is_rejected() -> None:
    with pytest.raises(RemoteProtocolError, match="start a newer version of this software"):
        _set_level(MetadataState(), 31)
