"""LOOP. SaslHandshake and SaslAuthenticate on listeners without authentication.

A listener with an authenticator handles these requests itself (``net/authentication.py``). Requests
that arrive here came on a listener without one.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_OUT_OF_PLACE: Final = "this listener does not authenticate"


class SaslApis:
    async def sasl_handshake(
        self, _request: SaslHandshakeRequest, _context: RequestContext
    ) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])

    async def sasl_authenticate(
        self, _request: SaslAuthenticateRequest, _context: RequestContext
    ) -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_OUT_OF_PLACE, auth_bytes=b""
        )
