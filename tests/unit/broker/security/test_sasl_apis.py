"""SASL requests to a listener without authentication."""

from __future__ import annotations

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.unit.broker.broker_rig import brokers


async def test_sasl_request_on_a_plaintext_listener_returns_illegal_sasl_state() -> None:
    async with brokers() as (rig,):
        connection = await rig.connect()
        for request in (SaslHandshakeRequest(mechanism="PLAIN"), SaslAuthenticateRequest()):
            answer = await connection.request(request, timeout_ms=20_000)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
