"""PURE. RPC messages that brokers forward to the controller to change quotas of clients.

The rules of rpc_messages.py apply. The controller validates entities, keys and values.
"""

from __future__ import annotations

from pydantic import Field

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.protocol.rpc_messages import RpcBody, RpcRequest, RpcResponse


class QuotaOp(RpcBody):
    """A change of one quota: ``value`` is the new value, a finite number, or None to remove the
    quota. ``key`` is a name such as ``producer_byte_rate``.
    """

    key: str
    value: float | None = Field(default=None, allow_inf_nan=False)


class QuotaChange(RpcBody):
    """Changes of the quotas of one entity, whose items are pairs of type and name. A name that is
    None is the default of its type.
    """

    entity: tuple[tuple[str, str | None], ...]
    ops: tuple[QuotaOp, ...] = Field(max_length=MAX_ITEMS_PER_REQUEST)


class QuotaOutcome(RpcBody):
    """Result of the changes of one entity's quotas. ``error_code`` is NONE if they are valid;
    otherwise none of them is applied.
    """

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class AlterClientQuotasResponseRpc(RpcResponse):
    """One result per entity of the request, in the same order."""

    results: tuple[QuotaOutcome, ...] = ()


class AlterClientQuotasRequestRpc(RpcRequest):
    """Change quotas of clients (Kafka's AlterClientQuotas, KIP-546)."""

    api = "AlterClientQuotas"
    Response = AlterClientQuotasResponseRpc

    changes: tuple[QuotaChange, ...] = Field(max_length=MAX_ITEMS_PER_REQUEST)
    validate_only: bool = False
