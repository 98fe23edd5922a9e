"""LOOP. SaslHandshake and SaslAuthenticate outside of a login.

``net/authentication.py`` answers the requests of a login. Requests that arrive here came on a
listener without SASL, or after the login of a session without a limit.
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

_OUT_OF_PLACE: Final = "no login is expected on this connection now"


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
