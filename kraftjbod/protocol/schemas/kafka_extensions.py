"""PURE. What Kafka's protocol has no word for: tagged fields of our own, and an API of our own;
and what the package with Kafka's schemas leaves out.

A reader skips a tagged field whose number it does not know (KIP-482).
So every Kafka broker takes our requests and every Kafka client our answers, and only what stands
here is lost on them. Rules:

* numbers start at :data:`FIRST_OWN_TAG`, far above the handful that Kafka has given out, and no
  number is ever used again for something else;
* a field has a default that means "was not reported", so that its absence is no statement;
* nothing that must be heard may travel this way.

Fields are written as in Kafka's schemas; kafka_schema.py puts them after Kafka's own.

What *must* be heard is a request of our own, far above Kafka's numbers. It is sent only to those
who introduce themselves as ours (KIP-511), so that no other client ever meets the number, and a
tool of ours that talks with a broker of Kafka's learns that there is no such thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Kafka numbers tagged fields from 0 on, per struct.
FIRST_OWN_TAG: Final = 10_000

OWN_FIELDS: Final[Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]] = {
    ("AlterPartitionReassignmentsRequest", "ReassignablePartition"): (
        {
            # A directory for each new replica, in the same call that names its broker: KIP-858
            # leaves that to the future. Parallel to Replicas, or empty; "any", an absolute path, or
            # "dirid:<uuid>". To a broker that does not know it, AlterReplicaLogDirs has to say the
            # same afterwards.
            "name": "TargetDirectories",
            "type": "[]string",
            "versions": "0+",
            "taggedVersions": "0+",
            "tag": FIRST_OWN_TAG,
        },
    ),
    ("FetchResponse", "PartitionData"): (
        {
            # To a follower: offsets may be missing between the leader's batches, because compaction
            # took them away. A follower that does not hear of it takes what is missing for damage
            # of the leader.
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
            # Strays are reported to whoever asks for them: there may be as many as replicas.
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
            # Who answers: whoever reached a broker by an address alone learns its id nowhere else.
            # -1 if not reported.
            "name": "BrokerId",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 9,
            "default": "-1",
            "ignorable": True,
        },
        {
            # "topic-partition" of replicas that are in none of the directories, and yet the last
            # in sync: nobody leads, and no log is made, before an operator has a say.
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
            # Kafka reports a directory's path only, while metadata speaks of ids.
            "name": "DirectoryId",
            "type": "uuid",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG,
            "ignorable": True,
        },
        {
            # "online", "offline", and what later states are called; empty if not reported.
            "name": "State",
            "type": "string",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 1,
            "ignorable": True,
        },
        {
            # Replicas of this directory of which the controller does not know yet that they are
            # here; -1 if not reported.
            "name": "QueuedAssignments",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 2,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Kept for the day when the disk is full (KIP-928); -1 if not reported.
            "name": "ReserveBytes",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 3,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Of all that is used on the disk; the smallest of all numbers if not reported.
            "name": "GrowthBytesPerSecond",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 4,
            "default": "-9223372036854775808",
            "ignorable": True,
        },
        {
            # What a write or flush takes on average; -1 if not reported.
            "name": "LatencyMs",
            "type": "float64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 5,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Much slower than the broker's other directories.
            "name": "IsSlow",
            "type": "bool",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 6,
            "ignorable": True,
        },
        {
            # When the last pass over all cold segments ended, wall time; -1 if never, or not
            # reported.
            "name": "LastScrubMs",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 7,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Damaged stretches that the last pass found; -1 if not reported.
            "name": "ScrubErrors",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 8,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Of the directory's own logs; the smallest of all numbers if not reported.
            "name": "LogGrowthBytesPerSecond",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 21,
            "default": "-9223372036854775808",
            "ignorable": True,
        },
        {
            # By the faster of the two; -1 if neither grows, or not reported.
            "name": "SecondsUntilFull",
            "type": "int64",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 22,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Why it is offline, saturated or stalled; empty if it is not, or not reported.
            "name": "Reason",
            "type": "string",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 23,
            "ignorable": True,
        },
        {
            # Replicas that metadata puts there, for a directory that cannot be read; -1 if
            # not reported.
            "name": "AssignedReplicas",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 24,
            "default": "-1",
            "ignorable": True,
        },
        {
            # Copies that are kept and not served; empty unless they were asked for.
            "name": "Strays",
            "type": "[]DescribeLogDirsStray",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 10,
            "ignorable": True,
            "fields": (
                # As the directory's name says; "" and -1 where it had to be shortened.
                {"name": "TopicName", "type": "string", "versions": "2+"},
                {"name": "PartitionIndex", "type": "int32", "versions": "2+"},
                # Zeros if it does not say.
                {"name": "TopicId", "type": "uuid", "versions": "2+"},
                {"name": "Size", "type": "int64", "versions": "2+"},
                # Wall time and why; -1 and "" if it does not say.
                {"name": "SetAsideMs", "type": "int64", "versions": "2+"},
                {"name": "Reason", "type": "string", "versions": "2+"},
                # The path below the log directory.
                {"name": "Directory", "type": "string", "versions": "2+"},
            ),
        },
    ),
    ("AlterReplicaLogDirsResponse", "AlterReplicaLogDirPartitionResult"): (
        {
            # Why a replica may not move there, and what to do: KAFKA_STORAGE_ERROR alone may mean
            # a dead, a full or a cordoned directory. Null if there is no error, or not reported.
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
            # What metadata knows of log directories, for brokers that cannot be asked themselves.
            # It takes a pass over all partitions, so only who asks for it gets it.
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
            "name": "LogDirs",
            "type": "[]DescribeClusterLogDir",
            "versions": "0+",
            "taggedVersions": "0+",
            "tag": FIRST_OWN_TAG,
            "ignorable": True,
            "fields": (
                {"name": "DirectoryId", "type": "uuid", "versions": "0+"},
                # Where it was when the broker registered; empty if it did not say.
                {"name": "Path", "type": "string", "versions": "0+"},
                # Lost while the broker ran, or given up.
                {"name": "IsOffline", "type": "bool", "versions": "0+"},
                {"name": "IsCordoned", "type": "bool", "versions": "0+"},
                # Of this broker in this directory.
                {"name": "Replicas", "type": "int32", "versions": "0+"},
            ),
        },
    ),
}

#: Kafka numbers its APIs from 0 on.
FIRST_OWN_API_KEY: Final = 10_000

OWN_MESSAGES: Final[Mapping[str, Mapping[str, Any]]] = {
    # To one broker, about one of its own directories: bring it back, take it in, give it up.
    "AlterLogDirsRequest": {
        "apiKey": FIRST_OWN_API_KEY,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": (
            # 0 reattach, 1 add, 2 forget.
            {"name": "Operation", "type": "int8", "versions": "0+"},
            # An absolute path, or "dirid:<uuid>".
            {"name": "Target", "type": "string", "versions": "0+"},
            # How long the answer may take. What is under way then goes on.
            {"name": "TimeoutMs", "type": "int32", "versions": "0+"},
            # Of forget: also where that gives up the last in-sync replica of a partition, if its
            # topic allows unclean elections.
            {"name": "Force", "type": "bool", "versions": "0+"},
        ),
    },
    "AlterLogDirsResponse": {
        "apiKey": FIRST_OWN_API_KEY,
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": (
            {"name": "ErrorCode", "type": "int16", "versions": "0+"},
            # What was wrong and what to do; or what was done.
            {"name": "Message", "type": "string", "versions": "0+"},
            # Zeros if it is not known.
            {"name": "DirectoryId", "type": "uuid", "versions": "0+"},
            # The directory's state afterwards; empty if the broker has no such directory.
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

#: Kafka's own, with Kafka's number.
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
    # Kafka 4.4.
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
    """The schema of a message that is written here; None if ``name`` is none."""
    return OWN_MESSAGES.get(name) or _LEFT_OUT.get(name)


def own_fields(message: str, struct: str) -> Sequence[Mapping[str, Any]]:
    """Our fields of ``struct``, which belongs to ``message``."""
    return OWN_FIELDS.get((message, struct), ())
