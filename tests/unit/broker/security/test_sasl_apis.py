"""Who authenticates where nobody has to hears that, and may go on."""

from __future__ import annotations

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.unit.broker.broker_rig import brokers


async def test_a_listener_that_does_not_authenticate_says_so() -> None:
    async with brokers() as (rig,):
        connection = await rig.connect()
        for request in (SaslHandshakeRequest(mechanism="PLAIN"), SaslAuthenticateRequest()):
            answer = await connection.request(request, timeout_ms=20_000)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
