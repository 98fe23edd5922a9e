"""LOOP. Holds the requests of a connection until its client is authenticated.

* A listener without an authenticator accepts every client as ``User:ANONYMOUS`` at once, and does
  not use this file.
* With an authenticator, authentication requests go to it, and ApiVersions is always answered. All
  other requests are held. After authentication they start in order of arrival, with the principal.
* A connection is closed if it holds too many requests, or does not authenticate in time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.connection import Connection
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.request_session import Answer, MayBeLarge, PendingRequest, as_it_is
from kraftjbod.protocol.framing import Frame
from kraftjbod.protocol.kafka_codec import ApiKey, Message, RequestHeader, api_key_of

_log = get_logger()
#: Always answered, because a client needs it to learn how to authenticate.
_ALWAYS: Final = ApiKey.API_VERSIONS
_AUTHENTICATING: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class AuthenticationFailedError(RemoteProtocolError):
    """The authentication failed; ``answer`` is sent to the peer before the connection is closed."""

    def __init__(self, reason: str, answer: Message) -> None:
        super().__init__(reason)
        self.answer = answer


class Authenticator(Protocol):
    """Processes the authentication requests of one connection, one after the other."""

    async def authenticate(self, header: RequestHeader, body: Message) -> Message:
        """Return the response to a SaslHandshake or SaslAuthenticate request.

        :raises AuthenticationFailedError: the connection is to be closed after its ``answer`` is
            sent.
        """
        ...

    @property
    def principal(self) -> str | None:
        """The authenticated principal, such as ``"User:alice"``; None until it is known."""
        ...


MakeAuthenticator = Callable[[ConnectionContext], Authenticator]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationLimits:
    """Limits of a connection that is not authenticated yet."""

    timeout_ms: int = 30_000
    max_held_requests: int = 20
    max_held_bytes: int = 64 * 1024


class HeldRequests:
    """Answers the requests of one connection on a listener with an authenticator.

    :meth:`answer` replaces ``open_answer``, which answers the requests of an authenticated client.
        ``authenticated`` is called with the principal after each successful authentication, the
        first time before the first held request starts.
    """

    def __init__(
        self,
        connection: Connection,
        authenticator: Authenticator,
        *,
        open_answer: Answer,
        may_be_large: MayBeLarge,
        decode: Callable[[PendingRequest], tuple[RequestHeader, Message | None]],
        encode: Callable[[RequestHeader, Message], Any],
        authenticated: Callable[[str], None],
        limits: AuthenticationLimits,
    ) -> None:
        self._connection = connection
        self._authenticator = authenticator
        self._open_answer = open_answer
        self._may_be_large = may_be_large
        self._decode = decode
        self._encode = encode
        self._authenticated = authenticated
        self._limits = limits
        #: One future per held request, in order of arrival; done when the request may start.
        self._held: deque[asyncio.Future[None]] = deque()
        self._held_bytes = 0
        self._is_open = False
        #: Serializes the authentication requests.
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(limits.timeout_ms / 1000, self._give_up)

    def answer(self, request: PendingRequest) -> Awaitable[Any]:
        api_key = api_key_of(request.frame)
        if api_key in _AUTHENTICATING:
            return self._authenticate(request)
        if (self._is_open and not self._held) or api_key == _ALWAYS:
            return self._open_answer(request)
        turn = self._loop.create_future()
        self._held.append(turn)
        self._held_bytes += request.size_bytes
        limits = self._limits
        is_too_much = (
            len(self._held) > limits.max_held_requests or self._held_bytes > limits.max_held_bytes
        )
        if is_too_much and not self._is_open:
            raise RemoteProtocolError(
                f"{len(self._held)} requests of {self._held_bytes} bytes came before the "
                "authentication was complete"
            )
        return self._in_turn(request, turn)

    def may_be_large(self, request: Frame) -> bool:
        """Return whether the response to ``request`` may be large.

        False while requests are held, so that the session starts authentication requests at once.
        """
        return self._is_open and not self._held and self._may_be_large(request)

    async def _in_turn(self, request: PendingRequest, turn: asyncio.Future[None]) -> Any:
        await turn
        self._held.popleft()
        self._held_bytes -= request.size_bytes
        answering = self._open_answer(request)
        self._begin_next()
        answer = await answering
        encode, request.encode = request.encode, as_it_is
        return encode(answer)

    def _begin_next(self) -> None:
        if self._held:
            self._held[0].set_result(None)

    async def _authenticate(self, request: PendingRequest) -> Any:
        async with self._turn:
            header, body = self._decode(request)
            assert body is not None, header
            try:
                answer = await self._authenticator.authenticate(header, body)
            except AuthenticationFailedError as e:
                # Written directly, because earlier held requests will never be answered.
                _log.warning("authentication_failed", peer=self._connection.peer, reason=str(e))
                self._connection.write(self._encode(header, e.answer))
                self._connection.close("the authentication failed")
                return None
            principal = self._authenticator.principal
            if principal is not None:
                self._timer.cancel()
                self._authenticated(principal)
                if not self._is_open:
                    self._is_open = True
                    self._begin_next()
            return self._encode(header, answer)

    def _give_up(self) -> None:
        if not self._is_open and self._connection.is_open:
            self._connection.refuse(
                RemoteProtocolError(
                    f"the authentication took longer than {self._limits.timeout_ms} ms"
                )
            )
