"""PURE. Extensions of Kafka's protocol: tagged fields and an API of this project.

The file also has messages of Kafka that the package with Kafka's schemas lacks.

A reader skips tagged fields whose number it does not know (KIP-482), so Kafka's brokers and clients
work with these messages and only miss the additional fields. Rules:

* Numbers start at :data:`FIRST_OWN_TAG`, far above Kafka's, and are never reused.
* A field has a default that means "not reported".
* No field may be essential for its receiver.

Fields are written as in Kafka's schemas, and kafka_schema.py appends them to Kafka's fields.

Essential information needs a separate API, with a number far above Kafka's. ApiVersions lists it
only for clients of this project (KIP-511), so other clients never see the number. Kafka's brokers
do not list it either, so a tool of this project detects that they lack it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Kafka numbers tagged fields from 0, per struct.
FIRST_OWN_TAG: Final = 10_000

OWN_FIELDS: Final[Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]] = {
    ("AlterPartitionReassignmentsRequest", "ReassignablePartition"): (
        {
            # A directory for each item of Replicas: "any", an absolute path, or "dirid:<uuid>".
            # The list may be empty. KIP-858 leaves such a field to future work: with Kafka's
            # brokers, AlterReplicaLogDirs must be sent after the reassignment.
            "name": "TargetDirectories",
            "type": "[]string",
            "versions": "0+",
            "taggedVersions": "0+",
            "tag": FIRST_OWN_TAG,
        },
    ),
    ("FetchResponse", "PartitionData"): (
        {
            # For followers: whether compaction may have removed offsets between the leader's
            # batches. A follower without this field would treat a gap as damage of the leader's
            # log.
            "name": "MayHaveGaps",
            "type": "bool",
            "versions": "12+",
            "taggedVersions": "12+",
            "tag": FIRST_OWN_TAG,
            "default": "false",
            "ignorable": True,
        },
    ),
    ("DescribeLogDirsRequest", "DescribeLogDirsRequest"): (
        {
            # Request the stray replicas, too. There may be as many of them as of other replicas.
            "name": "IncludeStrays",
            "type": "bool",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG,
            "ignorable": True,
        },
    ),
    ("DescribeLogDirsResponse", "DescribeLogDirsResponse"): (
        {
            # Id of the responding broker, for clients that know only its address. -1 if not
            # reported.
            "name": "BrokerId",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 9,
            "default": "-1",
            "ignorable": True,
        },
        {
            # "topic-partition" of replicas that are in none of the directories, although they were
            # the last in sync. They have no leader and no log until an operator decides.
            "name": "LostReplicas",
            "type": "[]string",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 20,
            "ignorable": True,
        },
    ),
    ("DescribeLogDirsResponse", "DescribeLogDirsResult"): (
        {
            # Kafka reports only the path of a directory, while metadata uses ids.
            "name": "DirectoryId",
            "type": "uuid",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG,
            "ignorable": True,
        },
        {
            # "online", "offline" or another state; empty if not reported.
            "name": "State",
            "type": "string",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 1,
            "ignorable": True,
        },
        {
            # Replicas of this directory whose assignment the controller does not know yet; -1 if
            # not reported.
            "name": "QueuedAssignments",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 2,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Size of the reserve file for a full disk (KIP-928); -1 if not reported.
            "name": "ReserveBytes",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 3,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Growth of all data on the disk; the lowest int64 if not reported.
            "name": "GrowthBytesPerSecond",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 4,
            "default": "-9223372036854775808",
            "ignorable": True,
        },
        {
            # Moving average of the duration of writes, flushes and disk checks; -1 if not reported.
            "name": "LatencyMs",
            "type": "float64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 5,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Whether the directory is much slower than the broker's other directories.
            "name": "IsSlow",
            "type": "bool",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 6,
            "ignorable": True,
        },
        {
            # Wall-clock time at which the last pass over all cold segments ended; -1 if never, or
            # not reported.
            "name": "LastScrubMs",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 7,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Damaged ranges found by the running pass, or by the last one if none is running; -1 if
            # not reported.
            "name": "ScrubErrors",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 8,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Growth of the directory's own logs; the lowest int64 if not reported.
            "name": "LogGrowthBytesPerSecond",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 21,
            "default": "-9223372036854775808",
            "ignorable": True,
        },
        {
            # Estimated from the larger of the two growth rates; -1 if neither grows, or not
            # reported.
            "name": "SecondsUntilFull",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 22,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Why the directory is offline, saturated or stalled; empty if it is online, or if the
            # reason is not reported.
            "name": "Reason",
            "type": "string",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 23,
            "ignorable": True,
        },
        {
            # Number of replicas that the metadata assigns to an offline directory; -1 if not
            # reported.
            "name": "AssignedReplicas",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 24,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Replicas that are kept but not served; empty unless requested.
            "name": "Strays",
            "type": "[]DescribeLogDirsStray",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 10,
            "ignorable": True,
            "fields": (
                # From the directory's name; "" and -1 if the name was shortened.
                {"name": "TopicName", "type": "string", "versions": "2+"},
                {"name": "PartitionIndex", "type": "int32", "versions": "2+"},
                # Zeros if not stated.
                {"name": "TopicId", "type": "uuid", "versions": "2+"},
                {"name": "Size", "type": "int64", "versions": "2+"},
                # Wall-clock time and reason; -1 and "" if not stated.
                {"name": "SetAsideMs", "type": "int64", "versions": "2+"},
                {"name": "Reason", "type": "string", "versions": "2+"},
                # Path relative to the log directory.
                {"name": "Directory", "type": "string", "versions": "2+"},
            ),
        },
    ),
    ("AlterReplicaLogDirsResponse", "AlterReplicaLogDirPartitionResult"): (
        {
            # The reason why a replica cannot move to the directory, and the remedy. The error code
            # alone is ambiguous: KAFKA_STORAGE_ERROR may mean an offline, a full or a cordoned
            # directory. Null if there is no error, or if it is not reported.
            "name": "ErrorMessage",
            "type": "string",
            "versions": "2+",
            "nullableVersions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG,
            "default": "null",
            "ignorable": True,
        },
    ),
    ("DescribeClusterRequest", "DescribeClusterRequest"): (
        {
            # Request the log directories in the metadata, for brokers that are down. Optional
            # because it takes a pass over all partitions.
            "name": "IncludeLogDirs",
            "type": "bool",
            "versions": "0+",
            "taggedVersions": "0+",
            "tag": FIRST_OWN_TAG,
            "ignorable": True,
        },
    ),
    ("DescribeClusterResponse", "DescribeClusterBroker"): (
        {
            # The broker's log directories according to the metadata; empty unless requested.
            "name": "LogDirs",
            "type": "[]DescribeClusterLogDir",
            "versions": "0+",
            "taggedVersions": "0+",
            "tag": FIRST_OWN_TAG,
            "ignorable": True,
            "fields": (
                {"name": "DirectoryId", "type": "uuid", "versions": "0+"},
                # Path at the broker's registration; empty if not reported.
                {"name": "Path", "type": "string", "versions": "0+"},
                # The directory failed, or was taken offline, after its registration.
                {"name": "IsOffline", "type": "bool", "versions": "0+"},
                {"name": "IsCordoned", "type": "bool", "versions": "0+"},
                # Number of this broker's replicas in this directory.
                {"name": "Replicas", "type": "int32", "versions": "0+"},
            ),
        },
    ),
}

#: Kafka numbers its APIs from 0.
FIRST_OWN_API_KEY: Final = 10_000

OWN_MESSAGES: Final[Mapping[str, Mapping[str, Any]]] = {
    # Sent to a broker about one of its own directories: reattach, add or forget it.
    "AlterLogDirsRequest": {
        "apiKey": FIRST_OWN_API_KEY,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": (
            # 0 reattach, 1 add, 2 forget.
            {"name": "Operation", "type": "int8", "versions": "0+"},
            # An absolute path, or "dirid:<uuid>".
            {"name": "Target", "type": "string", "versions": "0+"},
            # Time limit of the response. An operation in progress continues after it.
            {"name": "TimeoutMs", "type": "int32", "versions": "0+"},
            # For forget: forget the directory even if it has the last in-sync replica of a
            # partition, provided that the topic allows unclean elections.
            {"name": "Force", "type": "bool", "versions": "0+"},
        ),
    },
    "AlterLogDirsResponse": {
        "apiKey": FIRST_OWN_API_KEY,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": (
            # Kafka's error code; 0 after success.
            {"name": "ErrorCode", "type": "int16", "versions": "0+"},
            # The error and its remedy, or a description of the completed operation.
            {"name": "Message", "type": "string", "versions": "0+"},
            # Zeros if unknown.
            {"name": "DirectoryId", "type": "uuid", "versions": "0+"},
            # State of the directory afterwards; empty if the broker has no such directory.
            {"name": "State", "type": "string", "versions": "0+"},
        ),
    },
}

_OUTCOME: Final[Sequence[Mapping[str, Any]]] = (
    {"name": "ThrottleTimeMs", "type": "int32", "versions": "0+"},
    {"name": "ErrorCode", "type": "int16", "versions": "0+"},
    {
        "name": "ErrorMessage",
        "type": "string",
        "versions": "0+",
        "nullableVersions": "0+",
        "ignorable": True,
    },
)

#: Messages of Kafka, with Kafka's numbers.
_LEFT_OUT: Final[Mapping[str, Mapping[str, Any]]] = {
    "UnregisterBrokerRequest": {
        "apiKey": 64,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": ({"name": "BrokerId", "type": "int32", "versions": "0+"},),
    },
    "AddRaftVoterRequest": {
        "apiKey": 80,
        "validVersions": "0-1",
        "flexibleVersions": "0+",
        "fields": (
            {"name": "ClusterId", "type": "string", "versions": "0+", "nullableVersions": "0+"},
            {"name": "TimeoutMs", "type": "int32", "versions": "0+"},
            {"name": "VoterId", "type": "int32", "versions": "0+"},
            {"name": "VoterDirectoryId", "type": "uuid", "versions": "0+"},
            {
                "name": "Listeners",
                "type": "[]Listener",
                "versions": "0+",
                "fields": (
                    {"name": "Name", "type": "string", "versions": "0+"},
                    {"name": "Host", "type": "string", "versions": "0+"},
                    {"name": "Port", "type": "uint16", "versions": "0+"},
                ),
            },
            {
                "name": "AckWhenCommitted",
                "type": "bool",
                "versions": "1+",
                "default": "true",
                "ignorable": True,
            },
        ),
    },
    "AddRaftVoterResponse": {
        "apiKey": 80,
        "validVersions": "0-1",
        "flexibleVersions": "0+",
        "fields": _OUTCOME,
    },
    "RemoveRaftVoterRequest": {
        "apiKey": 81,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": (
            {"name": "ClusterId", "type": "string", "versions": "0+", "nullableVersions": "0+"},
            {"name": "VoterId", "type": "int32", "versions": "0+"},
            {"name": "VoterDirectoryId", "type": "uuid", "versions": "0+"},
        ),
    },
    "RemoveRaftVoterResponse": {
        "apiKey": 81,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": _OUTCOME,
    },
    "UnregisterBrokerResponse": {
        "apiKey": 64,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": _OUTCOME,
    },
    # Added in Kafka 4.4.
    "UnregisterControllerRequest": {
        "apiKey": 94,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": ({"name": "ControllerId", "type": "int32", "versions": "0+"},),
    },
    "UnregisterControllerResponse": {
        "apiKey": 94,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": _OUTCOME,
    },
}


def own_message(name: str) -> Mapping[str, Any] | None:
    """Return the schema of a message that this file defines; None for other names."""
    return OWN_MESSAGES.get(name) or _LEFT_OUT.get(name)


def own_fields(message: str, struct: str) -> Sequence[Mapping[str, Any]]:
    """Return this project's additional fields of ``struct`` in ``message``."""
    return OWN_FIELDS.get((message, struct), ())
