"""LOOP. Logs in the client of one connection by SASL, and again before its session expires.

* Before the login only ApiVersions, SaslHandshake and SaslAuthenticate are answered. Any other
  request closes the connection; no field of it is decoded.
* Until then the connection has a smaller limit of its frames, a memory budget that all connections
  without a login share, and a deadline.
* A failed login is answered after a delay, in which nothing of the connection is read (KIP-306).
* A session with a lifetime ends the connection unless the client authenticates again (KIP-368).
  The user and the mechanism of a connection never change.
* Only SaslHandshake version 1 is served: in version 0 the messages of a login have no header.

ADR 112 explains the limits and the states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.errors import ErrorCode, RemoteProtocolError, UnansweredError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.connection import Connection
from kraftjbod.net.listener import LoginBounds
from kraftjbod.net.memory_budget import MemoryBudget
from kraftjbod.net.request_session import PendingRequest
from kraftjbod.net.sasl_mechanism import (
    LoginFailedError,
    MakeSaslMechanism,
    SaslMechanism,
    SaslStep,
    require_user,
)
from kraftjbod.protocol.kafka_codec import (
    ApiKey,
    Message,
    RequestHeader,
    api_key_of,
    api_name,
    decode_request,
    encode_response,
)
from kraftjbod.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_log = get_logger()
_LOGIN_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Enabled mechanisms of SASL, and the limits of logins, at one listener."""

    mechanisms: Mapping[str, MakeSaslMechanism]
    """The enabled mechanisms by name, in the order in which clients see them."""
    memory: MemoryBudget
    """Budget of connections without a login, shared by all listeners of the daemon."""
    max_receive_bytes: int = 524_288
    """Largest request before the login."""
    timeout_ms: int = 30_000
    """A connection is closed if a login takes longer."""
    failure_delay_ms: int = 100
    """Delay of the answer to a failed login."""
    max_reauth_ms: int = 0
    """Lifetime of a session; 0: unlimited."""
    least_reauth_ms: int = 1000
    """A client may authenticate again after this time (KIP-368)."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits for a number of seconds before the answer to a failed login."""

    @property
    def bounds(self) -> LoginBounds:
        """Limits of a connection before the login."""
        return LoginBounds(max_frame_bytes=self.max_receive_bytes, memory=self.memory)


def log_failed_login(peer: str, listener: str, mechanism: str | None, reason: str) -> None:
    """Log that the peer of a connection could not prove its identity.

    :param peer: ``host:port`` of the peer.
    """
    _log.warning(
        "authentication_failed", peer=peer, listener=listener, mechanism=mechanism, reason=reason
    )


def log_expired_session(peer: str, listener: str) -> None:
    """Log that the peer of a connection did not authenticate again."""
    _log.warning("authentication_expired", peer=peer, listener=listener)


class _State(Enum):
    VERSIONS = "nothing was received"
    HANDSHAKE = "the versions are known"
    AUTHENTICATE = "the mechanism is known"
    OPEN = "logged in"
    FAILED = "the login failed"


class Authentication:
    """The SASL login of one connection, on the server's side.

    Pass each request to :meth:`intercept` first. ``logged_in`` is called with the principal, before
    the answer to the last request of the first login is written.
    """

    def __init__(
        self,
        connection: Connection,
        settings: SaslSettings,
        *,
        listener_name: str,
        logged_in: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._listener_name = listener_name
        self._logged_in = logged_in
        self._loop = asyncio.get_running_loop()
        self._state = _State.VERSIONS
        self._mechanism_name = ""
        self._mechanism: SaslMechanism | None = None
        #: Name of the user after the first login.
        self._user: str | None = None
        #: Whether the event of the failed login was logged before its last message.
        self._has_logged_failure = False
        self._since_s = 0.0
        #: Loop time at which the session ends.
        self._expires_s: float | None = None
        self._deadline = self._start_deadline()

    @property
    def is_open(self) -> bool:
        """Whether the client is logged in, and not about to authenticate again."""
        return self._state is _State.OPEN

    def intercept(self, request: PendingRequest) -> Awaitable[Any] | None:
        """Return the answer to a request that belongs to the login; None if the caller must handle
        it.

        :raises RemoteProtocolError: the request may not come now.
        :raises UnansweredError: the session expired.
        """
        api_key = api_key_of(request.frame)
        if self._state is _State.OPEN:
            if api_key == ApiKey.SASL_HANDSHAKE and self._may_authenticate_again():
                self._deadline = self._start_deadline()
                return self._handshake(request)
            if api_key not in _LOGIN_APIS:
                self._require_lifetime()
            return None
        match self._state, api_key:
            case _State.VERSIONS, ApiKey.API_VERSIONS:
                return None
            case _State.VERSIONS | _State.HANDSHAKE, ApiKey.SASL_HANDSHAKE:
                return self._handshake(request)
            case _State.AUTHENTICATE, ApiKey.SASL_AUTHENTICATE:
                return self._authenticate(request)
            case _:
                hint = "" if self._user else ": the client may not use SASL"
                raise RemoteProtocolError(
                    f"{api_name(api_key)} came before the login was complete "
                    f"({self._state.value}){hint}"
                )

    def versions_answered(self) -> None:
        """Record that an ApiVersions request was answered. Before the login a second one is
        refused.
        """
        if self._state is _State.VERSIONS:
            self._state = _State.HANDSHAKE

    def connection_closed(self) -> None:
        self._deadline.cancel()

    # --- the requests ----------------------------------------------------------------------------

    def _handshake(self, request: PendingRequest) -> Awaitable[Any]:
        header, body = _decode(request)
        assert isinstance(body, SaslHandshakeRequest), body
        settings = self._settings
        names = [*settings.mechanisms]
        if body.mechanism not in settings.mechanisms:
            answer = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=names
            )
            reason = f"the mechanism {body.mechanism[:40]!r} is not in sasl.enabled.mechanisms"
            return self._fail(header, answer, reason)
        if self._user is not None and body.mechanism != self._mechanism_name:
            # The failure is the answer to the next request, as in Kafka.
            self._mechanism = _Refusal(
                f"authenticates again with {body.mechanism}, and not {self._mechanism_name}"
            )
        else:
            self._mechanism = settings.mechanisms[body.mechanism]()
            self._mechanism_name = body.mechanism
        self._state = _State.AUTHENTICATE
        return Completion.of(encode_response(header, SaslHandshakeResponse(mechanisms=names)))

    def _authenticate(self, request: PendingRequest) -> Awaitable[Any]:
        header, body = _decode(request)
        assert isinstance(body, SaslAuthenticateRequest), body
        assert self._mechanism is not None
        try:
            step = self._mechanism.respond(bytes(body.auth_bytes))
            lifetime_ms = 0 if step.user is None else self._log_in(step.user, step)
        except LoginFailedError as e:
            answer = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=e.shown or self._fixed_text(),
                auth_bytes=b"",
            )
            return self._fail(header, answer, str(e))
        if step.failure is not None:
            # Logged now, because a client may disconnect instead of confirming.
            self._has_logged_failure = True
            self._log_failure(step.failure)
        answer = SaslAuthenticateResponse(
            error_message=None, auth_bytes=step.token, session_lifetime_ms=lifetime_ms
        )
        return Completion.of(encode_response(header, answer))

    def _fixed_text(self) -> str:
        kind = "authentication" if self._user is None else "re-authentication"
        return (
            f"Authentication failed during {kind} due to invalid credentials with SASL mechanism "
            f"{self._mechanism_name}"
        )

    def _log_in(self, user: str, step: SaslStep) -> int:
        """Open the session, and return its lifetime in ms; 0: unlimited.

        :raises LoginFailedError: the connection belongs to another user.
        """
        require_user(user)
        if self._user not in (None, user):
            raise LoginFailedError("authenticates again as another user")
        self._mechanism = None
        self._state = _State.OPEN
        self._since_s = self._loop.time()
        self._deadline.cancel()
        limits_ms = [self._settings.max_reauth_ms] if self._settings.max_reauth_ms > 0 else []
        if step.lifetime_ms is not None:
            limits_ms.append(max(0, step.lifetime_ms))
        lifetime_ms = min([MAX_LONG, *limits_ms])
        self._expires_s = self._since_s + lifetime_ms / 1000 if limits_ms else None
        if self._user is None:
            self._user = user
            self._logged_in(f"User:{user}")
        return lifetime_ms if limits_ms else 0

    def _may_authenticate_again(self) -> bool:
        is_old = (self._loop.time() - self._since_s) * 1000 >= self._settings.least_reauth_ms
        return self._expires_s is not None and is_old

    def _require_lifetime(self) -> None:
        if self._expires_s is not None and self._loop.time() > self._expires_s:
            log_expired_session(self._connection.peer, self._listener_name)
            raise UnansweredError("the session expired, and the client did not authenticate again")

    # --- failures --------------------------------------------------------------------------------

    def _fail(self, header: RequestHeader, answer: Message, reason: str) -> Awaitable[Any]:
        self._state = _State.FAILED
        self._mechanism = None
        self._deadline.cancel()
        self._connection.pause_reading()
        if not self._has_logged_failure:
            self._log_failure(reason)
        return self._answer_later(header, answer)

    def _log_failure(self, reason: str) -> None:
        log_failed_login(
            self._connection.peer, self._listener_name, self._mechanism_name or None, reason
        )

    async def _answer_later(self, header: RequestHeader, answer: Message) -> None:
        await self._settings.sleep(self._settings.failure_delay_ms / 1000)
        # No other request of the connection is in flight, so the order of answers is kept.
        self._connection.write(encode_response(header, answer))
        self._connection.close("the login failed")

    def _start_deadline(self) -> asyncio.TimerHandle:
        return self._loop.call_later(self._settings.timeout_ms / 1000, self._time_out)

    def _time_out(self) -> None:
        if self._connection.is_open:
            self._connection.refuse(
                RemoteProtocolError(
                    f"the login took longer than {self._settings.timeout_ms} ms "
                    f"({self._state.value})"
                )
            )


class _Refusal:
    """A mechanism object for a login that cannot succeed: it refuses the client's first message for
    ``reason``.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def respond(self, message: bytes) -> SaslStep:
        raise LoginFailedError(self._reason)


def _decode(request: PendingRequest) -> tuple[RequestHeader, Message | None]:
    header, body = decode_request(request.frame)
    request.api = api_name(header.api_key)
    return header, body
