"""Records of internal topics in the format of Kafka's converters (compared with Kafka 4.3)."""

from __future__ import annotations

import struct

from kraftjbod.broker.transactions.transaction_records import (
    TransactionFact,
    TransactionMetadata,
    record_of,
)
from kraftjbod.cli.dump.record_formats import (
    format_group_record,
    format_metadata_entry,
    format_transaction_record,
)
from kraftjbod.core.ids import TopicId
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.metadata.record_codec import encode_entry
from kraftjbod.metadata.records import TopicRecord
from kraftjbod.protocol.kafka_codec import encode_body
from kraftjbod.protocol.messages import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kraftjbod.protocol.records import Record


def short(number: int, data: bytes) -> bytes:
    return struct.pack(">h", number) + data


def test_format_group_record_of_offset_commit_shows_topic_id_if_present() -> None:
    key = short(1, encode_body(0, OffsetCommitKey(group="g", topic="t", partition=0)))
    value = OffsetCommitValue(offset=13, leader_epoch=0, metadata="", commit_timestamp=7)
    words = format_group_record(Record(key=key, value=short(4, encode_body(4, value))))
    assert words.key == '{"type":"1","data":{"group":"g","topic":"t","partition":0}}'
    bare = '{"offset":13,"leaderEpoch":0,"metadata":"","commitTimestamp":7'
    assert words.payload == '{"version":"4","data":' + bare + "}}"
    value.topic_id = bytes(15) + b"\x01"
    words = format_group_record(Record(key=key, value=short(4, encode_body(4, value))))
    named = bare + ',"topicId":"AAAAAAAAAAAAAAAAAAAAAQ"'
    assert words.payload == '{"version":"4","data":' + named + "}}"
    assert format_group_record(Record(key=key)).payload == "<DELETE>"


def test_format_group_record_of_group_metadata_decodes_member_assignments() -> None:
    key = short(2, encode_body(0, GroupMetadataKey(group="g")))
    member = GroupMetadataValue.MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=b"?",
        assignment=struct.pack(">hihsiii", 0, 1, 1, b"t", 1, 4, -1),
    )
    value = GroupMetadataValue(protocol_type="consumer", generation=1, members=[member])
    words = format_group_record(Record(key=key, value=short(3, encode_body(3, value))))
    assert words.payload is not None
    assert '"subscription":"Pw=="' in words.payload
    assert '"assignment":{"assignedPartitions":[{"topic":"t","partitions":[4]}]' in words.payload


def test_format_group_record_reports_unknown_and_malformed_records_with_offset() -> None:
    unknown = format_group_record(Record(key=short(99, b""), offset=5))
    assert unknown.key == "Unknown record type 99 at offset 5, skipping."
    for key, value in ((None, None), (b"\0", None), (short(1, b"\0"), b""), (short(2, b""), b"x")):
        broken = format_group_record(Record(key=key, value=value, offset=5))
        assert str(broken.key).startswith("Error at offset 5, skipping. ")


def test_format_transaction_record_shows_state_and_partitions() -> None:
    fact = TransactionFact("tx", TransactionMetadata(producer_id=3, timeout_ms=60_000))
    words = format_transaction_record(record_of(fact, version=1, now_ms=0))
    assert words.key == '{"type":"0","data":{"transactionalId":"tx"}}'
    assert words.payload is not None
    assert '"transactionStatus":0,"transactionPartitions":null,' in words.payload


def test_format_metadata_entry_shows_records_control_records_and_malformed_entries() -> None:
    entry = encode_entry(
        [TopicRecord(name="t", topic_id=TopicId(bytes(16)))], LATEST_METADATA_VERSION
    )
    words = format_metadata_entry(Record(key=bytes(8), value=entry))
    assert words.payload == (
        '{"type":"TOPIC_RECORD","version":0,"data":{"name":"t","topicId":"AAAAAAAAAAAAAAAAAAAAAA"}}'
    )
    assert format_metadata_entry(Record(key=bytes(8) + b"\x01")).payload == "controlType: 01"
    broken = format_metadata_entry(Record(key=bytes(8), value=b"\xc1", offset=4))
    assert str(broken.payload).startswith("Error at 4, skipping. ")
