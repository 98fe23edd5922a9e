"""LOOP. The client's side of the mechanism OAUTHBEARER (RFC 7628), over SaslHandshake version 1.

A token is fetched in an executor, because the identity provider may be slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.net.sasl_login import choose_mechanism
from kraftjbod.protocol.messages import SaslAuthenticateRequest

OAUTHBEARER: Final = "OAUTHBEARER"
_CONFIRMATION: Final = b"\x01"


class TokenLogin:
    """Logs in by OAUTHBEARER on each new connection."""

    def __init__(self, make_token: Callable[[], tuple[str, float]]) -> None:
        """:param make_token: returns a token and its expiry in wall-clock seconds; may block."""
        self._make_token = make_token

    async def __call__(self, connection: KafkaConnection, timeout_ms: int) -> int:
        """Log in, and return the lifetime of the session in ms; 0: unlimited.

        :raises OperatingError: UNSUPPORTED_SASL_MECHANISM, or SASL_AUTHENTICATION_FAILED with the
            broker's message; or no token could be fetched, or the broker does not answer.
        """
        loop = asyncio.get_running_loop()
        token, _ = await loop.run_in_executor(None, self._make_token)
        await choose_mechanism(connection, OAUTHBEARER, timeout_ms)
        message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        answer = await connection.request(
            SaslAuthenticateRequest(auth_bytes=message), timeout_ms=timeout_ms
        )
        if answer.error_code == ErrorCode.NONE and answer.auth_bytes:
            # The broker refused the token, and fails the login after the confirmation.
            answer = await connection.request(
                SaslAuthenticateRequest(auth_bytes=_CONFIRMATION), timeout_ms=timeout_ms
            )
        if answer.error_code != ErrorCode.NONE:
            raise OperatingError(
                f"the login by {OAUTHBEARER} failed: {answer.error_message}. The broker's event "
                "authentication_failed has the reason",
                code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            )
        return answer.session_lifetime_ms
