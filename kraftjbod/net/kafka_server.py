"""The door for Kafka clients and following brokers.

Decodes requests, hands them to the one injected handler and encodes what it gives back.
ApiVersions is answered here: it tells what the codec speaks and nothing about the cluster.

A handler maps every expected error to a response of its own.
An exception that leaves it is a bug: ``request_handler_failed``, and that connection is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kraftjbod.net.connection import Buffer, Connection, ConnectionLimits
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits
from kraftjbod.protocol.kafka_codec import (
    ApiKey,
    Message,
    RequestHeader,
    api_name,
    api_versions_response,
    decode_request,
    encode_response,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo:
    """Where a request came from; one object per connection."""

    #: "host:port" of the client.
    peer: str


Handler = Callable[[RequestHeader, Message, ConnectionInfo], Awaitable[Message | None]]
"""Answers one request; None if the client expects no response (Produce with acks=0)."""

DEFAULT_CONNECTION_LIMITS = ConnectionLimits(max_frame_bytes=104_857_600)
DEFAULT_SESSION_LIMITS = SessionLimits(
    max_in_flight_requests=100, max_in_flight_bytes=128 * 1024 * 1024
)
DEFAULT_LISTENER_LIMITS = ListenerLimits()


class KafkaServer:
    """Kafka's wire protocol on one port."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        handler: Handler,
        connection_limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS,
        session_limits: SessionLimits = DEFAULT_SESSION_LIMITS,
        listener_limits: ListenerLimits = DEFAULT_LISTENER_LIMITS,
    ) -> None:
        self._handler = handler
        self._session_limits = session_limits
        self._listener = Listener(
            name="kafka",
            host=host,
            port=port,
            make_session=self._session,
            connection_limits=connection_limits,
            limits=listener_limits,
        )

    def __repr__(self) -> str:
        return f"<KafkaServer {self._listener!r}>"

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
        info = ConnectionInfo(peer=connection.peer)

        async def answer(request: PendingRequest) -> Sequence[Buffer] | None:
            header, body = decode_request(request.frame)
            request.api = api_name(header.api_key)
            if body is None or header.api_key == ApiKey.API_VERSIONS:
                return api_versions_response(header)
            response = await self._handler(header, body, info)
            return None if response is None else encode_response(header, response)

        return RequestSession(connection, answer=answer, in_order=True, limits=self._session_limits)
