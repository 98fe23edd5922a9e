"""Replay, deltas and snapshots. The richer stories are in tests/golden."""

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


def test_a_snapshot_rebuilds_the_same_state() -> None:
    state = _world().state
    assert vars(_rebuilt(state)) == vars(state)


def test_session_limit_is_kept_by_snapshots_and_by_records_that_do_not_name_it() -> None:
    state = _world().state
    level = FeatureLevelRecord(name="metadata.version", feature_level=30)
    for said, kept in ((0, 10_000), (19_000, 19_000), (0, 19_000)):
        record = dataclasses.replace(level, session_limit_ms=said)
        state.replay([record], offset=state.offset + 1, epoch=1, delta=MetadataDelta())
        assert state.session_limit_ms == kept
        assert vars(_rebuilt(state)) == vars(state)
    assert state.copy().session_limit_ms == 19_000


def test_a_copy_is_equal_and_apart() -> None:
    world = _world()
    copy, before = world.state.copy(), _rebuilt(world.state)
    list(world.run("grow t 3"))
    list(world.run("delete t"))
    list(world.run("controller 101 incarnation=b"))
    assert vars(copy) == vars(before)


def test_reading_by_name_and_id() -> None:
    state = _world().state
    topic = state.topic("t")
    key = TopicIdPartition(topic.topic_id, 1)
    assert state.partition(key) == state.partition_named(TopicPartition("t", 1))
    assert dict(state.partitions())[key] == topic.partitions[1]
    assert state.partition_named(TopicPartition("nope", 1)) is None
    assert state.topic_config("t") == {"retention.ms": "1000"}
    assert state.topic_config("nope") == {}


def test_a_replica_is_online_with_its_broker_and_its_directory() -> None:
    state = _world().state
    assert state.is_replica_online(BrokerId(1), directory("b"))
    assert not state.is_replica_online(BrokerId(1), directory("a"))
    assert not state.is_replica_online(BrokerId(9), directory("a"))


def test_a_delta_names_what_changed_with_the_value_before() -> None:
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


def test_a_deleted_topic_takes_its_partitions_and_configuration_along() -> None:
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


def test_a_configuration_value_of_none_removes_it() -> None:
    state, delta = _world().state, MetadataDelta()
    record = ConfigRecord(
        resource_type=ResourceType.TOPIC, resource_name="t", name="retention.ms", value=None
    )
    state.replay([record], offset=state.offset + 1, epoch=1, delta=delta)
    assert delta.configs == {(ResourceType.TOPIC, "t")}
    assert state.topic_config("t") == {}


def test_an_empty_delta_is_false() -> None:
    assert not MetadataDelta()
    assert MetadataDelta(features=True)


def _set_level(state: MetadataState, level: int) -> MetadataDelta:
    delta = MetadataDelta()
    record = FeatureLevelRecord(name="metadata.version", feature_level=level)
    state.replay([record], offset=state.offset + 1, epoch=1, delta=delta)
    return delta


def test_a_lower_level_forgets_directories_and_notes_whom_that_changed() -> None:
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


def test_a_higher_level_keeps_migrating_directories_until_brokers_assign_them() -> None:
    state = _world().state
    _set_level(state, 14)
    delta = _set_level(state, 17)
    assert delta.features
    assert not delta.partitions
    assert all(p.directories == (MIGRATING_DIR,) * 2 for p in state.topic("t").partitions.values())
    assert state.metadata_version is MetadataVersion.IV_3_7_IV2


def test_a_level_from_the_future_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="start a newer version of this software"):
        _set_level(MetadataState(), 31)
