"""LOOP. SaslHandshake and SaslAuthenticate where they are out of place.

A listener with an authenticator keeps these requests to itself (``net/authentication.py``); what
comes as far as here came on one where everybody speaks without.
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
