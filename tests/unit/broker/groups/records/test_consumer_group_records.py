"""Records of consumer groups: encoding and decoding, compared with Kafka's bytes for one record."""

from __future__ import annotations

import pytest

from kraftjbod.broker.groups.records.consumer_group_records import (
    ClassicProtocols,
    ConsumerMember,
    CurrentAssignment,
    CurrentFact,
    EpochFact,
    GroupEpoch,
    MemberFact,
    MemberState,
    PartitionMetadataFact,
    RegexFact,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochFact,
    TargetFact,
)
from kraftjbod.broker.groups.records.group_records import Fact, fact_of, record_of
from kraftjbod.core.ids import TopicId, TopicIdPartition

P = TopicIdPartition(TopicId(bytes(range(16))), 3)
CLASSIC = ClassicProtocols(session_timeout_ms=5, protocols=(("range", b"x"),))
NAMED = ConsumerMember(member_id="m", topic_names=frozenset("ab"), assignor="range")
STATIC = ConsumerMember(member_id="m", instance_id="i", rack_id="r", classic=CLASSIC)
REVOKING = MemberState.UNREVOKED_PARTITIONS
CURRENT = CurrentAssignment(epoch=4, previous_epoch=3, state=REVOKING, assigned={P: 2}, revoking={})
FACTS: list[Fact] = [
    EpochFact("g", GroupEpoch(epoch=4, metadata_hash=-7)),
    MemberFact("g", "m", NAMED),
    MemberFact("g", "m", STATIC),
    TargetEpochFact("g", TargetEpoch(epoch=4, since_ms=9)),
    TargetFact("g", "m", frozenset({P})),
    CurrentFact("g", "m", CURRENT),
    RegexFact("g", "a.*", ResolvedRegex(topics=frozenset({"ab"}), version=3, resolved_ms=8)),
    *(EpochFact("g", None), MemberFact("g", "m", None), TargetEpochFact("g", None)),
    *(TargetFact("g", "m", None), CurrentFact("g", "m", None), RegexFact("g", "a.*", None)),
    PartitionMetadataFact("g", is_there=False),
]  # fmt: skip


@pytest.mark.parametrize("fact", FACTS)
def test_consumer_group_fact_survives_encoding_and_decoding(fact: Fact) -> None:
    assert fact_of(record_of(fact, 0)) == fact


def test_group_epoch_record_has_kafkas_bytes() -> None:
    record = record_of(FACTS[0], 0)
    assert record.key == b"\0\3\0\1g"
    # Version 0: the epoch, and the hash in tag 0.
    assert record.value == b"\0\0" + b"\0\0\0\4" + b"\1\0\10" + (-7).to_bytes(8, "big", signed=True)


def test_partition_metadata_record_of_older_kafka_is_recognized() -> None:
    record = record_of(PartitionMetadataFact("g", is_there=False), 0)
    left = type(record)(key=record.key, value=b"\0\0anything")
    assert fact_of(left) == PartitionMetadataFact("g", is_there=True)
