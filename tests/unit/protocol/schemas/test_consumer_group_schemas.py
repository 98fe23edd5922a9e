"""Schemas of consumer groups that no package ships; test_kafka_codec compares the APIs with kio."""

from __future__ import annotations

from kraftjbod.protocol.kafka_codec import encode_body
from kraftjbod.protocol.messages import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolSubscription,
)
from kraftjbod.protocol.schemas.consumer_group_schemas import consumer_group_message


def test_consumer_group_message_finds_apis_only() -> None:
    assert consumer_group_message("ConsumerGroupHeartbeatRequest") is not None
    assert consumer_group_message("ConsumerGroupMetadataValue") is None


def test_heartbeat_request_has_regex_since_version_1() -> None:
    asked = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m")
    without = encode_body(0, asked)
    asked.subscribed_topic_regex = "a"
    assert encode_body(1, asked) == without[:-3] + b"\2a" + without[-3:]


def test_consumer_group_records_have_kafkas_bytes() -> None:
    kind = ConsumerGroupCurrentMemberAssignmentValue
    held = kind.TopicPartitions(topic_id=bytes(16), partitions=[7], assignment_epochs=[2])
    value = kind(member_epoch=3, previous_member_epoch=2, state=1, assigned_partitions=[held])
    assert encode_body(0, value) == (
        b"\0\0\0\3\0\0\0\2\1"
        # One topic: its id, one partition, and one epoch in tag 0.
        + (b"\2" + bytes(16) + b"\2\0\0\0\7" + b"\1\0\5\2\0\0\0\2")
        + b"\1\0"
    )
    old = ConsumerProtocolSubscription(topics=["t"])
    assert encode_body(0, old) == b"\0\0\0\1\0\1t\xff\xff\xff\xff"
