"""LOOP. Logins on the RPC between brokers and controllers: the server's side of one connection.

* Before the login only ``Login`` is answered. Any other request closes the connection, and no field
  of its body is decoded.
* The mechanism is PLAIN. SCRAM is not served: a controller that lost its metadata would have no
  credentials to verify.
* A failed login is answered after a delay, and closes the connection.
* A session with a lifetime ends the connection unless the node logs in again (KIP-368). The user of
  a connection never changes.

The limits before a login are those of authentication.py (ADR 112).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.errors import ErrorCode, OperatingError, RemoteProtocolError, UnansweredError
from kraftjbod.core.telemetry import shortened
from kraftjbod.net.authentication import SaslSettings, log_expired_session, log_failed_login
from kraftjbod.net.connection import Connection
from kraftjbod.net.request_session import PendingRequest
from kraftjbod.net.sasl_mechanism import LoginFailedError, require_user
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.rpc_codec import (
    decode_request,
    encode_error,
    encode_response,
    request_head,
)
from kraftjbod.protocol.rpc_login_messages import (
    LOGIN_REQUESTS,
    LoginRequestRpc,
    LoginResponseRpc,
)


class RpcAuthentication:
    """The login of one connection of the RPC between brokers and controllers, on the server's side.
    Pass each request to :meth:`intercept` first.
    """

    def __init__(
        self,
        connection: Connection,
        settings: SaslSettings,
        *,
        listener_name: str,
        logged_in: Callable[[str], None],
    ) -> None:
        """:param logged_in: called with the principal, before the first login is answered."""
        self._connection = connection
        self._settings = settings
        self._listener_name = listener_name
        self._logged_in = logged_in
        self._loop = asyncio.get_running_loop()
        #: Name of the user after the first login.
        self._user: str | None = None
        self._has_failed = False
        #: Loop time at which the session ends.
        self._expires_s: float | None = None
        self._deadline = self._loop.call_later(settings.timeout_ms / 1000, self._time_out)

    async def intercept(self, pending: PendingRequest) -> Buffer | None:
        """Return the answer to a login. Return None for another request of a node that is logged
        in, which the caller must handle.

        :raises RemoteProtocolError: the request came before the login, or after a failed one; or a
            login is malformed.
        :raises UnansweredError: the session expired.
        """
        correlation_id, pending.api = request_head(pending.frame)
        if pending.api == LoginRequestRpc.api and not self._has_failed:
            request = decode_request(pending.frame, LOGIN_REQUESTS)
            if request.body is None:
                raise RemoteProtocolError(f"version {request.version} of Login is not served")
            assert isinstance(request.body, LoginRequestRpc), request.body
            return await self._answer(correlation_id, request.body)
        if self._user is None or self._has_failed:
            raise RemoteProtocolError(
                f"{shortened(pending.api)} came before the login: set the security protocol of "
                f"the listener {self._listener_name} to SASL_SSL in the sender's file"
            )
        self._require_lifetime()
        return None

    def connection_closed(self) -> None:
        self._deadline.cancel()

    async def _answer(self, correlation_id: int, request: LoginRequestRpc) -> Buffer:
        try:
            return encode_response(correlation_id, self._log_in(request))
        except LoginFailedError as e:
            self._has_failed = True
            mechanism = shortened(request.mechanism)
            log_failed_login(self._connection.peer, self._listener_name, mechanism, str(e))
            await self._settings.sleep(self._settings.failure_delay_ms / 1000)
            self._loop.call_soon(self._connection.close, "the login failed")
            text = e.shown or "Authentication failed"
            return encode_error(
                correlation_id,
                OperatingError(text, code=ErrorCode.SASL_AUTHENTICATION_FAILED),
            )

    def _log_in(self, request: LoginRequestRpc) -> LoginResponseRpc:
        make_mechanism = self._settings.mechanisms.get(request.mechanism)
        if make_mechanism is None:
            reason = f"the mechanism {shortened(request.mechanism)} is not served to nodes"
            raise LoginFailedError(reason, shown=reason)
        user = make_mechanism().respond(request.token).user
        if user is None:
            raise LoginFailedError("the mechanism needs more than one message")
        require_user(user)
        if self._user not in (None, user):
            raise LoginFailedError("logs in again as another user")
        self._deadline.cancel()
        lifetime_ms = min(MAX_LONG, self._settings.max_reauth_ms)
        self._expires_s = self._loop.time() + lifetime_ms / 1000 if lifetime_ms > 0 else None
        if self._user is None:
            self._user = user
            self._logged_in(f"User:{user}")
        return LoginResponseRpc(session_lifetime_ms=lifetime_ms)

    def _require_lifetime(self) -> None:
        if self._expires_s is not None and self._loop.time() > self._expires_s:
            log_expired_session(self._connection.peer, self._listener_name)
            raise UnansweredError("the session expired, and the node did not log in again")

    def _time_out(self) -> None:
        if self._connection.is_open:
            self._connection.refuse(
                RemoteProtocolError(f"no login within {self._settings.timeout_ms} ms")
            )
