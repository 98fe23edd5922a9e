"""PURE. ``StandardAuthorizer``: decide whether a principal may do an operation, as in Kafka.

* A super user may do everything.
* A DENY has precedence over each ALLOW. The lengths of their patterns do not matter.
* ALLOW of READ, WRITE, DELETE or ALTER includes DESCRIBE, and ALTER_CONFIGS includes
  DESCRIBE_CONFIGS. DENY has no such implications.
* Without a binding whose pattern has the name of the resource,
  ``allow.everyone.if.no.acl.found`` decides.

Decisions are cached. Each change of a binding empties the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import Final, NamedTuple

from kraftjbod.authorizer.acl_index import AclIndex
from kraftjbod.core.acl import (
    WILDCARD_NAME,
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)

#: Cached decisions. An attacker with many names empties the cache for all clients, and the
#: index behind it answers in a few microseconds.
MAX_CACHED_DECISIONS: Final = 10_000
#: A resource name for the defaults of a resource type, as in Kafka's interface ``Authorizer``.
_ANY_NAME: Final = "hardcode"

_Op = AclOperation


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in set(operations))


_ALLOWING: Final = {
    operation: _bits(operation, _Op.ALL)
    | {
        _Op.DESCRIBE: _bits(_Op.READ, _Op.WRITE, _Op.DELETE, _Op.ALTER),
        _Op.DESCRIBE_CONFIGS: _bits(_Op.ALTER_CONFIGS),
    }.get(operation, 0)
    for operation in AclOperation
}
_DENYING: Final = {operation: _bits(operation, _Op.ALL) for operation in AclOperation}


class Decision(NamedTuple):
    """Whether a principal may do an operation, and the name of the rule that decided, such as
    ``DenyAcl``, for audit events.
    """

    is_allowed: bool
    rule: str


_SUPER_USER: Final = Decision(True, "SuperUser")
_DEFAULT_ALLOW: Final = Decision(True, "DefaultAllow")
_DEFAULT_DENY: Final = Decision(False, "DefaultDeny")
_ALLOW_ACL: Final = Decision(True, "AllowAcl")
_DENY_ACL: Final = Decision(False, "DenyAcl")
_NO_ALLOW_ACL: Final = Decision(False, "NoAllowAcl")

_Question = tuple[str, str, AclOperation, AclResourceType, str | None]


class StandardAuthorizer:
    """Decides by super users and access control lists whether a principal may do an operation, as
    Kafka's authorizer of this name.
    """

    def __init__(
        self, *, super_users: Collection[str] = (), allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        """Create an authorizer without bindings.

        :param super_users: principals such as ``User:alice``.
        """
        self._super_users = frozenset(super_users)
        self._default = _DEFAULT_ALLOW if allow_everyone_if_no_acl_found else _DEFAULT_DENY
        self._index = AclIndex()
        self._decided: dict[_Question, Decision] = {}

    def __len__(self) -> int:
        """Return the number of bindings."""
        return len(self._index)

    def change_bindings(
        self, *, added: Iterable[AclBinding] = (), removed: Iterable[AclBinding] = ()
    ) -> None:
        """Add and remove bindings, the additions first. Cached decisions are dropped."""
        for binding in added:
            self._index.add(binding)
        for binding in removed:
            self._index.remove(binding)
        self._decided.clear()

    def use_index(self, index: AclIndex) -> None:
        """Use the bindings of ``index`` instead of the present ones. Cached decisions are dropped.

        The cost does not depend on the number of bindings.
        """
        self._index = index
        self._decided.clear()

    def replace_bindings(self, bindings: Iterable[AclBinding]) -> None:
        """Remove all bindings and add ``bindings``. Cached decisions are dropped."""
        self._index.clear()
        self.change_bindings(added=bindings)

    def decide(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
    ) -> Decision:
        """Decide whether the principal may do ``operation`` on the resource ``name``, and by which
        rule.

        :param host: numeric address of the client.
        """
        return self._look_up((principal, host, operation, resource_type, name))

    def decide_by_type(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType
    ) -> Decision:
        """Decide whether the principal may do the operation on at least one resource of a type.

        As in Kafka's ``authorizeByResourceType``: yes if :meth:`decide` allows it for a name
        without own patterns. Otherwise only ALLOW of the operation itself or of ALL counts, and a
        DENY of a pattern takes away each ALLOW of a pattern that it contains.
        """
        return self._look_up((principal, host, operation, resource_type, None))

    def _look_up(self, question: _Question) -> Decision:
        """Return the cached decision, or decide and cache."""
        decision = self._decided.get(question)
        if decision is None:
            name = question[-1]
            if name is None:
                decision = self._decide_by_type(*question[:-1])
            else:
                decision = self._decide(*question[:-1], name)
            if len(self._decided) >= MAX_CACHED_DECISIONS:
                self._decided.clear()
            self._decided[question] = decision
        return decision

    def _decide(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
    ) -> Decision:
        if principal in self._super_users:
            return _SUPER_USER
        grants = self._index.grants(principal, host, resource_type, name)
        if grants is None:
            return self._default
        if grants.denied & _DENYING[operation]:
            return _DENY_ACL
        return _ALLOW_ACL if grants.allowed & _ALLOWING[operation] else _NO_ALLOW_ACL

    def _decide_by_type(
        self, principal: str, host: str, operation: AclOperation, resource_type: AclResourceType
    ) -> Decision:
        default = self._decide(principal, host, operation, resource_type, _ANY_NAME)
        if default.is_allowed:
            return default
        bindings = [
            binding
            for binding in self._index.bindings_of(principal, host, resource_type)
            if binding.operation in (operation, _Op.ALL)
        ]
        denied = [binding for binding in bindings if binding.permission is AclPermission.DENY]
        names = {one.resource_name for one in denied if not _is_prefixed(one)}
        prefixes = {one.resource_name for one in denied if _is_prefixed(one)}
        if WILDCARD_NAME in names:
            return _DENY_ACL
        is_allowed = any(
            binding.permission is AclPermission.ALLOW and not _is_denied(binding, names, prefixes)
            for binding in bindings
        )
        return _ALLOW_ACL if is_allowed else _NO_ALLOW_ACL


def _is_prefixed(binding: AclBinding) -> bool:
    return binding.pattern_type is AclPatternType.PREFIXED


def _is_denied(binding: AclBinding, names: Set[str], prefixes: Set[str]) -> bool:
    """Return whether a denied name or prefix contains the pattern of an ALLOW binding.

    Only a DENY of all names contains an ALLOW of all names.
    """
    name = binding.resource_name
    if not _is_prefixed(binding):
        if name == WILDCARD_NAME:
            return False
        if name in names:
            return True
    return any(name[:length] in prefixes for length in range(1, len(name) + 1))
