"""PURE. The authorized operations on a topic, a group or the cluster (KIP-430), as a bit field.

There is no authorization here, so all operations of the resource type are set, as in Kafka without
an authorizer.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.core.acl import OPERATIONS_OF, AclOperation, AclResourceType


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


ALL_OF_TOPIC: Final = _bits(*OPERATIONS_OF[AclResourceType.TOPIC])
ALL_OF_GROUP: Final = _bits(*OPERATIONS_OF[AclResourceType.GROUP])
ALL_OF_CLUSTER: Final = _bits(*OPERATIONS_OF[AclResourceType.CLUSTER])
#: The field was not requested; Java's minimum integer, as in Kafka.
NOT_ASKED: Final = -(2**31)
