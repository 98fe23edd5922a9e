"""PURE. What who asks may do to a topic, a group or the cluster (KIP-430), as a field of bits.

Nobody is kept from anything here, so it is all that Kafka knows for that kind of resource; what
Kafka answers without an authorizer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class AclOperation(IntEnum):
    """Kafka's numbers."""

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
#: Nobody asked; Kafka's least integer.
NOT_ASKED: Final = -(2**31)
