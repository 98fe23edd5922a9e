"""PURE. The authorized operations on a topic, a group or the cluster (KIP-430), as a bit field.

There is no authorization here, so all operations of the resource type are set, as in Kafka without
an authorizer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class AclOperation(IntEnum):
    """Operations of Kafka's ACLs, with Kafka's numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


_Op = AclOperation
_CONFIGS: Final = (_Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS)
ALL_OF_TOPIC: Final = _bits(
    *(_Op.READ, _Op.WRITE, _Op.CREATE, _Op.DELETE, _Op.ALTER, _Op.DESCRIBE), *_CONFIGS
)
ALL_OF_GROUP: Final = _bits(_Op.READ, _Op.DELETE, _Op.DESCRIBE, *_CONFIGS)
ALL_OF_CLUSTER: Final = _bits(
    *(_Op.CREATE, _Op.ALTER, _Op.DESCRIBE, _Op.CLUSTER_ACTION, _Op.IDEMPOTENT_WRITE), *_CONFIGS
)
#: The field was not requested; Java's minimum integer, as in Kafka.
NOT_ASKED: Final = -(2**31)
