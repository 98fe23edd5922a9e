"""Authorized operations as Kafka 4.3 returns them without an authorizer."""

from __future__ import annotations

from kraftjbod.broker.security import authorized_operations as allowed
from kraftjbod.protocol.messages import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)
from tests.unit.broker.broker_rig import brokers, partition, topic

NOT_ASKED = -2147483648


def test_authorized_operation_bits_are_kafkas() -> None:
    found = (allowed.ALL_OF_TOPIC, allowed.ALL_OF_GROUP, allowed.ALL_OF_CLUSTER)
    assert found == (3576, 3400, 8096)


async def test_authorized_operations_are_returned_on_request() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        for asks, of_topic, of_cluster in ((True, 3576, 8096), (False, NOT_ASKED, NOT_ASKED)):
            cluster = DescribeClusterRequest(include_cluster_authorized_operations=asks)
            assert (await rig.ask(cluster)).cluster_authorized_operations == of_cluster
            metadata = MetadataRequest(
                topics=None,
                include_topic_authorized_operations=asks,
                include_cluster_authorized_operations=asks,
            )
            answered = await rig.ask(metadata, 9)
            assert answered.cluster_authorized_operations == of_cluster
            assert [one.topic_authorized_operations for one in answered.topics] == [of_topic]
            newest = MetadataRequest(topics=None, include_topic_authorized_operations=asks)
            (one,) = (await rig.ask(newest)).topics
            assert one.topic_authorized_operations == of_topic
        paged = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=10, cursor=None)
        (one,) = (await rig.ask(paged)).topics
        assert one.topic_authorized_operations == 3576, "returned without a request, as by Kafka"
