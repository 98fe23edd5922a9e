"""Replay, deltas and snapshots. The richer stories are in tests/golden."""

from __future__ import annotations

from kraftjbod.core.ids import BrokerId, TopicIdPartition, TopicPartition
from kraftjbod.metadata.records import (
    ConfigRecord,
    RemoveTopicRecord,
    ResourceType,
    decode_entry,
    encode_entry,
)
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from tests.golden.transcript import World, directory


def _world() -> World:
    world = World()
    for line in (
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
        decode_entry(encode_entry(records)),
        offset=state.offset,
        epoch=state.epoch,
        delta=MetadataDelta(),
    )
    return twin


def test_a_snapshot_rebuilds_the_same_state() -> None:
    state = _world().state
    assert vars(_rebuilt(state)) == vars(state)


def test_a_copy_is_equal_and_apart() -> None:
    world = _world()
    copy, before = world.state.copy(), _rebuilt(world.state)
    list(world.run("grow t 3"))
    list(world.run("delete t"))
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
