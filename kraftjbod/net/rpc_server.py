"""The door for the RPC between brokers and controllers.

Requests of one connection run side by side, so that a metadata request that waits for news does
not hold up a heartbeat; each answer leaves when it is there.

An :class:`OperatingError` from the handler becomes an error envelope.
Any other exception is a bug: ``request_handler_failed``, and that connection is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.net.connection import Buffer, Connection, ConnectionLimits
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits
from kraftjbod.protocol.rpc_codec import decode_request, encode_error, encode_response
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse

RpcHandler = Callable[[RpcRequest], Awaitable[RpcResponse]]

DEFAULT_CONNECTION_LIMITS = ConnectionLimits(max_frame_bytes=16 * 1024 * 1024)
DEFAULT_SESSION_LIMITS = SessionLimits(
    max_in_flight_requests=100, max_in_flight_bytes=32 * 1024 * 1024
)
DEFAULT_LISTENER_LIMITS = ListenerLimits(max_connections=2_000)


class RpcServer:
    """Our RPC on one port."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        handler: RpcHandler,
        connection_limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS,
        session_limits: SessionLimits = DEFAULT_SESSION_LIMITS,
        listener_limits: ListenerLimits = DEFAULT_LISTENER_LIMITS,
    ) -> None:
        self._handler = handler
        self._session_limits = session_limits
        self._listener = Listener(
            name="rpc",
            host=host,
            port=port,
            make_session=self._session,
            connection_limits=connection_limits,
            limits=listener_limits,
        )

    def __repr__(self) -> str:
        return f"<RpcServer {self._listener!r}>"

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def connection_count(self) -> int:
        return self._listener.connection_count

    async def start(self) -> None:
        """:raises StartupError: if the address cannot be had."""
        await self._listener.start()

    async def close(self, *, timeout_ms: int) -> None:
        """Stop accepting at once, answer what is in flight within ``timeout_ms``."""
        await self._listener.close(timeout_ms=timeout_ms)

    def _session(self, connection: Connection) -> RequestSession:
        return RequestSession(
            connection, answer=self._answer, in_order=False, limits=self._session_limits
        )

    async def _answer(self, pending: PendingRequest) -> Sequence[Buffer]:
        request = decode_request(pending.frame)
        pending.api = request.api
        if request.body is None:
            unknown = OperatingError(
                f"{request.api!r} version {request.version} is not served here",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
            return [encode_error(request.correlation_id, unknown)]
        try:
            response = await self._handler(request.body)
        except OperatingError as e:
            return [encode_error(request.correlation_id, e)]
        return [encode_response(request.correlation_id, response)]
