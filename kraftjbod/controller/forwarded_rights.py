"""PURE. Rights that a client needs for a request which a broker forwards to the controller.

The broker has checked each item by its copy of the access control lists, which may be older than
the controller's. So the controller checks again, and refuses the request as a whole if the client
lacks a right for one item. A request without a client is one of a node itself and needs no right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kraftjbod.authorizer.standard_authorizer import StandardAuthorizer
from kraftjbod.core.acl import CLUSTER_NAME, AclOperation, AclResourceType
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_acl_messages import CreateAclsRequestRpc, DeleteAclsRequestRpc
from kraftjbod.protocol.rpc_config_messages import (
    AlterPartitionReassignmentsRequestRpc,
    ElectLeadersRequestRpc,
    IncrementalAlterConfigsRequestRpc,
    ListPartitionReassignmentsRequestRpc,
    UnregisterBrokerRequestRpc,
)
from kraftjbod.protocol.rpc_controller_messages import UnregisterControllerRequestRpc
from kraftjbod.protocol.rpc_messages import (
    CreatePartitionsRequestRpc,
    CreateTopicsRequestRpc,
    DeleteTopicsRequestRpc,
    RpcRequest,
    TopicRef,
    UpdateFeaturesRequestRpc,
)
from kraftjbod.protocol.rpc_quorum_messages import (
    AddRaftVoterRequestRpc,
    DescribeQuorumRequestRpc,
    RemoveRaftVoterRequestRpc,
)
from kraftjbod.protocol.rpc_quota_messages import AlterClientQuotasRequestRpc
from kraftjbod.protocol.rpc_scram_messages import AlterUserScramCredentialsRequestRpc

_Op = AclOperation
_CODES: Final = {
    AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    AclResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
_ALTERS_CLUSTER: Final = (
    AlterPartitionReassignmentsRequestRpc,
    ElectLeadersRequestRpc,
    UnregisterBrokerRequestRpc,
    UnregisterControllerRequestRpc,
    UpdateFeaturesRequestRpc,
    AddRaftVoterRequestRpc,
    RemoveRaftVoterRequestRpc,
    CreateAclsRequestRpc,
    DeleteAclsRequestRpc,
    AlterUserScramCredentialsRequestRpc,
)
_DESCRIBES_CLUSTER: Final = (ListPartitionReassignmentsRequestRpc, DescribeQuorumRequestRpc)
_ON_CLUSTER: Final = (
    (_ALTERS_CLUSTER, _Op.ALTER),
    (_DESCRIBES_CLUSTER, _Op.DESCRIBE),
    ((AlterClientQuotasRequestRpc,), _Op.ALTER_CONFIGS),
)


class Right(NamedTuple):
    """A right that the client of a request needs: an operation on one resource.

    ``or_on_cluster``: the operation on the cluster suffices instead.
    """

    operation: AclOperation
    resource_type: AclResourceType
    name: str
    or_on_cluster: bool = False


def rights_of(request: RpcRequest, state: MetadataState) -> Iterator[Right]:
    """Yield the rights that a client needs for ``request``; none if the controller requires none,
    as for reading configurations.
    """
    match request:
        case CreateTopicsRequestRpc():
            for new in request.topics:
                yield Right(_Op.CREATE, AclResourceType.TOPIC, new.name, or_on_cluster=True)
        case DeleteTopicsRequestRpc():
            for ref in request.topics:
                name = _name_of(ref, state)
                if name is not None:
                    yield Right(_Op.DELETE, AclResourceType.TOPIC, name, or_on_cluster=True)
        case CreatePartitionsRequestRpc():
            for grown in request.topics:
                yield Right(_Op.ALTER, AclResourceType.TOPIC, grown.name)
        case IncrementalAlterConfigsRequestRpc():
            for resource in request.resources:
                yield _right_of_configs(resource.resource_type, resource.name)
        case _:
            for kinds, operation in _ON_CLUSTER:
                if isinstance(request, kinds):
                    yield Right(operation, AclResourceType.CLUSTER, CLUSTER_NAME)


def _name_of(ref: TopicRef, state: MetadataState) -> str | None:
    if ref.name is not None:
        return ref.name
    topic = None if ref.topic_id is None else state.topics.get(ref.topic_id)
    return None if topic is None else topic.name


def _right_of_configs(kind: int, name: str) -> Right:
    if kind == ResourceType.TOPIC:
        return Right(_Op.ALTER_CONFIGS, AclResourceType.TOPIC, name)
    if kind == ResourceType.GROUP:
        return Right(_Op.ALTER_CONFIGS, AclResourceType.GROUP, name)
    return Right(_Op.ALTER_CONFIGS, AclResourceType.CLUSTER, CLUSTER_NAME)


def require_rights(
    authorizer: StandardAuthorizer, request: RpcRequest, state: MetadataState
) -> None:
    """Require that the client of a forwarded request has all rights. A request without a client
    needs none.

    :raises OperatingError: TOPIC_, GROUP_ or CLUSTER_AUTHORIZATION_FAILED.
    """
    if request.client_principal is None:
        return
    principal, host = request.client_principal, request.client_host or "?"
    for right in rights_of(request, state):
        operation = right.operation
        decision = authorizer.decide(principal, host, operation, right.resource_type, right.name)
        if not decision.is_allowed and right.or_on_cluster:
            decision = authorizer.decide(
                principal, host, operation, AclResourceType.CLUSTER, CLUSTER_NAME
            )
        if not decision.is_allowed:
            raise OperatingError(
                f"{principal} at {host} may not {operation.name} the "
                f"{right.resource_type.name} {right.name}.",
                code=_CODES[right.resource_type],
            )
