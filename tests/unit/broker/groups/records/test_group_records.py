"""Records of ``__consumer_offsets``, byte for byte in Kafka's format."""

from __future__ import annotations

import struct

import pytest

from kraftjbod.broker.groups.records.group_records import (
    CommittedOffset,
    Fact,
    GroupFact,
    GroupMember,
    GroupMetadata,
    OffsetFact,
    consumer_offsets_topic,
    fact_of,
    record_of,
)
from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.records import Record

TP = TopicPartition("t", 5)
ID = bytes(range(16))
MEMBER = GroupMember(
    member_id="m",
    instance_id=None,
    client_id="c",
    client_host="/h",
    rebalance_timeout_ms=2,
    session_timeout_ms=1,
    subscription=b"S",
    assignment=b"A",
)
GROUP = GroupMetadata(
    protocol_type="consumer",
    generation=7,
    protocol_name="range",
    leader="m",
    since_ms=9,
    members=(MEMBER,),
)
OFFSET_KEY = b"\0\1\0\1g\0\1t" + struct.pack(">i", 5)
GROUP_KEY = b"\0\2\0\1g"


@pytest.mark.parametrize(
    ("fact", "key", "value"),
    [
        pytest.param(
            OffsetFact("g", TP, CommittedOffset(offset=8, metadata="x", commit_ms=6, topic_id=ID)),
            OFFSET_KEY,
            # Version 4: offset, leader epoch, metadata, time, and the topic's id in tag 0.
            b"\0\4" + struct.pack(">qi", 8, -1) + b"\2x" + struct.pack(">q", 6) + b"\1\0\x10" + ID,
            id="offset",
        ),
        pytest.param(
            OffsetFact("g", TP, CommittedOffset(offset=8, commit_ms=6, expire_ms=60)),
            OFFSET_KEY,
            b"\0\1" + struct.pack(">q", 8) + b"\0\0" + struct.pack(">qq", 6, 60),
            id="offset that expires",
        ),
        pytest.param(OffsetFact("g", TP, None), OFFSET_KEY, None, id="no offset"),
        pytest.param(
            GroupFact("g", GROUP),
            GROUP_KEY,
            b"\0\3"
            b"\0\x08consumer" + struct.pack(">i", 7) + b"\0\5range"
            b"\0\1m"
            # Members: id, instance, client, host, time-outs, subscription, assignment.
             + struct.pack(">qi", 9, 1) + b"\0\1m"
            b"\xff\xff"
            b"\0\1c"
            b"\0\2/h" + struct.pack(">ii", 2, 1) + b"\0\0\0\1S"
            b"\0\0\0\1A",
            id="group",
        ),
        pytest.param(GroupFact("g", None), GROUP_KEY, None, id="no group"),
    ],
)
def test_group_record_has_kafkas_bytes_and_is_decoded(
    fact: Fact, key: bytes, value: bytes | None
) -> None:
    record = record_of(fact, 1234)
    assert (record.key, record.value, record.timestamp_ms) == (key, value, 1234)
    assert fact_of(record) == fact


def test_records_of_older_brokers_are_decoded() -> None:
    legacy = b"\0\0" + struct.pack(">q", 8) + b"\0\1x" + struct.pack(">q", 6)
    expected = CommittedOffset(offset=8, metadata="x", commit_ms=6)
    read = fact_of(Record(key=b"\0\0" + OFFSET_KEY[2:], value=legacy))
    assert read == OffsetFact("g", TP, expected)
    oldest = b"".join(
        (
            b"\0\0\0\x08consumer" + struct.pack(">i", 7),
            # Neither protocol nor leader; one member.
            b"\xff\xff\xff\xff" + struct.pack(">i", 1),
            b"\0\1m\0\1c\0\2/h" + struct.pack(">i", 30) + bytes(8),
        )
    )
    group = fact_of(Record(key=GROUP_KEY, value=oldest))
    assert isinstance(group, GroupFact) and group.group is not None
    assert group.group.members[0].rebalance_timeout_ms == 30, (
        "the session timeout replaces a missing rebalance timeout"
    )


def test_unknown_group_record_type_is_ignored() -> None:
    assert fact_of(Record(key=b"\0\x0b\0\1g", value=b"\0\0")) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\0", b""),
        (OFFSET_KEY[:-1], None),
        (OFFSET_KEY, b"\0"),
        (OFFSET_KEY, b"\0\x09" + bytes(30)),
        (GROUP_KEY, b"\0\3\0\x08cons"),
    ],
)
def test_malformed_group_record_raises_corrupt_record(
    key: bytes | None, value: bytes | None
) -> None:
    with pytest.raises(CorruptRecordError):
        fact_of(Record(key=key, value=value, offset=3))


def test_consumer_offsets_topic_is_compacted_and_fully_replicated() -> None:
    shape = consumer_offsets_topic(partitions=50, replication_factor=3, segment_bytes=1 << 20)
    assert not shape.takes_fewer_replicas
    config = TopicConfig().with_overrides(dict(shape.configs), source="test")
    assert (str(config.cleanup_policy), config.segment_bytes) == ("compact", 1 << 20)
