"""LOOP. The listener for the RPC between brokers and controllers.

Requests of one connection run concurrently, so that a metadata request that waits for new entries
does not delay a heartbeat. Each response is sent when it is ready.

The handler gets the id of the connection, and ``on_peer_closed`` gets the connections that their
peers closed. No request of such a connection starts after that.

With SASL, a connection logs in before its other requests (rpc_authentication.py).

Only members of the cluster are served: by the principal of their certificate or login if node
principals are given (node_identity.py), and by address (cluster_peers.py). Requests of others are
refused without decoding the body. With node principals, a request that names its sender is served
only to that node's principal. An :class:`OperatingError` from the handler becomes an error
envelope. Any other exception is a bug: ``request_handler_failed`` is logged and the connection
closed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, ConnectionId
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.net.authentication import SaslSettings
from kraftjbod.net.cluster_actions import REFUSED, refusal_text
from kraftjbod.net.cluster_peers import EVERY_HOST_ALLOWED, ClusterPeers
from kraftjbod.net.connection import Connection, ConnectionLimits
from kraftjbod.net.connection_quotas import QuotaLimits
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.memory_budget import MemoryBudget
from kraftjbod.net.node_identity import NodeIdentity
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits
from kraftjbod.net.rpc_authentication import RpcAuthentication
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.rpc_codec import (
    IncomingRequest,
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


async def _refusal(
    connection: Connection, identity: NodeIdentity, peers: ClusterPeers, pending: PendingRequest
) -> Buffer | None:
    """Return the refusal of a request that no member sent, None for a member's. Sets
    ``pending.api`` for a refused request."""
    if identity.is_known and await peers.admits(connection.peer_host):
        return None
    correlation_id, pending.api = request_head(pending.frame)
    if not identity.is_known:
        return _refuse_principal(connection, identity, correlation_id, pending.api, None)
    peers.note_refused(pending.api, connection.peer)
    text = refusal_text(pending.api, connection.peer_host)
    return encode_error(correlation_id, OperatingError(text, code=REFUSED))


def _unsupported(request: IncomingRequest) -> Buffer:
    unknown = OperatingError(
        f"{request.api!r} version {request.version} is not served here",
        code=ErrorCode.UNSUPPORTED_VERSION,
    )
    return encode_error(request.correlation_id, unknown)


def _refuse_principal(
    connection: Connection,
    identity: NodeIdentity,
    correlation_id: int,
    api: str,
    claimed: BrokerId | None,
) -> Buffer:
    """Return the refusal of a request, and close the connection after it.

    The sender may have another certificate by now, which only a new connection uses.
    """
    text = identity.note_refused(api, connection.peer, claimed)
    asyncio.get_running_loop().call_soon(connection.close, "its principal is not that of the node")
    return encode_error(correlation_id, OperatingError(text, code=REFUSED))


async def _handled(correlation_id: int, handling: Awaitable[RpcResponse]) -> Buffer:
    """Return the response of a handler, or its error."""
    try:
        response = await handling
    except OperatingError as e:
        return encode_error(correlation_id, e)
    return encode_response(correlation_id, response)


class _Requests:
    """Answers the requests of one connection."""

    def __init__(
        self,
        connection: Connection,
        connection_id: ConnectionId,
        *,
        listener: Listener,
        handler: RpcHandler,
        peers: ClusterPeers,
        is_broker: IsBroker,
        node_principals: NodePrincipals | None,
    ) -> None:
        self._connection = connection
        self.connection_id = connection_id
        self._listener = listener
        self._handler = handler
        self._peers = peers
        self._is_broker = is_broker
        self.identity = NodeIdentity(node_principals)
        #: None if the connection does not log in.
        self._authentication: RpcAuthentication | None = None

    def require_login(self, sasl: SaslSettings, listener_name: str) -> RpcAuthentication:
        """Answer nothing until the peer has logged in."""
        self._authentication = RpcAuthentication(
            self._connection, sasl, listener_name=listener_name, logged_in=self._logged_in
        )
        return self._authentication

    def _logged_in(self, principal: str) -> None:
        self.identity.take_principal(principal)
        self._listener.logged_in(self._connection)

    async def answer(self, pending: PendingRequest) -> Sequence[Buffer]:
        connection, identity = self._connection, self.identity
        if self._authentication is not None:
            login = await self._authentication.intercept(pending)
            if login is not None:
                return [login]
        refusal = await _refusal(connection, identity, self._peers, pending)
        if refusal is not None:
            return [refusal]
        request = decode_request(pending.frame)
        pending.api = request.api
        if request.body is None:
            return [_unsupported(request)]
        sender = request.body.sender_node_id
        if not identity.may_act_as(sender):
            call = request.correlation_id, request.api
            return [_refuse_principal(connection, identity, *call, sender)]
        if not connection.is_privileged and self._is_broker(request.body):
            self._listener.quotas.note_broker(connection)
        handling = self._handler(request.body, self.connection_id)
        return [await _handled(request.correlation_id, handling)]


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
    tls: TlsSettings | None = None,
    sasl: SaslSettings | None = None,
    listener_name: str = "CONTROLLER",
    node_principals: NodePrincipals | None = None,
) -> Listener:
    """Create a listener for this project's RPC on one port, without starting the listener.

    :param peers: the hosts that are served.
    :param is_broker: recognizes brokers, whose connections use reserved slots.
    :param on_peer_closed: called with the id of a connection that its peer closed, and whether by a
        reset. Not called for connections that this side closed.
    :param memory: budget of the daemon, if several listeners share it.
    :param tls: settings of a listener with TLS; None for plaintext.
    :param sasl: settings of a listener with SASL; None: connections do not log in.
    :param listener_name: name of the listener, for diagnostics.
    :param node_principals: the principals of nodes. None serves each principal.
    """

    numbers = itertools.count(1)

    def make_session(connection: Connection) -> RequestSession:
        requests = _Requests(
            connection,
            ConnectionId(next(numbers)),
            listener=server_listener,
            handler=handler,
            peers=peers,
            is_broker=is_broker,
            node_principals=node_principals,
        )
        connection.on_peer_closed = partial(on_peer_closed, requests.connection_id)
        on_closed = None
        if sasl is None:
            connection.on_handshake = requests.identity.take_principal
        else:
            on_closed = requests.require_login(sasl, listener_name).connection_closed
        return server_listener.session(
            connection,
            requests.answer,
            in_order=False,
            may_be_large=may_be_answered_at_length,
            on_closed=on_closed,
        )

    server_listener = Listener(
        name="rpc",
        host=host,
        port=port,
        make_session=make_session,
        limits=limits,
        memory=memory,
        tls=tls,
        before_login=None if sasl is None else sasl.bounds,
    )
    return server_listener
