"""Tagged fields of our own on Kafka's messages: what Kafka's protocol has no word for.

A reader skips a tagged field whose number it does not know (KIP-482).
So every Kafka broker takes our requests and every Kafka client our answers, and only what stands
here is lost on them. Rules:

* numbers start at :data:`FIRST_OWN_TAG`, far above the handful that Kafka has given out, and no
  number is ever used again for something else;
* a field has a default that means "was not told", so that its absence is no statement;
* nothing that must be heard may travel this way.

Fields are written as in Kafka's schemas; kafka_schema.py puts them behind Kafka's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Kafka numbers tagged fields from 0 on, per struct.
FIRST_OWN_TAG: Final = 10_000

_OWN_FIELDS: Final[Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]] = {
    # A directory for each new replica, in the same call that names its broker: KIP-858 leaves that
    # to the future. Parallel to Replicas, or empty; "any", an absolute path, or "dirid:<uuid>".
    # To a broker that does not know it, AlterReplicaLogDirs has to say the same afterwards.
    ("AlterPartitionReassignmentsRequest", "ReassignablePartition"): (
        {
            "name": "TargetDirectories",
            "type": "[]string",
            "versions": "0+",
            "taggedVersions": "0+",
            "tag": FIRST_OWN_TAG,
        },
    ),
    # Kafka tells a directory's path only, while metadata speaks of ids.
    ("DescribeLogDirsResponse", "DescribeLogDirsResult"): (
        {
            "name": "DirectoryId",
            "type": "uuid",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG,
            "ignorable": True,
        },
        {
            # "online", "offline", and what later states are called; empty if not told.
            "name": "State",
            "type": "string",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 1,
            "ignorable": True,
        },
        {
            # Replicas of this directory of which the controller does not know yet that they are
            # here; -1 if not told.
            "name": "QueuedAssignments",
            "type": "int32",
            "versions": "2+",
            "taggedVersions": "2+",
            "tag": FIRST_OWN_TAG + 2,
            "default": "-1",
            "ignorable": True,
        },
    ),
}


def own_fields(message: str, struct: str) -> Sequence[Mapping[str, Any]]:
    """Our fields of ``struct``, which belongs to ``message``."""
    return _OWN_FIELDS.get((message, struct), ())
