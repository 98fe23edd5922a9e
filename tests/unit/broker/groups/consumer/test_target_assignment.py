"""Target assignments after changes of topics and subscriptions."""

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


def test_target_assignment_changes_with_added_grown_and_deleted_topics() -> None:
    scene = ConsumerScene()
    scene.join("a", "t", "later")
    scene.wait(INTERVAL_MS)
    scene.topics.put("t", 6)
    reply = scene.beat("a", 2)
    assert (reply.epoch, reply.assignment) == (3, scene.topics.all("t"))
    scene.wait(INTERVAL_MS)
    scene.topics.put("other", 9)
    assert scene.beat("a", 3).epoch == 3, "no member subscribes to this topic"
    scene.topics.put("later", 1)
    reply = scene.beat("a", 3)
    assert reply.assignment == scene.topics.all("t") | scene.topics.all("later")
    scene.wait(INTERVAL_MS)
    scene.topics.drop("t")
    reply = scene.beat("a", 4)
    assert reply.assignment == scene.topics.all("later")


class HashedTopics(ClusterTopics):
    """The topics of the metadata, with a count of computed hashes."""

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
    scene.topics = topics  # type: ignore[assignment]  # same interface
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


def test_regex_subscription_finds_new_topics_after_a_refresh() -> None:
    scene = ConsumerScene()
    assert scene.join("a", topic_names=None, topic_regex="[tu]").assignment == (
        scene.topics.all("t") | scene.topics.all("u")
    )
    assert scene.join("b", topic_names=frozenset(), topic_regex="no.*").assignment == frozenset()
    scene.topics.put("tt", 1)
    scene.wait(10_000)
    scene.beat("b", scene.group.state.current("b").epoch)
    assert scene.group.state.regexes["[tu]"].topics == {"t", "u"}, (
        "the expression must match the whole name"
    )
    scene.topics.put("no-more", 3)
    scene.wait(10_000)
    reply = scene.beat("b", scene.group.state.current("b").epoch)
    assert reply.assignment == scene.topics.all("no-more")
    scene.beat("b", reply.epoch, topic_regex="")
    assert "no.*" not in scene.group.state.regexes


def test_unsubscribed_topic_is_revoked_immediately() -> None:
    scene = ConsumerScene()
    scene.join("a", "t", "u")
    reply = scene.beat("a", 2, topic_names=frozenset({"u"}))
    assert reply.assignment == scene.topics.all("u")
    assert scene.group.state.current("a").state is MemberState.UNREVOKED_PARTITIONS
    assert scene.beat("a", 2, owned=reply.assignment).code is E.NONE
    assert scene.group.state.current("a").revoking == {}
