"""LOOP. The door for the RPC between brokers and controllers.

Requests of one connection run side by side, so that a metadata request that waits for news does
not hold up a heartbeat; each answer leaves when it is there.

The handler is told which connection a request came on, and ``on_peer_closed`` which ones their
peers closed: nothing is begun for a request after that.

Only members of the cluster are served (cluster_peers.py); others are refused by the head of their
request, whose body is not decoded.
An :class:`OperatingError` from the handler becomes an error envelope.
Any other exception is a bug: ``request_handler_failed``, and that connection is closed.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ConnectionId
from kraftjbod.net.cluster_actions import REFUSED, refusal_text
from kraftjbod.net.cluster_peers import EVERY_HOST_ALLOWED, ClusterPeers
from kraftjbod.net.connection import Connection, ConnectionLimits
from kraftjbod.net.connection_quotas import QuotaLimits
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.memory_budget import MemoryBudget
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.rpc_codec import (
    decode_request,
    encode_error,
    encode_response,
    may_be_answered_at_length,
    request_head,
)
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse

RpcHandler = Callable[[RpcRequest, ConnectionId], Awaitable[RpcResponse]]
IsBroker = Callable[[RpcRequest], bool]
"""Whether the request, of a member, names a broker or controller that is registered."""


def _nobody(_request: RpcRequest) -> bool:
    return False


PeerClosed = Callable[[ConnectionId, bool], None]
"""Given a connection that its peer closed, and whether it was reset: see ``Connection``."""


def _ignore(_connection_id: ConnectionId, _is_reset: bool) -> None:
    """Nobody wants to know."""


def _refuse(pending: PendingRequest, connection: Connection, peers: ClusterPeers) -> Buffer:
    correlation_id, pending.api = request_head(pending.frame)
    peers.note_refused(pending.api, connection.peer)
    text = refusal_text(pending.api, connection.peer_host)
    return encode_error(correlation_id, OperatingError(text, code=REFUSED))


DEFAULT_LIMITS = ListenerLimits(
    connection=ConnectionLimits(max_frame_bytes=16 * 1024 * 1024),
    session=SessionLimits(max_in_flight_requests=100, max_in_flight_bytes=32 * 1024 * 1024),
    quotas=QuotaLimits(max_connections=2_000),
)


def rpc_server(
    *,
    host: str,
    port: int,
    handler: RpcHandler,
    peers: ClusterPeers = EVERY_HOST_ALLOWED,
    is_broker: IsBroker = _nobody,
    on_peer_closed: PeerClosed = _ignore,
    memory: MemoryBudget | None = None,
    limits: ListenerLimits = DEFAULT_LIMITS,
) -> Listener:
    """A listener, not started yet, that speaks our RPC on one port.

    :param peers: the hosts that are served.
    :param is_broker: connections of such brokers have places of their own.
    :param on_peer_closed: not called for connections that this side closed.
    :param memory: of the daemon, if it has several doors.
    """

    numbers = itertools.count(1)

    async def answer(
        connection: Connection, connection_id: ConnectionId, pending: PendingRequest
    ) -> Sequence[Buffer]:
        if not await peers.admits(connection.peer_host):
            return [_refuse(pending, connection, peers)]
        request = decode_request(pending.frame)
        pending.api = request.api
        if request.body is None:
            unknown = OperatingError(
                f"{request.api!r} version {request.version} is not served here",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
            return [encode_error(request.correlation_id, unknown)]
        try:
            if not connection.is_privileged and is_broker(request.body):
                door.quotas.note_broker(connection)
            response = await handler(request.body, connection_id)
        except OperatingError as e:
            return [encode_error(request.correlation_id, e)]
        return [encode_response(request.correlation_id, response)]

    def make_session(connection: Connection) -> RequestSession:
        connection_id = ConnectionId(next(numbers))
        connection.on_peer_closed = partial(on_peer_closed, connection_id)
        return door.session(
            connection,
            partial(answer, connection, connection_id),
            in_order=False,
            may_be_large=may_be_answered_at_length,
        )

    door = Listener(
        name="rpc",
        host=host,
        port=port,
        make_session=make_session,
        limits=limits,
        memory=memory,
    )
    return door
