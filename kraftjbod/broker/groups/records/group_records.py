"""PURE. Records of ``__consumer_offsets``: committed offsets and groups, in Kafka's format.

A record is one fact about one key: the offset of a group for a partition, or a group with its
members. A record without a value deletes the fact. A consumer group (KIP-848) has many facts, see
consumer_group_records.py. Records of an unknown type are skipped, as in Kafka; an unknown version
of a value ends the load. The topic is compacted, so the last fact per key counts. It is created
with all its replicas or not at all: committed offsets must not depend on one disk.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from kraftjbod.broker.groups.records.consumer_group_records import (
    ConsumerFact,
    PartitionMetadataFact,
    consumer_fact_of,
    consumer_record_of,
)
from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.core.errors import CorruptRecordError, RemoteProtocolError
from kraftjbod.core.ids import ZERO_UUID, TopicPartition
from kraftjbod.protocol.kafka_codec import decode_body, encode_body
from kraftjbod.protocol.messages import (
    ConsumerGroupPartitionMetadataKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kraftjbod.protocol.records import Record
from kraftjbod.protocol.schemas.kafka_message import Message
from kraftjbod.protocol.schemas.kafka_schema import load_message

OFFSETS_TOPIC: Final = "__consumer_offsets"
#: Versions that are written.
_OFFSET_VERSION: Final = 4
_OFFSET_WITH_EXPIRY_VERSION: Final = 1
_GROUP_VERSION: Final = 3
#: Kafka reads old offsets with this type but does not write them.
_LEGACY_OFFSET_TYPE: Final = 0
_OFFSET_TYPE: Final = load_message("OffsetCommitKey").api_key
_GROUP_TYPE: Final = load_message("GroupMetadataKey").api_key
#: Schema names of consumer group records, without the suffix Key or Value.
_CONSUMER_TYPES: Final = {
    load_message(f"{name}Key").api_key: name
    for name in (
        "ConsumerGroupMetadata",
        "ConsumerGroupPartitionMetadata",
        "ConsumerGroupMemberMetadata",
        "ConsumerGroupTargetAssignmentMetadata",
        "ConsumerGroupTargetAssignmentMember",
        "ConsumerGroupCurrentMemberAssignment",
        "ConsumerGroupRegularExpression",
    )
}
#: Written by Kafka before 4.1; its contents are unused.
_OBSOLETE: Final = "ConsumerGroupPartitionMetadata"
_TYPE: Final = struct.Struct(">h")
_MAX_ELEMENTS: Final = 1_000_000
NO_EXPIRY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset of a group for a partition. Times are wall-clock milliseconds."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int = NO_EXPIRY
    topic_id: bytes = ZERO_UUID
    record_offset: int = -1
    """Offset of this record in ``__consumer_offsets``; not part of the record."""


def is_too_long(metadata: str | None, max_chars: int) -> bool:
    """Return whether the metadata of a commit exceeds ``max_chars`` UTF-16 units, the unit of
    Kafka."""
    text = metadata or ""
    if 2 * len(text) <= max_chars:
        return False
    return len(text) + sum(one > "\uffff" for one in text) > max_chars


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a classic group, as stored in the group metadata record.

    ``subscription`` is the member's metadata for the group's protocol.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """A classic group, as stored in the value of its group metadata record.

    ``since_ms`` is the wall-clock time of the group's last change of state; -1 if unknown.
    """

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    since_ms: int = -1
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetFact:
    """Content of an offset record: a group's committed offset for a partition. ``committed`` is
    None if the record deletes it.
    """

    group_id: str
    topic_partition: TopicPartition
    committed: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupFact:
    """Content of a group metadata record: a classic group. ``group`` is None if the record deletes
    it.
    """

    group_id: str
    group: GroupMetadata | None


Fact = OffsetFact | GroupFact | ConsumerFact


def record_of(fact: Fact, now_ms: int) -> Record:
    """Return the record that encodes ``fact``.

    :param now_ms: wall-clock time of the record.
    :raises LocalProtocolError: a name is longer than records can hold.
    """
    match fact:
        case OffsetFact(group_id, (topic, partition), committed):
            offset_key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
            key = _TYPE.pack(_OFFSET_TYPE) + encode_body(0, offset_key)
            value = None if committed is None else _offset_value(committed)
        case GroupFact(group_id, group):
            key = _TYPE.pack(_GROUP_TYPE) + encode_body(0, GroupMetadataKey(group=group_id))
            value = None if group is None else _group_value(group)
        case _:
            key, value = consumer_record_of(fact)
    return Record(key=key, value=value, timestamp_ms=now_ms)


def _offset_value(committed: CommittedOffset) -> bytes:
    has_expiry = committed.expire_ms != NO_EXPIRY
    version = _OFFSET_WITH_EXPIRY_VERSION if has_expiry else _OFFSET_VERSION
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
        expire_timestamp=committed.expire_ms,
        topic_id=committed.topic_id,
    )
    return _TYPE.pack(version) + encode_body(version, value)


def _group_value(group: GroupMetadata) -> bytes:
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=group.since_ms,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    return _TYPE.pack(_GROUP_VERSION) + encode_body(_GROUP_VERSION, value)


def fact_of(record: Record) -> Fact | None:
    """Return the fact that a record contains; None if its type is unknown.

    :raises CorruptRecordError: the key or value does not match its type and version.
    """
    key = memoryview(record.key or b"")
    if len(key) < _TYPE.size:
        raise CorruptRecordError(f"the record at {record.offset} has no key that says its type")
    (record_type,) = _TYPE.unpack_from(key)
    try:
        if record_type in (_LEGACY_OFFSET_TYPE, _OFFSET_TYPE):
            return _offset_fact(key, record.value)
        if record_type == _GROUP_TYPE:
            named = decode_body("GroupMetadataKey", 0, key, _TYPE.size, max_elements=_MAX_ELEMENTS)
            assert isinstance(named, GroupMetadataKey)
            group = None if record.value is None else _group_in(record.value)
            return GroupFact(named.group, group)
        if record_type in _CONSUMER_TYPES:
            return _consumer_fact(_CONSUMER_TYPES[record_type], key, record.value)
    except RemoteProtocolError as e:
        raise CorruptRecordError(f"the record at {record.offset} cannot be read: {e}") from e
    return None


def _consumer_fact(name: str, key: memoryview, value: bytes | None) -> ConsumerFact | None:
    named = decode_body(f"{name}Key", 0, key, _TYPE.size, max_elements=_MAX_ELEMENTS)
    if name == _OBSOLETE:
        assert isinstance(named, ConsumerGroupPartitionMetadataKey)
        return PartitionMetadataFact(named.group_id, is_there=value is not None)
    body = None if value is None else _value_in(f"{name}Value", value)
    return consumer_fact_of(named, body)


def _offset_fact(key: memoryview, value: bytes | None) -> OffsetFact:
    named = decode_body("OffsetCommitKey", 0, key, _TYPE.size, max_elements=_MAX_ELEMENTS)
    assert isinstance(named, OffsetCommitKey)
    topic_partition = TopicPartition(named.topic, named.partition)
    if value is None:
        return OffsetFact(named.group, topic_partition, None)
    body = _value_in("OffsetCommitValue", value)
    assert isinstance(body, OffsetCommitValue)
    committed = CommittedOffset(
        offset=body.offset,
        leader_epoch=body.leader_epoch,
        metadata=body.metadata,
        commit_ms=body.commit_timestamp,
        expire_ms=body.expire_timestamp,
        topic_id=body.topic_id,
    )
    return OffsetFact(named.group, topic_partition, committed)


def _group_in(value: bytes) -> GroupMetadata:
    body = _value_in("GroupMetadataValue", value)
    assert isinstance(body, GroupMetadataValue)
    return GroupMetadata(
        protocol_type=body.protocol_type,
        generation=body.generation,
        protocol_name=body.protocol,
        leader=body.leader,
        since_ms=body.current_state_timestamp,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.session_timeout
                if member.rebalance_timeout < 0
                else member.rebalance_timeout,
                session_timeout_ms=member.session_timeout,
                subscription=bytes(member.subscription),
                assignment=bytes(member.assignment),
            )
            for member in body.members
        ),
    )


def _value_in(name: str, value: bytes) -> Message:
    if len(value) < _TYPE.size:
        raise CorruptRecordError(f"a value of {len(value)} bytes has no version")
    (version,) = _TYPE.unpack_from(value)
    if version not in load_message(name).versions:
        raise CorruptRecordError(f"{name} v{version} is not known here")
    return decode_body(name, version, memoryview(value), _TYPE.size, max_elements=_MAX_ELEMENTS)


def consumer_offsets_topic(
    *, partitions: int, replication_factor: int, segment_bytes: int
) -> InternalTopic:
    return InternalTopic(
        name=OFFSETS_TOPIC,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(segment_bytes),
        },
        takes_fewer_replicas=False,
        is_closed=True,
        schema="kraftjbod/broker/groups/records/group_records.py",
    )
