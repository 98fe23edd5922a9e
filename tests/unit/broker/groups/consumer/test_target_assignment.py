"""What topics and subscriptions do to a group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kraftjbod.broker.groups.consumer.group_topics import ClusterTopics
from kraftjbod.broker.groups.records.consumer_group_records import MemberState
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId, TopicId
from kraftjbod.metadata.records import PartitionChangeRecord, Record
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from tests.unit.broker.broker_rig import TOPIC_ID, dir_of, partition, topic
from tests.unit.broker.groups.consumer.consumer_scene import (
    INTERVAL_MS,
    ConsumerScene,
)

E = ErrorCode


def test_topics_that_come_grow_and_go() -> None:
    scene = ConsumerScene()
    scene.join("a", "t", "later")
    scene.wait(INTERVAL_MS)
    scene.topics.put("t", 6)
    told = scene.beat("a", 2)
    assert (told.epoch, told.assignment) == (3, scene.topics.all("t"))
    scene.wait(INTERVAL_MS)
    scene.topics.put("other", 9)
    assert scene.beat("a", 3).epoch == 3, "nobody reads it"
    scene.topics.put("later", 1)
    told = scene.beat("a", 3)
    assert told.assignment == scene.topics.all("t") | scene.topics.all("later")
    scene.wait(INTERVAL_MS)
    scene.topics.drop("t")
    told = scene.beat("a", 4)
    assert told.assignment == scene.topics.all("later")


class HashedTopics(ClusterTopics):
    """The metadata's topics, which count how often they are hashed."""

    def __init__(self) -> None:
        self.state = MetadataState()
        super().__init__(self.state)
        self.hashed = 0

    def replay(self, *records: Record) -> None:
        offset = self.state.offset + 1
        self.state.replay(records, offset=offset, epoch=1, delta=MetadataDelta())

    def hash_of(self, names: Collection[str]) -> int:
        self.hashed += 1
        return super().hash_of(names)


def test_heartbeat_hashes_topics_only_after_a_change_of_their_layout() -> None:
    scene, topics = ConsumerScene(), HashedTopics()
    scene.topics = topics  # type: ignore[assignment]  # the same questions
    topics.replay(topic(), partition(replicas=(1, 2)))
    scene.join("a")
    epoch = scene.beat("a", 2).epoch

    def hashes_after(*records: Record) -> int:
        before = topics.hashed
        topics.replay(*records)
        scene.wait(INTERVAL_MS)
        scene.beat("a", scene.group.state.epoch)
        return topics.hashed - before

    other: dict[str, Any] = {"topic_id": TopicId(b"u" * 16)}
    change: dict[str, Any] = {"topic_id": TOPIC_ID, "partition_id": 0}
    assert hashes_after(topic("u", other["topic_id"]), partition(**other)) == 0
    assert hashes_after(PartitionChangeRecord(isr=(BrokerId(1),), **change)) == 0
    assert scene.group.state.epoch == epoch
    assert hashes_after(partition(1)) == 1
    assert scene.group.state.epoch == epoch + 1
    both, dirs = tuple(map(BrokerId, (1, 3))), (dir_of(1, 1), dir_of(3, 1))
    assert hashes_after(PartitionChangeRecord(replicas=both, directories=dirs, **change)) == 1


def test_a_regular_expression_finds_new_topics_within_seconds() -> None:
    scene = ConsumerScene()
    assert scene.join("a", topic_names=None, topic_regex="[tu]").assignment == (
        scene.topics.all("t") | scene.topics.all("u")
    )
    assert scene.join("b", topic_names=frozenset(), topic_regex="no.*").assignment == frozenset()
    scene.topics.put("tt", 1)
    scene.wait(10_000)
    scene.beat("b", scene.group.state.current("b").epoch)
    assert scene.group.state.regexes["[tu]"].topics == {"t", "u"}, "it has to match all"
    scene.topics.put("no-more", 3)
    scene.wait(10_000)
    told = scene.beat("b", scene.group.state.current("b").epoch)
    assert told.assignment == scene.topics.all("no-more")
    scene.beat("b", told.epoch, topic_regex="")
    assert "no.*" not in scene.group.state.regexes


def test_who_unsubscribes_gives_up_at_once() -> None:
    scene = ConsumerScene()
    scene.join("a", "t", "u")
    told = scene.beat("a", 2, topic_names=frozenset({"u"}))
    assert told.assignment == scene.topics.all("u")
    assert scene.group.state.current("a").state is MemberState.UNREVOKED_PARTITIONS
    assert scene.beat("a", 2, owned=told.assignment).code is E.NONE
    assert scene.group.state.current("a").revoking == {}
