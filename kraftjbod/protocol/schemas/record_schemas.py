"""PURE. Schemas of the records in ``__consumer_offsets`` and ``__transaction_state``.

They have the form of Kafka's message schemas. ``apiKey`` is the record type: the 16 bits before a
key. A value follows a 16-bit version number. Keys have one version, 0, and are never flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kraftjbod.protocol.schemas.consumer_group_schemas import (
    CONSUMER_GROUP_RECORDS,
    CONSUMER_PROTOCOL,
)


def _field(name: str, kind: str, versions: str = "0+", **more: Any) -> Mapping[str, Any]:
    return {"name": name, "type": kind, "versions": versions, **more}


def _key(record_type: int, *fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "apiKey": record_type,
        "validVersions": "0",
        "flexibleVersions": "none",
        "fields": fields,
    }


_GROUP: Final = _field("Group", "string")
_UNSET: Final = {"default": "-1", "ignorable": True}

RECORD_SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "OffsetCommitKey": _key(1, _GROUP, _field("Topic", "string"), _field("Partition", "int32")),
    "OffsetCommitValue": {
        "apiKey": 1,
        "validVersions": "0-4",
        "flexibleVersions": "4+",
        "fields": (
            _field("Offset", "int64"),
            _field("LeaderEpoch", "int32", "3+", **_UNSET),
            _field("Metadata", "string"),
            _field("CommitTimestamp", "int64"),
            _field("ExpireTimestamp", "int64", "1", **_UNSET),
            _field("TopicId", "uuid", "4+", taggedVersions="4+", tag=0, ignorable=True),
        ),
    },
    "GroupMetadataKey": _key(2, _GROUP),
    "GroupMetadataValue": {
        "apiKey": 2,
        "validVersions": "0-4",
        "flexibleVersions": "4+",
        "fields": (
            _field("ProtocolType", "string"),
            _field("Generation", "int32"),
            _field("Protocol", "string", nullableVersions="0+"),
            _field("Leader", "string", nullableVersions="0+"),
            _field("CurrentStateTimestamp", "int64", "2+", **_UNSET),
            _field(
                "Members",
                "[]MemberMetadata",
                fields=(
                    _field("MemberId", "string"),
                    _field(
                        "GroupInstanceId",
                        "string",
                        "3+",
                        default="null",
                        nullableVersions="3+",
                        ignorable=True,
                    ),
                    _field("ClientId", "string"),
                    _field("ClientHost", "string"),
                    _field("RebalanceTimeout", "int32", "1+", **_UNSET),
                    _field("SessionTimeout", "int32"),
                    _field("Subscription", "bytes"),
                    _field("Assignment", "bytes"),
                ),
            ),
        ),
    },
    **CONSUMER_GROUP_RECORDS,
    **CONSUMER_PROTOCOL,
    "TransactionLogKey": _key(0, _field("TransactionalId", "string")),
    "TransactionLogValue": {
        "apiKey": 0,
        "validVersions": "0-1",
        "flexibleVersions": "1+",
        "fields": (
            _field("ProducerId", "int64"),
            _field("PreviousProducerId", "int64", "1+", taggedVersions="1+", tag=0, **_UNSET),
            _field("NextProducerId", "int64", "1+", taggedVersions="1+", tag=1, **_UNSET),
            _field("ProducerEpoch", "int16"),
            _field("NextProducerEpoch", "int16", "1+", taggedVersions="1+", tag=3, **_UNSET),
            _field("TransactionTimeoutMs", "int32"),
            _field("TransactionStatus", "int8"),
            _field(
                "TransactionPartitions",
                "[]PartitionsSchema",
                nullableVersions="0+",
                fields=(_field("Topic", "string"), _field("PartitionIds", "[]int32")),
            ),
            _field("TransactionLastUpdateTimestampMs", "int64"),
            _field("TransactionStartTimestampMs", "int64"),
            _field(
                "ClientTransactionVersion",
                "int16",
                "1+",
                taggedVersions="1+",
                tag=2,
                ignorable=True,
            ),
        ),
    },
}


def record_schema(name: str) -> Mapping[str, Any] | None:
    """Return the schema of the key or value of a record; None for other names."""
    return RECORD_SCHEMAS.get(name)
