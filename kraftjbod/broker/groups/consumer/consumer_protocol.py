"""PURE. Encoding of the embedded consumer protocol, which classic members send to their group
leader.

A consumer group has such members during a migration. Then the coordinator acts as the group leader:
it decodes their subscriptions and encodes their assignments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError, RemoteProtocolError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.kafka_codec import decode_body, encode_body
from kraftjbod.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kraftjbod.protocol.schemas.kafka_message import Message

_VERSION: Final = struct.Struct(">h")
_LATEST: Final = 3
_MAX_ELEMENTS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    version: int
    topics: frozenset[str]
    owned: frozenset[TopicPartition]
    rack_id: str | None


def read_subscription(data: bytes) -> Subscription:
    """Decode a member's subscription.

    :raises OperatingError: INCONSISTENT_GROUP_PROTOCOL: the data cannot be decoded.
    """
    version, body = _read("ConsumerProtocolSubscription", data)
    assert isinstance(body, ConsumerProtocolSubscription)
    return Subscription(
        version=version,
        topics=frozenset(body.topics),
        owned=frozenset(
            TopicPartition(one.topic, index)
            for one in body.owned_partitions
            for index in one.partitions
        ),
        rack_id=body.rack_id,
    )


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Decode a member's assignment. Empty data means no partitions.

    :raises OperatingError: INCONSISTENT_GROUP_PROTOCOL: the data cannot be decoded, or has user
        data as from assignors that are not Kafka's own.
    """
    if not data:
        return frozenset()
    _, body = _read("ConsumerProtocolAssignment", data)
    assert isinstance(body, ConsumerProtocolAssignment)
    if body.user_data:
        raise OperatingError(
            "an assignment has data of an assignor's own",
            code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        )
    return frozenset(
        TopicPartition(one.topic, index)
        for one in body.assigned_partitions
        for index in one.partitions
    )


def assignment_bytes(version: int, partitions: Iterable[TopicPartition]) -> bytes:
    kind = ConsumerProtocolAssignment
    body = kind(
        assigned_partitions=[
            kind.TopicPartition(topic=topic, partitions=[one.partition for one in own])
            for topic, own in groupby(sorted(partitions), key=lambda one: one.topic)
        ]
    )
    return _VERSION.pack(version) + encode_body(version, body)


def _read(name: str, data: bytes) -> tuple[int, Message]:
    try:
        (version,) = _VERSION.unpack_from(data)
        view = memoryview(data)
        # A later version begins with the fields of the latest known version.
        known = min(max(version, 0), _LATEST)
        body = decode_body(name, known, view, _VERSION.size, max_elements=_MAX_ELEMENTS)
    except (struct.error, RemoteProtocolError) as e:
        raise OperatingError(
            f"a member's {name} cannot be read: {e}", code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        ) from e
    return known, body
