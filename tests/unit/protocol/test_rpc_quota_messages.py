"""Changes of quotas: the entity's default names and removed values cross the RPC."""

from __future__ import annotations

from kraftjbod.protocol import rpc_codec
from kraftjbod.protocol.rpc_quota_messages import (
    AlterClientQuotasRequestRpc,
    QuotaChange,
    QuotaOp,
)


def test_quota_change_keeps_defaults_and_removals() -> None:
    change = QuotaChange(
        entity=(("client-id", None), ("user", "alice")),
        ops=(QuotaOp(key="producer_byte_rate", value=1e18), QuotaOp(key="consumer_byte_rate")),
    )
    request = AlterClientQuotasRequestRpc(changes=(change,), validate_only=True)
    frame = rpc_codec.encode_request(7, request)
    assert rpc_codec.decode_request(frame[4:]).body == request
