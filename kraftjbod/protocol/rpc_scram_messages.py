"""PURE. RPC messages that brokers forward to the controller to change SCRAM credentials.

The rules of rpc_messages.py apply. A broker derives the keys, so that no request contains a salted
password, by which its reader could log in. The controller validates numbers of mechanisms.
"""

from __future__ import annotations

from pydantic import Field

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.protocol.rpc_messages import RpcBody, RpcRequest, RpcResponse


class ScramChange(RpcBody):
    """A change of one user's SCRAM credential for one mechanism, a ``ScramMechanism``. Only
    ``user`` and ``mechanism`` count if ``is_deletion``.
    """

    user: str
    mechanism: int
    is_deletion: bool = False
    iterations: int = 0
    salt: bytes = Field(default=b"", repr=False)
    stored_key: bytes = Field(default=b"", repr=False)
    server_key: bytes = Field(default=b"", repr=False)


class ScramOutcome(RpcBody):
    """Result of one change of a credential. ``error_code`` is NONE if it was applied."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class AlterUserScramCredentialsResponseRpc(RpcResponse):
    """One result per change of the request, in the same order."""

    results: tuple[ScramOutcome, ...] = ()


class AlterUserScramCredentialsRequestRpc(RpcRequest):
    """Add, replace and delete credentials (Kafka's AlterUserScramCredentials, KIP-554)."""

    api = "AlterUserScramCredentials"
    Response = AlterUserScramCredentialsResponseRpc

    changes: tuple[ScramChange, ...] = Field(max_length=MAX_ITEMS_PER_REQUEST)
