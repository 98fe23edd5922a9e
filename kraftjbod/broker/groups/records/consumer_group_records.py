"""PURE. Records of consumer groups (KIP-848) in ``__consumer_offsets``, in Kafka's format.

One fact per key: the group epoch, a member, the epoch of the target assignment, a member's target
assignment, a member's current assignment, and the matches of a regular expression. A fact without a
value is a deletion.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Any, Final, TypeVar

from kraftjbod.core.ids import TopicId, TopicIdPartition
from kraftjbod.protocol.kafka_codec import encode_body
from kraftjbod.protocol.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kraftjbod.protocol.schemas.kafka_message import Message

Partitions = frozenset[TopicIdPartition]
#: Partitions with the epoch in which the member got each.
Held = Mapping[TopicIdPartition, int]
T = TypeVar("T")
NO_PARTITIONS: Final[Partitions] = frozenset()
_HEAD: Final = struct.Struct(">h")
_VERSION: Final = _HEAD.pack(0)


class MemberState(IntEnum):
    """States of a member's reconciliation, with Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """The member must revoke partitions and has not confirmed it yet."""
    UNRELEASED_PARTITIONS = 2
    """The member has revoked its partitions and waits for partitions that other members hold."""
    UNKNOWN = 127

    @classmethod
    def of_number(cls, number: int) -> MemberState:
        try:
            return cls(number)
        except ValueError:
            return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicProtocols:
    """Additional state of a member of a consumer group whose client uses the classic protocol
    (JoinGroup and SyncGroup).
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, in order of preference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member of a consumer group, as its requests describe it."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    """None or empty for none."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpoch:
    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpoch:
    """The epoch of the target assignment, and the wall-clock time in ms at which it was
    computed."""

    epoch: int
    since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """The partitions that a member of a consumer group holds (``assigned``), and those that it must
    still revoke (``revoking``), each with the member epoch in which the member got it.

    ``previous_epoch`` is the member epoch before ``epoch``.
    """

    epoch: int
    previous_epoch: int
    state: MemberState = MemberState.STABLE
    assigned: Held
    revoking: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that a regular expression matched.

    ``version`` is the metadata offset of the match, ``resolved_ms`` its wall-clock time.
    """

    topics: frozenset[str]
    version: int
    resolved_ms: int


@dataclass(frozen=True, slots=True)
class EpochFact:
    group_id: str
    value: GroupEpoch | None


@dataclass(frozen=True, slots=True)
class PartitionMetadataFact:
    """Whether the log has the partition metadata record that Kafka before 4.1 wrote.

    The record is unused, but a tombstone must delete it.
    """

    group_id: str
    is_there: bool


@dataclass(frozen=True, slots=True)
class MemberFact:
    group_id: str
    member_id: str
    value: ConsumerMember | None


@dataclass(frozen=True, slots=True)
class TargetEpochFact:
    group_id: str
    value: TargetEpoch | None


@dataclass(frozen=True, slots=True)
class TargetFact:
    group_id: str
    member_id: str
    value: Partitions | None


@dataclass(frozen=True, slots=True)
class CurrentFact:
    group_id: str
    member_id: str
    value: CurrentAssignment | None


@dataclass(frozen=True, slots=True)
class RegexFact:
    group_id: str
    regex: str
    value: ResolvedRegex | None


ConsumerFact = (
    EpochFact
    | PartitionMetadataFact
    | MemberFact
    | TargetEpochFact
    | TargetFact
    | CurrentFact
    | RegexFact
)


# --- to records ----------------------------------------------------------------------------------


def consumer_record_of(fact: ConsumerFact) -> tuple[bytes, bytes | None]:
    """Return the key and the value of the record for ``fact``. The value is None for a deletion."""
    group_id = fact.group_id
    match fact:
        case EpochFact(_, epoch):
            return _key(3, ConsumerGroupMetadataKey(group_id=group_id)), _value(epoch, _epoch_body)
        case PartitionMetadataFact(_, is_there):
            assert not is_there, "only its end is written"
            return _key(4, ConsumerGroupPartitionMetadataKey(group_id=group_id)), None
        case MemberFact(_, member_id, member):
            member_key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
            return _key(5, member_key), _value(member, _member_body)
        case TargetEpochFact(_, target_epoch):
            epoch_key = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
            return _key(6, epoch_key), _value(target_epoch, _target_epoch_body)
        case TargetFact(_, member_id, target):
            kind = ConsumerGroupTargetAssignmentMemberKey
            return _key(7, kind(group_id=group_id, member_id=member_id)), _value(
                target, _target_body
            )
        case CurrentFact(_, member_id, current):
            current_key = ConsumerGroupCurrentMemberAssignmentKey(
                group_id=group_id, member_id=member_id
            )
            return _key(8, current_key), _value(current, _current_body)
        case RegexFact(_, regex, resolved):
            regex_key = ConsumerGroupRegularExpressionKey(
                group_id=group_id, regular_expression=regex
            )
            return _key(16, regex_key), _value(resolved, _regex_body)


def _key(record_type: int, key: Message) -> bytes:
    return _HEAD.pack(record_type) + encode_body(0, key)


def _value(value: Any, body_of: Callable[[Any], Message]) -> bytes | None:
    return None if value is None else _VERSION + encode_body(0, body_of(value))


def _epoch_body(value: GroupEpoch) -> Message:
    return ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash)


def _member_body(value: ConsumerMember) -> Message:
    kind = ConsumerGroupMemberMetadataValue
    classic = None
    if value.classic is not None:
        classic = kind.ClassicMemberMetadata(
            session_timeout_ms=value.classic.session_timeout_ms,
            supported_protocols=[
                kind.ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in value.classic.protocols
            ],
        )
    return kind(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=sorted(value.topic_names),
        subscribed_topic_regex=value.topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.assignor,
        classic_member_metadata=classic,
    )


def _target_epoch_body(value: TargetEpoch) -> Message:
    return ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=value.epoch, assignment_timestamp=value.since_ms
    )


def _target_body(value: Partitions) -> Message:
    kind = ConsumerGroupTargetAssignmentMemberValue
    return kind(
        topic_partitions=[
            kind.TopicPartition(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic(value)
        ]
    )


def _current_body(value: CurrentAssignment) -> Message:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=value.epoch,
        previous_member_epoch=value.previous_epoch,
        state=value.state,
        assigned_partitions=_held_body(value.assigned),
        partitions_pending_revocation=_held_body(value.revoking),
    )


def _held_body(held: Held) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic_id,
            partitions=partitions,
            assignment_epochs=[held[TopicIdPartition(topic_id, index)] for index in partitions],
        )
        for topic_id, partitions in by_topic(held)
    ]


def _regex_body(value: ResolvedRegex) -> Message:
    return ConsumerGroupRegularExpressionValue(
        topics=sorted(value.topics), version=value.version, timestamp=value.resolved_ms
    )


def by_topic(partitions: Iterable[TopicIdPartition]) -> list[tuple[TopicId, list[int]]]:
    """Return the partition indices of each topic id, both sorted."""
    return [
        (topic_id, [one.partition for one in own])
        for topic_id, own in groupby(sorted(partitions), key=lambda one: one.topic_id)
    ]


# --- from records --------------------------------------------------------------------------------


def consumer_fact_of(key: Message, value: Message | None) -> ConsumerFact | None:
    """Return the fact that a record's decoded key and value contain; None if the key type is
    unknown."""
    match key:
        case ConsumerGroupMetadataKey():
            return EpochFact(key.group_id, _read(value, _epoch_in))
        case ConsumerGroupMemberMetadataKey():
            member = _read(value, lambda body: _member_in(key.member_id, body))
            return MemberFact(key.group_id, key.member_id, member)
        case ConsumerGroupTargetAssignmentMetadataKey():
            return TargetEpochFact(key.group_id, _read(value, _target_epoch_in))
        case ConsumerGroupTargetAssignmentMemberKey():
            return TargetFact(key.group_id, key.member_id, _read(value, _target_in))
        case ConsumerGroupCurrentMemberAssignmentKey():
            return CurrentFact(key.group_id, key.member_id, _read(value, _current_in))
        case ConsumerGroupRegularExpressionKey():
            return RegexFact(key.group_id, key.regular_expression, _read(value, _regex_in))
        case _:
            return None


def _read(value: Message | None, read: Callable[[Any], T]) -> T | None:
    return None if value is None else read(value)


def _epoch_in(body: ConsumerGroupMetadataValue) -> GroupEpoch:
    return GroupEpoch(epoch=body.epoch, metadata_hash=body.metadata_hash)


def _member_in(member_id: str, body: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    classic = None
    if body.classic_member_metadata is not None:
        own = body.classic_member_metadata
        classic = ClassicProtocols(
            session_timeout_ms=own.session_timeout_ms,
            protocols=tuple((one.name, bytes(one.metadata)) for one in own.supported_protocols),
        )
    return ConsumerMember(
        member_id=member_id,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        client_id=body.client_id,
        client_host=body.client_host,
        topic_names=frozenset(body.subscribed_topic_names),
        topic_regex=body.subscribed_topic_regex,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        assignor=body.server_assignor,
        classic=classic,
    )


def _target_epoch_in(body: ConsumerGroupTargetAssignmentMetadataValue) -> TargetEpoch:
    return TargetEpoch(epoch=body.assignment_epoch, since_ms=body.assignment_timestamp)


def _target_in(body: ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    return frozenset(
        TopicIdPartition(TopicId(one.topic_id), index)
        for one in body.topic_partitions
        for index in one.partitions
    )


def _current_in(body: ConsumerGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
    return CurrentAssignment(
        epoch=body.member_epoch,
        previous_epoch=body.previous_member_epoch,
        state=MemberState.of_number(body.state),
        assigned=_held_in(body.assigned_partitions, body.member_epoch),
        revoking=_held_in(body.partitions_pending_revocation, body.member_epoch),
    )


def _held_in(
    topics: Iterable[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], epoch: int
) -> Held:
    """Return the partitions that a member holds, each with the epoch in which the member got it.

    Old records have no epochs of partitions. ``epoch``, the member's epoch, is used for them.
    """
    held: dict[TopicIdPartition, int] = {}
    for one in topics:
        epochs = one.assignment_epochs
        if epochs is None or len(epochs) != len(one.partitions):
            epochs = [max(epoch, 0)] * len(one.partitions)
        for index, since in zip(one.partitions, epochs, strict=True):
            held[TopicIdPartition(TopicId(one.topic_id), index)] = since
    return held


def _regex_in(body: ConsumerGroupRegularExpressionValue) -> ResolvedRegex:
    return ResolvedRegex(
        topics=frozenset(body.topics), version=body.version, resolved_ms=body.timestamp
    )
