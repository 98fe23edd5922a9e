"""LOOP. The listener for the RPC between brokers and controllers.

Requests of one connection run concurrently, so that a metadata request that waits for new entries
does not delay a heartbeat. Each response is sent when it is ready.

The handler gets the id of the connection, and ``on_peer_closed`` gets the connections that their
peers closed. No request of such a connection starts after that.

Only members of the cluster are served (cluster_peers.py). Requests of other hosts are refused
without decoding the body. An :class:`OperatingError` from the handler becomes an error envelope.
Any other exception is a bug: ``request_handler_failed`` is logged and the connection closed.
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
"""Whether the request, which came from a member, names a registered broker or controller."""


def _is_no_broker(_request: RpcRequest) -> bool:
    return False


PeerClosed = Callable[[ConnectionId, bool], None]
"""Called with a connection that its peer closed, and whether it was reset: see ``Connection``."""


def _ignore(_connection_id: ConnectionId, _is_reset: bool) -> None:
    """Do nothing: the default of ``on_peer_closed``."""


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
    is_broker: IsBroker = _is_no_broker,
    on_peer_closed: PeerClosed = _ignore,
    memory: MemoryBudget | None = None,
    limits: ListenerLimits = DEFAULT_LIMITS,
) -> Listener:
    """Create a listener for this project's RPC on one port, without starting the listener.

    :param peers: the hosts that are served.
    :param is_broker: recognizes brokers, whose connections use reserved slots.
    :param on_peer_closed: called with the id of a connection that its peer closed, and whether by a
        reset. Not called for connections that this side closed.
    :param memory: budget of the daemon, if several listeners share it.
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
                server_listener.quotas.note_broker(connection)
            response = await handler(request.body, connection_id)
        except OperatingError as e:
            return [encode_error(request.correlation_id, e)]
        return [encode_response(request.correlation_id, response)]

    def make_session(connection: Connection) -> RequestSession:
        connection_id = ConnectionId(next(numbers))
        connection.on_peer_closed = partial(on_peer_closed, connection_id)
        return server_listener.session(
            connection,
            partial(answer, connection, connection_id),
            in_order=False,
            may_be_large=may_be_answered_at_length,
        )

    server_listener = Listener(
        name="rpc",
        host=host,
        port=port,
        make_session=make_session,
        limits=limits,
        memory=memory,
    )
    return server_listener
