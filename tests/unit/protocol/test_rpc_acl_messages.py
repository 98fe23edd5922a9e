"""Messages about access control lists keep their values on the wire."""

from __future__ import annotations

from kraftjbod.core.acl import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from kraftjbod.protocol.rpc_acl_messages import AclBody, CreateAclsRequestRpc

BINDING = AclBinding(
    AclResourceType.GROUP,
    "g",
    AclPatternType.PREFIXED,
    "User:CN=a,O=b",
    "*",
    AclOperation.READ,
    AclPermission.DENY,
)


def test_acl_body_has_the_numbers_of_its_binding() -> None:
    body = AclBody.from_binding(BINDING)
    request = CreateAclsRequestRpc(creations=(body,), client_principal="User:x", client_host="h")
    read = CreateAclsRequestRpc.model_validate(request.model_dump(mode="json"))
    (found,) = read.creations
    assert tuple(found.model_dump().values()) == (3, "g", 4, "User:CN=a,O=b", "*", 3, 2)
    assert (read.client_principal, read.client_host) == ("User:x", "h")
