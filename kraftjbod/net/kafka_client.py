"""LOOP. A client connection to any Kafka broker, for follower fetch and for the tools.

Requests may be pipelined. Responses arrive in order, and each one is checked against its request.
Versions are negotiated once, when connecting.

With a login whose session ends (KIP-368), the connection logs in again before a request when most
of the session's time has passed. Requests in flight are answered first, because answers are in
order. Requests that come meanwhile wait.

A request that times out closes the connection, because a late response would not match the next
request. This class does not reconnect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from kraftjbod.core import buggify
from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    OperatingError,
    OverloadedError,
    RemoteProtocolError,
    RequestTimedOutError,
)
from kraftjbod.net.connection import Connection, ConnectionLimits
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.plain_credential import RENEWAL_SHARE
from kraftjbod.protocol.framing import Frame
from kraftjbod.protocol.kafka_codec import (
    OWN_SOFTWARE_NAME,
    SUPPORTED,
    ApiKey,
    Message,
    Request,
    api_name,
    correlation_id_of,
    decode_response,
    encode_request,
    request_api_key,
)
from kraftjbod.protocol.messages import ApiVersionsRequest, ProduceRequest

R = TypeVar("R")

DEFAULT_CONNECTION_LIMITS = ConnectionLimits(max_frame_bytes=256 * 1024 * 1024)
_CORRELATION_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A request that was sent, with the future of its response."""

    correlation_id: int
    api_key: int
    version: int
    response: asyncio.Future[Message]


Login = Callable[["KafkaConnection", int], Awaitable[int]]
"""Authenticates this side on a connection, within a number of milliseconds for each request.

Returns the lifetime of the session in ms; 0: unlimited.
"""
_LOGIN_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class KafkaConnection:
    """A client connection to one broker, created by :meth:`connect`. A closed connection cannot be
    reopened."""

    def __init__(self, connection: Connection, *, client_id: str, max_in_flight: int) -> None:
        self._connection = connection
        self._client_id = client_id
        self._max_in_flight = max_in_flight
        self._waiting: deque[_Waiting] = deque()
        self._next_correlation_id = 0
        #: Highest version that both sides support, by API key; set when connecting.
        self._versions: dict[int, int] = {}
        self._login: Login | None = None
        self._login_lock = asyncio.Lock()
        #: Loop time of the next login; None: the session has no end.
        self._login_due_s: float | None = None

    def __repr__(self) -> str:
        return f"<KafkaConnection {self._connection!r} in_flight={len(self._waiting)}>"

    @staticmethod
    async def connect(
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_ms: int,
        limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS,
        max_in_flight: int = 100,
        dialer: Dialer = PLAIN,
        login: Login | None = None,
    ) -> KafkaConnection:
        """Connect, negotiate versions, and log in.

        :param dialer: opens the connection.
        :param login: authenticates this side on the new connection, such as by SASL.
        :raises ConnectionLostError: the connection failed.
        :raises RequestTimedOutError: the broker accepts connections but does not answer.
        :raises OperatingError: the broker does not report its versions, or an error of ``login``.
        """

        def make(connection: Connection) -> KafkaConnection:
            return KafkaConnection(connection, client_id=client_id, max_in_flight=max_in_flight)

        made = await dialer.connect(
            host, port, make_receiver=make, limits=limits, timeout_ms=timeout_ms
        )
        try:
            await made._negotiate(timeout_ms)
            if login is not None:
                made._login = login
                await made._log_in(login, timeout_ms)
        except BaseException:
            made.close()
            raise
        return made

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    def version_of(self, api_key: int) -> int:
        """Return the highest version of an API that both sides support.

        :raises OperatingError: UNSUPPORTED_VERSION: there is none.
        """
        version = self._versions.get(api_key)
        if version is None:
            raise OperatingError(
                f"{self._connection.peer} serves no version of {api_name(api_key)} that we speak",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        return version

    async def request(self, body: Request[R], *, timeout_ms: int, version: int | None = None) -> R:
        """Send a request and return its response.

        Produce with ``acks=0`` has no response and returns None at once. Records in the response
        are memoryviews into its frame.

        :param version: version of the API; the highest common version by default.
        :raises RequestTimedOutError: no response in time; the connection is closed.
        :raises ConnectionLostError: the connection is or was closed.
        :raises OverloadedError: ``max_in_flight`` requests are in flight.
        :raises OperatingError: UNSUPPORTED_VERSION: both sides have no version in common.
        """
        api_key = request_api_key(body)
        if self._is_login_due and api_key not in _LOGIN_APIS:
            await self._log_in_again(timeout_ms)
        if version is None:
            version = self.version_of(api_key)
        return await self._exchange(body, api_key, version, timeout_ms)

    def close(self) -> None:
        """Send pending writes, then close; requests in flight fail with ConnectionLostError."""
        self._connection.close("closed by this side")

    def abort(self, reason: str) -> None:
        """Close at once; requests in flight fail with :class:`ConnectionLostError`."""
        self._connection.abort(reason)

    async def _exchange(self, body: Request[R], api_key: int, version: int, timeout_ms: int) -> R:
        if not self.is_open:
            raise ConnectionLostError(f"the connection to {self._connection.peer} is closed")
        if len(self._waiting) >= self._max_in_flight:
            raise OverloadedError(f"{len(self._waiting)} requests are in flight")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & _CORRELATION_MASK
        buffers = encode_request(
            body, version=version, correlation_id=correlation_id, client_id=self._client_id
        )
        if isinstance(body, ProduceRequest) and body.acks == 0:
            self._connection.write(buffers)
            return cast(R, None)
        waiting = _Waiting(
            correlation_id=correlation_id,
            api_key=api_key,
            version=version,
            response=asyncio.get_running_loop().create_future(),
        )
        self._waiting.append(waiting)
        self._connection.write(buffers)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                # The response was decoded as the type that belongs to this API.
                response = cast(R, await waiting.response)
                if buggify.is_on:
                    buggify.time_out("net.kafka_answer_lost")
                return response
        except TimeoutError as e:
            reason = f"{api_name(api_key)} was not answered within {timeout_ms} ms"
            self._connection.abort(reason)
            raise RequestTimedOutError(f"{self._connection.peer}: {reason}") from e

    @property
    def _is_login_due(self) -> bool:
        due_s = self._login_due_s
        return due_s is not None and asyncio.get_running_loop().time() >= due_s

    async def _log_in(self, login: Login, timeout_ms: int) -> None:
        # Before the login, because the broker's time begins before its response arrives.
        began_s = asyncio.get_running_loop().time()
        lifetime_s = await login(self, timeout_ms) / 1000
        self._login_due_s = began_s + lifetime_s * RENEWAL_SHARE if lifetime_s > 0 else None

    async def _log_in_again(self, timeout_ms: int) -> None:
        """Log in again, unless another request did so meanwhile.

        :raises ConnectionLostError: the login failed; the connection is closed.
        """
        async with self._login_lock:
            if not self._is_login_due:
                return
            assert self._login is not None, "only a login has a session"
            try:
                await self._log_in(self._login, timeout_ms)
            except (ConnectionLostError, RequestTimedOutError):
                raise
            except (OperatingError, RemoteProtocolError) as e:
                self.abort("the login failed")
                raise ConnectionLostError(f"{self._connection.peer}: {e}") from e

    async def _negotiate(self, timeout_ms: int) -> None:
        request = ApiVersionsRequest(
            client_software_name=OWN_SOFTWARE_NAME, client_software_version="0"
        )
        for version in (SUPPORTED[ApiKey.API_VERSIONS][1], 0):
            response = await self._exchange(request, ApiKey.API_VERSIONS, version, timeout_ms)
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
        if response.error_code != ErrorCode.NONE:
            raise OperatingError(
                f"{self._connection.peer} does not say its versions: error {response.error_code}",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        for theirs in response.api_keys:
            least, greatest = SUPPORTED.get(theirs.api_key, (0, -1))
            version = min(greatest, theirs.max_version)
            if version >= max(least, theirs.min_version):
                self._versions[theirs.api_key] = version

    # --- called by the connection

    def frame_received(self, frame: Frame) -> None:
        """Complete the oldest request in flight with the response in ``frame``.

        :raises RemoteProtocolError: the response is malformed, or answers another request.
        """
        if not self._waiting:
            raise RemoteProtocolError("a response came that answers no request")
        waiting = self._waiting[0]
        correlation_id = correlation_id_of(frame)
        if correlation_id != waiting.correlation_id:
            raise RemoteProtocolError(
                f"a response is to request {correlation_id}, expected {waiting.correlation_id}"
            )
        response = decode_response(frame, api_key=waiting.api_key, version=waiting.version)
        # Removed after decoding, so that a malformed response fails its request as well.
        self._waiting.popleft()
        if not waiting.response.done():
            waiting.response.set_result(response)

    def writing_resumed(self) -> None:
        """Do nothing: no request waits for the transport's write buffer to drain.

        ``max_in_flight`` limits the pending requests, except Produce with acks=0.
        """

    def connection_closed(self, reason: str) -> None:
        lost = f"the connection to {self._connection.peer} was lost: {reason}"
        while self._waiting:
            response = self._waiting.popleft().response
            if not response.done():
                response.set_exception(ConnectionLostError(lost))
