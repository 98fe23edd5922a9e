"""PURE. The RPC message by which a node logs in to a controller, before all other requests.

The rules of rpc_messages.py apply. The request is not among the requests that controllers handle:
the listener answers it (net/rpc_authentication.py). A listener without SASL answers
UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field

from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse

#: Longest token of the mechanism PLAIN: user name and password.
MAX_TOKEN_BYTES: Final = 8192


class LoginResponseRpc(RpcResponse):
    """The sender is logged in."""

    session_lifetime_ms: int = 0
    """Time after which the connection ends unless the sender logs in again; 0: unlimited."""


class LoginRequestRpc(RpcRequest):
    """Log in by a mechanism of SASL that needs a single message (KIP-368 for later logins)."""

    api = "Login"
    Response = LoginResponseRpc

    mechanism: str = Field(max_length=100)
    token: bytes = Field(max_length=MAX_TOKEN_BYTES, repr=False)


LOGIN_REQUESTS: Final[Mapping[str, type[RpcRequest]]] = {LoginRequestRpc.api: LoginRequestRpc}
