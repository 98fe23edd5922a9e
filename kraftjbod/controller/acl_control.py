"""PURE. ``AclControlManager``: add and delete bindings of the access control lists.

The checks and error codes are those of Kafka's ``AclControlManager``. A host that is a network,
such as ``10.0.0.0/8``, is refused: a DENY that matches no client would only look like protection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    member_of,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import Uuid
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_acl_messages import (
    AclBody,
    AclOutcome,
    CreateAclsRequestRpc,
    CreateAclsResponseRpc,
    DeleteAclsRequestRpc,
    DeleteAclsResponseRpc,
    DeletedAcls,
)

#: Bindings that one request may delete; Kafka's number.
MAX_DELETED: Final = 10_000
#: Bindings of the cluster. Each node keeps them in memory, and compares them with each filter.
MAX_ACLS: Final = 100_000
_LEAST_LEVEL: Final = MetadataVersion.IV_4_4_IV2_J1


class AclControlManager:
    """Decides requests that create and delete ACL bindings. Returns the records; the replay of the
    records changes the metadata.
    """

    def __init__(self, state: MetadataState, random_bytes: Callable[[int], bytes]) -> None:
        self._state = state
        self._random_bytes = random_bytes

    def create(self, request: CreateAclsRequestRpc) -> ControllerResult[CreateAclsResponseRpc]:
        """Return a record for each valid binding that does not exist yet. Invalid ones have an
        error in the response.

        :raises OperatingError: UNSUPPORTED_VERSION: the level of ``metadata.version`` has no access
            control lists.
        """
        self._state.metadata_version.require_for(_LEAST_LEVEL, "Access control lists")
        records: dict[AclBinding, AccessControlEntryRecord] = {}
        results: list[AclOutcome] = []
        for creation in request.creations:
            try:
                binding = _require_valid(creation)
                if binding not in self._state.acl_ids and binding not in records:
                    self._require_space(len(records))
                    records[binding] = AccessControlEntryRecord(
                        acl_id=Uuid.random(self._random_bytes), binding=binding
                    )
            except OperatingError as e:
                results.append(AclOutcome(error_code=e.code, error_message=e.message))
            else:
                results.append(AclOutcome())
        response = CreateAclsResponseRpc(results=tuple(results))
        return ControllerResult(records=tuple(records.values()), response=response, is_atomic=False)

    def delete(self, request: DeleteAclsRequestRpc) -> ControllerResult[DeleteAclsResponseRpc]:
        """Return a record for each binding that a filter selects.

        A binding that two filters select is in the results of both. An invalid filter has an error
        in the response.

        :raises OperatingError: INVALID_REQUEST: more than ``MAX_DELETED`` bindings are selected.
        """
        going: dict[Uuid, RemoveAccessControlEntryRecord] = {}
        results: list[DeletedAcls] = []
        for one in request.filters:
            try:
                chosen = AclFilter.from_numbers(
                    one.resource_type,
                    one.resource_name,
                    one.pattern_type,
                    one.principal,
                    one.host,
                    one.operation,
                    one.permission,
                )
            except OperatingError as e:
                results.append(DeletedAcls(error_code=e.code, error_message=e.message))
                continue
            matching: list[AclBody] = []
            for acl_id, binding in self._matching(chosen):
                matching.append(AclBody.from_binding(binding))
                going[acl_id] = RemoveAccessControlEntryRecord(acl_id=acl_id)
                if len(going) > MAX_DELETED:
                    raise OperatingError(
                        f"Cannot remove more than {MAX_DELETED} acls in a single delete operation.",
                        code=ErrorCode.INVALID_REQUEST,
                    )
            results.append(DeletedAcls(matching=tuple(matching)))
        response = DeleteAclsResponseRpc(results=tuple(results))
        return ControllerResult(records=tuple(going.values()), response=response, is_atomic=False)

    def _matching(self, chosen: AclFilter) -> Iterator[tuple[Uuid, AclBinding]]:
        exact = chosen.exact()
        if exact is not None:
            acl_id = self._state.acl_ids.get(exact)
            if acl_id is not None:
                yield acl_id, exact
            return
        for acl_id, binding in self._state.acls.items():
            if chosen.matches(binding):
                yield acl_id, binding

    def _require_space(self, new: int) -> None:
        if len(self._state.acls) + new >= MAX_ACLS:
            raise OperatingError(
                f"The cluster has {MAX_ACLS} acls already: use prefixed patterns, or delete some.",
                code=ErrorCode.POLICY_VIOLATION,
            )


def _require_valid(body: AclBody) -> AclBinding:
    """Return the binding of ``body``.

    :raises OperatingError: INVALID_REQUEST: a value that Kafka refuses.
    """
    binding = AclBinding(
        member_of(AclResourceType, body.resource_type),
        body.resource_name,
        member_of(AclPatternType, body.pattern_type),
        body.principal,
        body.host,
        member_of(AclOperation, body.operation),
        member_of(AclPermission, body.permission),
    )
    if problem := _problem_of(binding):
        raise OperatingError(problem, code=ErrorCode.INVALID_REQUEST)
    return binding


def _problem_of(binding: AclBinding) -> str | None:
    if binding.resource_type in (AclResourceType.UNKNOWN, AclResourceType.ANY):
        return f"Invalid resourceType {binding.resource_type.name}"
    if not binding.resource_name:
        return "Resource name should not be empty"
    is_cluster = binding.resource_type is AclResourceType.CLUSTER
    if is_cluster and binding.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}."
    if binding.pattern_type not in (AclPatternType.LITERAL, AclPatternType.PREFIXED):
        return f"Invalid patternType {binding.pattern_type.name}"
    kind, colon, name = binding.principal.partition(":")
    if not (kind and colon and name):
        return f"Could not parse principal from `{binding.principal}`: write Type:name"
    if not binding.host:
        return "Host should not be empty"
    if "/" in binding.host:
        return f"The host {binding.host} is a network: name addresses, or * for all"
    if binding.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        return f"Invalid operation {binding.operation.name}"
    if binding.permission not in (AclPermission.ALLOW, AclPermission.DENY):
        return f"Invalid permissionType {binding.permission.name}"
    return None
