"""A consumer group that contains a member of the classic protocol."""

from __future__ import annotations

from typing import Any

from kraftjbod.broker.groups.classic.group_events import JoinRequested
from kraftjbod.broker.groups.classic.group_roster import Member
from kraftjbod.broker.groups.consumer.consumer_protocol import assignment_bytes
from kraftjbod.broker.groups.consumer.group_conversion import consumer_facts_of
from kraftjbod.broker.groups.records.group_records import GroupFact
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.kafka_codec import encode_body
from kraftjbod.protocol.messages import ConsumerProtocolSubscription
from tests.unit.broker.groups.consumer.consumer_scene import (
    REBALANCE_MS,
    ConsumerScene,
)

E = ErrorCode


def subscription(*topics: str, owned: Any = (), version: int = 3) -> bytes:
    kind = ConsumerProtocolSubscription
    body = kind(
        topics=topics,
        owned_partitions=[
            kind.TopicPartition(topic=topic, partitions=parts) for topic, parts in owned
        ],
    )
    return version.to_bytes(2, "big") + encode_body(version, body)


def upgraded() -> ConsumerScene:
    """Classic member ``old`` has all partitions of t; the join of ``new`` converted the group."""
    scene = ConsumerScene()
    old = Member("old", _classic_join())
    old.assignment = assignment_bytes(3, [TopicPartition("t", n) for n in range(4)])
    facts = consumer_facts_of("g", 7, [old], scene.topics)
    scene.group.follow(facts, scene.now_ms)
    joined = scene.join("new")
    assert (joined.epoch, joined.assignment) == (8, frozenset())
    assert isinstance(scene.log[0], GroupFact) and scene.log[0].group is None
    return scene


def _classic_join() -> JoinRequested:
    return JoinRequested(
        token=0,
        member_id="old",
        fresh_member_id="old",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol_type="consumer",
        protocols=(("cooperative-sticky", subscription("t")),),
    )
