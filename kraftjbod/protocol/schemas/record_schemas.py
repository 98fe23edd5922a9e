"""PURE. Schemas of what Kafka keeps in ``__consumer_offsets``, in the form of its message schemas.

``apiKey`` is the record's type: the 16 bits before a key. Before a value stand 16 bits of version.
Keys have one version, 0, and are never flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


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
}


def record_schema(name: str) -> Mapping[str, Any] | None:
    """The schema of a record's key or value; None if ``name`` is none."""
    return RECORD_SCHEMAS.get(name)
