"""LOOP. A client of the RPC between brokers and controllers.

Connects on the first call, and on the next call after a loss. After each failure in a row the
client pauses longer before it reconnects. Calls wait for that pause within their own deadlines.
Calls share one connection and may be answered out of order.

With a credential the client logs in on each connection before the first call, and again before the
session ends (KIP-368). A failed login is a failed connection.

A call that times out does not affect other calls on the connection. The client never repeats a
call, because only the caller knows whether that is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kraftjbod.core import buggify
from kraftjbod.core.errors import (
    ConnectionLostError,
    OperatingError,
    OverloadedError,
    RemoteProtocolError,
    RequestTimedOutError,
)
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.connection import Connection, ConnectionLimits
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.plain_credential import RENEWAL_SHARE, PlainCredential
from kraftjbod.protocol.framing import Frame
from kraftjbod.protocol.rpc_codec import decode_response, encode_request
from kraftjbod.protocol.rpc_login_messages import LoginRequestRpc, LoginResponseRpc
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse

DEFAULT_CONNECTION_LIMITS = ConnectionLimits(max_frame_bytes=64 * 1024 * 1024)
_CORRELATION_MASK = 0xFFFFFFFF
#: A login may come in addition to all other calls.
_ONE_MORE = 2**31


class RpcClient:
    """Sends RPC requests to one peer and returns the responses. Uses one connection, which is
    opened by the first call and again after a loss. Not thread-safe.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        backoff: ExponentialBackoff,
        connect_timeout_ms: int = 5_000,
        max_in_flight: int = 100,
        limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS,
        on_lost: Callable[[], None] | None = None,
        dialer: Dialer = PLAIN,
    ) -> None:
        """:param on_lost: called when a connection closes before :meth:`close` was called, also
            after :meth:`drop`.
        :param dialer: opens the connections.
        """
        self._host = host
        self._port = port
        self._backoff = backoff
        self._connect_timeout_ms = connect_timeout_ms
        self._max_in_flight = max_in_flight
        self._limits = limits
        self._on_lost = on_lost
        self._dialer = dialer
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        #: Number of connections in a row that failed or brought no response.
        self._failures = 0
        #: Loop time before which the client does not reconnect.
        self._not_before_s = 0.0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<RpcClient {self._host}:{self._port} failures={self._failures}>"

    async def call(
        self, request: RpcRequest, *, timeout_ms: int, version: int | None = None
    ) -> Any:
        """Send a request and return the response, an instance of ``request.Response``.

        :param version: wire version of the request; the newest if None.
        :raises OperatingError: the peer's error, with its code and message.
        :raises RequestTimedOutError: no response in time; the peer may have processed the request.
        :raises ConnectionLostError: there is no connection, or it was lost before the response. The
            peer may have processed the request in the second case.
        :raises OverloadedError: ``max_in_flight`` calls are in flight.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                link = await self._connected()
                response = await link.exchange(request, self._max_in_flight, version)
                if buggify.is_on:
                    buggify.time_out("net.rpc_answer_lost")
                return response
        except TimeoutError as e:
            raise RequestTimedOutError(
                f"{request.api} was not answered by {self._host}:{self._port} in {timeout_ms} ms"
            ) from e

    def close(self) -> None:
        """Close permanently; calls in flight fail with :class:`ConnectionLostError`."""
        self._is_closed = True
        if self._link is not None:
            self._link.close()

    def drop(self, reason: str) -> None:
        """Abort the connection, if there is one. Calls in flight fail, and the next call opens
        another connection."""
        if self._link is not None:
            self._link.abort(reason)

    async def _connected(self) -> _Link:
        async with self._connecting:
            if self._link is not None and self._link.is_open:
                if self._link.is_login_due:
                    await self._log_in(self._link)
                return self._link
            self._note_failure_of(self._link)
            self._link = None
            await asyncio.sleep(self._not_before_s - asyncio.get_running_loop().time())
            if self._is_closed:
                raise ConnectionLostError(f"the client of {self._host}:{self._port} is closed")
            try:
                link = await self._dialer.connect(
                    self._host,
                    self._port,
                    make_receiver=self._make_link,
                    limits=self._limits,
                    timeout_ms=self._connect_timeout_ms,
                )
                await self._log_in(link)
            except ConnectionLostError:
                self._pause()
                raise
            self._link = link
            return link

    async def _log_in(self, link: _Link) -> None:
        """Log in on ``link`` if the dialer has a credential. Close the link if that fails.

        :raises ConnectionLostError: the login failed, or was not answered in time.
        """
        credential = self._dialer.credential
        if credential is None:
            return
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await link.log_in(credential)
        except BaseException as e:
            link.abort("the login failed")
            if isinstance(e, ConnectionLostError) or not isinstance(
                e, (OperatingError, TimeoutError)
            ):
                raise
            reason = str(e) or f"no answer within {self._connect_timeout_ms} ms"
            raise ConnectionLostError(
                f"the login of {credential.user} at {self._host}:{self._port} failed: {reason}"
            ) from e

    def _make_link(self, connection: Connection) -> _Link:
        return _Link(connection, on_closed=self._link_closed)

    def _link_closed(self) -> None:
        if not self._is_closed and self._on_lost is not None:
            self._on_lost()

    def _note_failure_of(self, lost: _Link | None) -> None:
        if lost is None:
            return
        if lost.has_answered:
            self._failures = 0
        else:
            self._pause()

    def _pause(self) -> None:
        self._failures += 1
        pause_s = self._backoff.wait_ms(self._failures) / 1000
        self._not_before_s = asyncio.get_running_loop().time() + pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    response_kind: type[RpcResponse]
    response: asyncio.Future[RpcResponse]


class _Link:
    """One connection of the client and the calls in flight on it."""

    def __init__(self, connection: Connection, *, on_closed: Callable[[], None]) -> None:
        self._connection = connection
        self._on_closed = on_closed
        self._calls: dict[int, _Call] = {}
        self._next_correlation_id = 0
        self.has_answered = False
        self._now_s = asyncio.get_running_loop().time
        #: Loop time of the next login; None: the session has no end.
        self._login_due_s: float | None = None

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def is_login_due(self) -> bool:
        """Whether the session ends soon, so that the client must log in again."""
        return self._login_due_s is not None and self._now_s() >= self._login_due_s

    async def log_in(self, credential: PlainCredential) -> None:
        """Log in, for the first time or again.

        :raises OperatingError: the peer refuses the login.
        """
        # Before the request, because the peer's time begins before its response arrives.
        began_s = self._now_s()
        request = LoginRequestRpc(mechanism=credential.mechanism, token=credential.token)
        response = await self.exchange(request, _ONE_MORE, None)
        assert isinstance(response, LoginResponseRpc), response
        lifetime_s = response.session_lifetime_ms / 1000
        self._login_due_s = began_s + lifetime_s * RENEWAL_SHARE if lifetime_s > 0 else None

    def close(self) -> None:
        self._connection.close("closed by this side")

    def abort(self, reason: str) -> None:
        """Close at once and drop unsent bytes: a peer that does not read would delay a close."""
        self._connection.abort(reason)

    async def exchange(
        self, request: RpcRequest, max_in_flight: int, version: int | None
    ) -> RpcResponse:
        if len(self._calls) >= max_in_flight:
            raise OverloadedError(f"{len(self._calls)} calls to {self._connection.peer} in flight")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & _CORRELATION_MASK
        call = _Call(
            response_kind=request.Response, response=asyncio.get_running_loop().create_future()
        )
        self._calls[correlation_id] = call
        self._connection.write([encode_request(correlation_id, request, version)])
        try:
            return await call.response
        finally:
            self._calls.pop(correlation_id, None)

    # --- called by the connection

    def frame_received(self, frame: Frame) -> None:
        """Complete the call that the response in ``frame`` answers, unless the caller timed out.

        :raises RemoteProtocolError: the response is malformed or belongs to no call.
        """
        incoming = decode_response(frame)
        if incoming.correlation_id >= self._next_correlation_id:
            raise RemoteProtocolError(f"a response is to call {incoming.correlation_id}, not made")
        self.has_answered = True
        call = self._calls.get(incoming.correlation_id)
        if call is None or call.response.done():
            return  # The caller timed out.
        if incoming.error is not None:
            call.response.set_exception(incoming.error)
        else:
            call.response.set_result(incoming.parse(call.response_kind))

    def writing_resumed(self) -> None:
        """No call waits for this, because calls in flight are few and small."""

    def connection_closed(self, reason: str) -> None:
        lost = f"the connection to {self._connection.peer} was lost: {reason}"
        for call in self._calls.values():
            if not call.response.done():
                call.response.set_exception(ConnectionLostError(lost))
        self._on_closed()
