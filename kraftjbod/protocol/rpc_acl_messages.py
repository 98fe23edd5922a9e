"""PURE. RPC messages that brokers forward to the controller to change access control lists.

The rules of rpc_messages.py apply. Numbers of enumerations are those of ``core/acl.py``. The
controller validates them, so that a wrong one is refused for its binding or filter only.
"""

from __future__ import annotations

from pydantic import Field

from kraftjbod.core.acl import AclBinding
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.protocol.rpc_messages import RpcBody, RpcRequest, RpcResponse


class AclBody(RpcBody):
    """An ``AclBinding`` in a message, with enumerations as Kafka's numbers."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    @classmethod
    def from_binding(cls, binding: AclBinding) -> AclBody:
        return cls(
            resource_type=binding.resource_type,
            resource_name=binding.resource_name,
            pattern_type=binding.pattern_type,
            principal=binding.principal,
            host=binding.host,
            operation=binding.operation,
            permission=binding.permission,
        )


class AclOutcome(RpcBody):
    """Result of the creation of one binding."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class CreateAclsResponseRpc(RpcResponse):
    """One result per binding of the request, in the same order."""

    results: tuple[AclOutcome, ...] = ()


class CreateAclsRequestRpc(RpcRequest):
    """Add bindings (Kafka's CreateAcls). A binding that exists is no error."""

    api = "CreateAcls"
    Response = CreateAclsResponseRpc

    creations: tuple[AclBody, ...] = Field(max_length=MAX_ITEMS_PER_REQUEST)


class AclFilterBody(RpcBody):
    """An ``AclFilter`` in a message, with enumerations as Kafka's numbers. A text that is None
    selects all.
    """

    resource_type: int
    resource_name: str | None = None
    pattern_type: int
    principal: str | None = None
    host: str | None = None
    operation: int
    permission: int


class DeletedAcls(RpcBody):
    """Result of one filter of a DeleteAcls request: ``matching`` are the deleted bindings that it
    selected.
    """

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    matching: tuple[AclBody, ...] = ()


class DeleteAclsResponseRpc(RpcResponse):
    """One result per filter of the request, in the same order."""

    results: tuple[DeletedAcls, ...] = ()


class DeleteAclsRequestRpc(RpcRequest):
    """Delete the bindings that filters select (Kafka's DeleteAcls)."""

    api = "DeleteAcls"
    Response = DeleteAclsResponseRpc

    filters: tuple[AclFilterBody, ...] = Field(max_length=MAX_ITEMS_PER_REQUEST)
