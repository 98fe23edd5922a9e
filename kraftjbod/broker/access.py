"""PURE. ``Access``: the checks of one request, for its principal and address.

* A broker of the cluster on the listener between brokers has the rights that brokers use among each
  other, without bindings (``is_broker``): CLUSTER_ACTION, and DESCRIBE of the cluster and of all
  topics. With DESCRIBE of the cluster, a broker's health check needs no credentials but its own.
* Refused checks, and allowed ones of administrative operations, are recorded for the audit. A check
  that only leaves an item out of a list is not (``may_see``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftjbod.authorizer.standard_authorizer import Decision, StandardAuthorizer
from kraftjbod.core.acl import CLUSTER_NAME, OPERATIONS_OF, AclOperation, AclResourceType

Record = Callable[["Access", AclOperation, AclResourceType, str, Decision], None]
"""Called with each check that belongs into the audit."""

_Op = AclOperation
#: Operations whose success is recorded too: they change the cluster, not records or offsets.
ADMINISTRATIVE: Final = frozenset({_Op.CREATE, _Op.DELETE, _Op.ALTER, _Op.ALTER_CONFIGS})
_DESCRIBED_BY_BROKERS: Final = frozenset({AclResourceType.CLUSTER, AclResourceType.TOPIC})
_BROKER: Final = Decision(True, "ClusterMember")


class Access:
    __slots__ = ("_authorizer", "_record", "api", "host", "is_broker", "listener_name", "principal")

    def __init__(
        self,
        authorizer: StandardAuthorizer,
        *,
        principal: str,
        host: str,
        listener_name: str,
        api: str,
        is_broker: bool,
        record: Record,
    ) -> None:
        self._authorizer = authorizer
        self._record = record
        self.principal = principal
        self.host = host
        self.listener_name = listener_name
        self.api = api
        self.is_broker = is_broker

    def may(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Return whether the client may do ``operation`` on a resource, and record the check for
        the audit if it is refused or the operation is administrative.
        """
        decision = self._decide(operation, resource_type, name)
        if not decision.is_allowed or operation in ADMINISTRATIVE:
            self._record(self, operation, resource_type, name, decision)
        return decision.is_allowed

    def may_see(self, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Return what :meth:`may` returns, without recording it: for filtering lists."""
        return self._decide(operation, resource_type, name).is_allowed

    def may_on_cluster(self, operation: AclOperation) -> bool:
        return self.may(operation, AclResourceType.CLUSTER, CLUSTER_NAME)

    def may_on_cluster_or(
        self, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> bool:
        """Return whether the client may do ``operation`` on the cluster or on a resource. A refusal
        is recorded once, for the resource.
        """
        if self.may_see(operation, AclResourceType.CLUSTER, CLUSTER_NAME):
            return self.may_on_cluster(operation)
        return self.may(operation, resource_type, name)

    def may_write_a_topic(self) -> bool:
        """Return whether the client may write at least one topic, existing or not. Nothing is
        recorded.
        """
        decision = self._authorizer.decide_by_type(
            self.principal, self.host, _Op.WRITE, AclResourceType.TOPIC
        )
        return decision.is_allowed

    def operations_on(self, resource_type: AclResourceType, name: str) -> int:
        """Return the authorized operations on a resource as a bit field (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS_OF[resource_type]
            if self.may_see(operation, resource_type, name)
        )

    def operations_on_cluster(self) -> int:
        """Return the authorized operations on the cluster; 0 without DESCRIBE, as in Kafka."""
        if not self.may_see(_Op.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME):
            return 0
        return self.operations_on(AclResourceType.CLUSTER, CLUSTER_NAME)

    def _decide(
        self, operation: AclOperation, resource_type: AclResourceType, name: str
    ) -> Decision:
        if self.is_broker and (
            operation is _Op.CLUSTER_ACTION
            or (operation is _Op.DESCRIBE and resource_type in _DESCRIBED_BY_BROKERS)
        ):
            return _BROKER
        return self._authorizer.decide(self.principal, self.host, operation, resource_type, name)
