"""PURE. Kafka's access control lists: the enumerations, bindings, and filters of bindings.

Numbers and names are Kafka's. ``authorizer/`` decides by bindings, ``metadata/`` stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from kraftjbod.core.errors import ErrorCode, OperatingError

E = TypeVar("E", bound=IntEnum)


class AclOperation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


#: Kafka's class, and the only one that ``authorizer.class.name`` accepts.
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: Name of the only resource of type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"
#: As the name of a literal pattern: every resource of the type.
WILDCARD_NAME: Final = "*"
#: As the principal of a binding: every user.
WILDCARD_PRINCIPAL: Final = "User:*"
#: As the host of a binding: every host.
WILDCARD_HOST: Final = "*"

_Op = AclOperation
_CONFIGS: Final = frozenset({_Op.DESCRIBE_CONFIGS, _Op.ALTER_CONFIGS})
#: Operations that exist for each type of resource.
OPERATIONS_OF: Final[Mapping[AclResourceType, frozenset[AclOperation]]] = {
    AclResourceType.TOPIC: _CONFIGS
    | {_Op.READ, _Op.WRITE, _Op.CREATE, _Op.DESCRIBE, _Op.DELETE, _Op.ALTER},
    AclResourceType.GROUP: _CONFIGS | {_Op.READ, _Op.DESCRIBE, _Op.DELETE},
    AclResourceType.CLUSTER: _CONFIGS
    | {_Op.CREATE, _Op.CLUSTER_ACTION, _Op.IDEMPOTENT_WRITE, _Op.ALTER, _Op.DESCRIBE},
    AclResourceType.TRANSACTIONAL_ID: frozenset({_Op.DESCRIBE, _Op.WRITE, _Op.TWO_PHASE_COMMIT}),
    AclResourceType.DELEGATION_TOKEN: frozenset({_Op.DESCRIBE}),
    AclResourceType.USER: frozenset({_Op.CREATE_TOKENS, _Op.DESCRIBE_TOKENS}),
}


def member_of(kind: type[E], number: int) -> E:
    """Return the member of the enumeration ``kind`` with ``number``; UNKNOWN if there is none."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


@dataclass(frozen=True, slots=True)
class AclBinding:
    """Rule of the access control lists: allows or denies a principal an operation on the resources
    that the pattern matches.

    ``host`` is the address from which the principal connects, or ``*``.
    """

    resource_type: AclResourceType
    resource_name: str
    pattern_type: AclPatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def text(self) -> str:
        """Return the binding in one line, for audit events."""
        pattern = f"{self.resource_type.name}:{self.pattern_type.name}:{self.resource_name}"
        grant = f"{self.permission.name} {self.operation.name} to {self.principal}"
        return f"{pattern} {grant} from {self.host}"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Conditions that select bindings, all of which must hold. None and ANY match every value of
    their field.

    With the pattern type MATCH, ``resource_name`` is the name of a resource, and the bindings whose
    pattern applies to it are selected.
    """

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: AclPatternType = AclPatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.resource_type in (AclResourceType.ANY, binding.resource_type)
            and self._matches_name(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (AclPermission.ANY, binding.permission)
        )

    @classmethod
    def from_numbers(
        cls,
        resource_type: int,
        resource_name: str | None,
        pattern_type: int,
        principal: str | None,
        host: str | None,
        operation: int,
        permission: int,
    ) -> AclFilter:
        """Return the filter with these numbers of the enumerations.

        :raises OperatingError: INVALID_REQUEST: a number is unknown.
        """
        chosen = cls(
            member_of(AclResourceType, resource_type),
            resource_name,
            member_of(AclPatternType, pattern_type),
            principal,
            host,
            member_of(AclOperation, operation),
            member_of(AclPermission, permission),
        )
        if 0 in (chosen.resource_type, chosen.pattern_type, chosen.operation, chosen.permission):
            raise OperatingError(
                "The AclBindingFilter must not contain UNKNOWN elements.",
                code=ErrorCode.INVALID_REQUEST,
            )
        return chosen

    def exact(self) -> AclBinding | None:
        """Return the only binding that the filter may select; None if there may be several."""
        if (
            self.resource_name is None
            or self.principal is None
            or self.host is None
            or self.pattern_type not in (AclPatternType.LITERAL, AclPatternType.PREFIXED)
            or 1 in (self.resource_type, self.operation, self.permission)
        ):
            return None
        return AclBinding(
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def _matches_name(self, binding: AclBinding) -> bool:
        if self.pattern_type not in (
            AclPatternType.ANY,
            AclPatternType.MATCH,
            binding.pattern_type,
        ):
            return False
        name = self.resource_name
        if name is None or name == binding.resource_name:
            return True
        return self.pattern_type is AclPatternType.MATCH and is_match(binding, name)


def is_match(binding: AclBinding, name: str) -> bool:
    """Return whether the pattern of ``binding`` applies to the resource ``name``.

    Resource types are not compared.
    """
    if binding.pattern_type is AclPatternType.PREFIXED:
        return name.startswith(binding.resource_name)
    return binding.resource_name in (name, WILDCARD_NAME)
