"""PURE. Kafka's schemas of consumer groups (KIP-848), which no Python package contains.

They are the two APIs, and the records of consumer groups in ``__consumer_offsets``, in the form of
Kafka's message schemas as of 4.3. In a record schema ``apiKey`` is the record type. Keys have one
version, 0, and are never flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_Schema = Mapping[str, Any]


def _field(name: str, kind: str, versions: str = "0+", **more: Any) -> _Schema:
    return {"name": name, "type": kind, "versions": versions, **more}


def _nullable(name: str, kind: str, versions: str = "0+", **more: Any) -> _Schema:
    return _field(name, kind, versions, nullableVersions=versions, **more)


def _tagged(name: str, kind: str, **more: Any) -> _Schema:
    return _field(name, kind, taggedVersions="0+", tag=0, **more)


def _message(api_key: int, versions: str, *fields: _Schema, **shared: Any) -> _Schema:
    return {
        "apiKey": api_key,
        "validVersions": versions,
        "flexibleVersions": "0+",
        "commonStructs": [
            {"name": name, "versions": "0+", "fields": own} for name, own in shared.items()
        ],
        "fields": fields,
    }


def _key(record_type: int, *names: str) -> _Schema:
    return {
        "apiKey": record_type,
        "validVersions": "0",
        "flexibleVersions": "none",
        "fields": tuple(_field(name, "string") for name in names),
    }


_UNSET: Final = {"default": "null"}
_PARTITIONS: Final = (_field("TopicId", "uuid"), _field("Partitions", "[]int32"))
_NAMED_TOPIC: Final = (_field("TopicId", "uuid"), _field("TopicName", "string"))
_NAMED_PARTITIONS: Final = (*_NAMED_TOPIC, _field("Partitions", "[]int32"))
_HELD_PARTITIONS: Final = (
    *_PARTITIONS,
    _tagged("AssignmentEpochs", "[]int32", nullableVersions="0+", **_UNSET),
)
_THROTTLE: Final = _field("ThrottleTimeMs", "int32")
_ERROR: Final = (
    _field("ErrorCode", "int16"),
    _nullable("ErrorMessage", "string", **_UNSET),
)

CONSUMER_GROUP_MESSAGES: Final[Mapping[str, _Schema]] = {
    "ConsumerGroupHeartbeatRequest": _message(
        68,
        "0-1",
        _field("GroupId", "string"),
        _field("MemberId", "string"),
        _field("MemberEpoch", "int32"),
        _nullable("InstanceId", "string", **_UNSET),
        _nullable("RackId", "string", **_UNSET),
        _field("RebalanceTimeoutMs", "int32", default="-1"),
        _nullable("SubscribedTopicNames", "[]string", **_UNSET),
        _nullable("SubscribedTopicRegex", "string", "1+", **_UNSET),
        _nullable("ServerAssignor", "string", **_UNSET),
        _nullable("TopicPartitions", "[]TopicPartitions", fields=_PARTITIONS, **_UNSET),
    ),
    "ConsumerGroupHeartbeatResponse": _message(
        68,
        "0-1",
        _THROTTLE,
        *_ERROR,
        _nullable("MemberId", "string", **_UNSET),
        _field("MemberEpoch", "int32"),
        _field("HeartbeatIntervalMs", "int32"),
        _nullable("Assignment", "Assignment", **_UNSET),
        TopicPartitions=_PARTITIONS,
        Assignment=(_field("TopicPartitions", "[]TopicPartitions"),),
    ),
    "ConsumerGroupDescribeRequest": _message(
        69,
        "0-1",
        _field("GroupIds", "[]string"),
        _field("IncludeAuthorizedOperations", "bool"),
    ),
    "ConsumerGroupDescribeResponse": _message(
        69,
        "0-1",
        _THROTTLE,
        _field(
            "Groups",
            "[]DescribedGroup",
            fields=(
                *_ERROR,
                _field("GroupId", "string"),
                _field("GroupState", "string"),
                _field("GroupEpoch", "int32"),
                _field("AssignmentEpoch", "int32"),
                _field("AssignorName", "string"),
                _field(
                    "Members",
                    "[]Member",
                    fields=(
                        _field("MemberId", "string"),
                        _nullable("InstanceId", "string", **_UNSET),
                        _nullable("RackId", "string", **_UNSET),
                        _field("MemberEpoch", "int32"),
                        _field("ClientId", "string"),
                        _field("ClientHost", "string"),
                        _field("SubscribedTopicNames", "[]string"),
                        _nullable("SubscribedTopicRegex", "string", **_UNSET),
                        _field("Assignment", "Assignment"),
                        _field("TargetAssignment", "Assignment"),
                        _field("MemberType", "int8", "1+", default="-1", ignorable=True),
                    ),
                ),
                _field("AuthorizedOperations", "int32", default="-2147483648"),
            ),
        ),
        TopicPartitions=_NAMED_PARTITIONS,
        Assignment=(_field("TopicPartitions", "[]TopicPartitions"),),
    ),
}

CONSUMER_GROUP_RECORDS: Final[Mapping[str, _Schema]] = {
    "ConsumerGroupMetadataKey": _key(3, "GroupId"),
    "ConsumerGroupMetadataValue": _message(
        3, "0", _field("Epoch", "int32"), _tagged("MetadataHash", "int64")
    ),
    # Written by Kafka before 4.1; decoded only to be skipped.
    "ConsumerGroupPartitionMetadataKey": _key(4, "GroupId"),
    # Written before Kafka 4.1 only.
    "ConsumerGroupPartitionMetadataValue": _message(
        4,
        "0",
        _field(
            "Topics",
            "[]TopicMetadata",
            fields=(
                *_NAMED_TOPIC,
                _field("NumPartitions", "int32"),
                _field(
                    "PartitionMetadata",
                    "[]PartitionMetadata",
                    fields=(_field("Partition", "int32"), _field("Racks", "[]string")),
                ),
            ),
        ),
    ),
    "ConsumerGroupMemberMetadataKey": _key(5, "GroupId", "MemberId"),
    "ConsumerGroupMemberMetadataValue": _message(
        5,
        "0",
        _nullable("InstanceId", "string"),
        _nullable("RackId", "string"),
        _field("ClientId", "string"),
        _field("ClientHost", "string"),
        _field("SubscribedTopicNames", "[]string"),
        _nullable("SubscribedTopicRegex", "string"),
        _field("RebalanceTimeoutMs", "int32", default="-1"),
        _nullable("ServerAssignor", "string"),
        _tagged(
            "ClassicMemberMetadata",
            "ClassicMemberMetadata",
            nullableVersions="0+",
            fields=(
                _field("SessionTimeoutMs", "int32"),
                _field(
                    "SupportedProtocols",
                    "[]ClassicProtocol",
                    fields=(_field("Name", "string"), _field("Metadata", "bytes")),
                ),
            ),
            **_UNSET,
        ),
    ),
    "ConsumerGroupTargetAssignmentMetadataKey": _key(6, "GroupId"),
    "ConsumerGroupTargetAssignmentMetadataValue": _message(
        6,
        "0",
        _field("AssignmentEpoch", "int32"),
        _tagged("AssignmentTimestamp", "int64", ignorable=True),
    ),
    "ConsumerGroupTargetAssignmentMemberKey": _key(7, "GroupId", "MemberId"),
    "ConsumerGroupTargetAssignmentMemberValue": _message(
        7, "0", _field("TopicPartitions", "[]TopicPartition", fields=_PARTITIONS)
    ),
    "ConsumerGroupCurrentMemberAssignmentKey": _key(8, "GroupId", "MemberId"),
    "ConsumerGroupCurrentMemberAssignmentValue": _message(
        8,
        "0",
        _field("MemberEpoch", "int32"),
        _field("PreviousMemberEpoch", "int32"),
        _field("State", "int8"),
        _field("AssignedPartitions", "[]TopicPartitions"),
        _field("PartitionsPendingRevocation", "[]TopicPartitions"),
        TopicPartitions=_HELD_PARTITIONS,
    ),
    "ConsumerGroupRegularExpressionKey": _key(16, "GroupId", "RegularExpression"),
    "ConsumerGroupRegularExpressionValue": _message(
        16,
        "0",
        _field("Topics", "[]string"),
        _field("Version", "int64"),
        _field("Timestamp", "int64"),
    ),
}

#: Data that members of the classic protocol exchange through the coordinator. The coordinator
#: decodes it if such a member is in a consumer group. It follows a 16-bit version number.
_OWNED: Final = (_field("Topic", "string"), _field("Partitions", "[]int32"))
CONSUMER_PROTOCOL: Final[Mapping[str, _Schema]] = {
    "ConsumerProtocolSubscription": {
        "apiKey": -1,
        "validVersions": "0-3",
        "flexibleVersions": "none",
        "fields": (
            _field("Topics", "[]string"),
            _nullable("UserData", "bytes", **_UNSET),
            _field("OwnedPartitions", "[]TopicPartition", "1+", ignorable=True, fields=_OWNED),
            _field("GenerationId", "int32", "2+", default="-1", ignorable=True),
            _nullable("RackId", "string", "3+", ignorable=True, **_UNSET),
        ),
    },
    "ConsumerProtocolAssignment": {
        "apiKey": -1,
        "validVersions": "0-3",
        "flexibleVersions": "none",
        "fields": (
            _field("AssignedPartitions", "[]TopicPartition", fields=_OWNED),
            _nullable("UserData", "bytes", **_UNSET),
        ),
    },
}


def consumer_group_message(name: str) -> Mapping[str, Any] | None:
    """Return the schema of a request or response of consumer groups; None for other names."""
    return CONSUMER_GROUP_MESSAGES.get(name)
