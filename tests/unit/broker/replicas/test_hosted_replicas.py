"""``HostedReplicas``: lookup of replicas for requests, and metrics."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OperatingError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicId, TopicPartition
from tests.unit.broker.broker_rig import TOPIC_ID, TP, brokers, partition, topic


async def test_require_hosted_replica_raises_kafkas_errors() -> None:
    async with brokers(2) as (rig, _):
        rig.replay(topic(), partition(), partition(1, replicas=(2,), leader=2))
        hosted = rig.parts.hosted
        with pytest.raises(UnknownTopicOrPartitionError):
            hosted.require(TopicPartition("absent", 0))
        with pytest.raises(NotLeaderOrFollowerError):
            hosted.require(TopicPartition("t", 1))
        replica = hosted.require(TP)
        with pytest.raises(NotLeaderOrFollowerError):
            replica.require_open()  # Its log is still being created.
        await rig.parts.publisher.disk_work_done()
        assert replica.require_open()
        rig.dirs[0].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[0])
        with pytest.raises(KafkaStorageError):
            replica.require_open()


async def test_topic_name_finds_a_topic_by_id() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic())
        assert rig.parts.hosted.topic_name(TOPIC_ID) == "t"
        with pytest.raises(OperatingError):
            rig.parts.hosted.topic_name(TopicId(b"?" * 16))


async def test_hosted_replica_metrics_have_kafkas_names() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1, replicas=(1, 2), isr=[1]))
        figures = rig.around.metrics.snapshot()
        assert {k: figures[k] for k in ("PartitionCount", "LeaderCount")} == {
            "PartitionCount": 2,
            "LeaderCount": 2,
        }
        assert figures["UnderReplicatedPartitions"] == 1
        rig.dirs[0].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[0])
        figures = rig.around.metrics.snapshot()
        assert (figures["OfflineReplicaCount"], figures["OfflineLogDirectoryCount"]) == (2, 1)
