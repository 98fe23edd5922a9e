"""LOOP. The listener for Kafka clients and following brokers.

Decodes requests, passes them to the injected handler and encodes its responses. ApiVersions is
answered here from the versions of the codec and the given features. Requests for members of the
cluster (cluster_actions.py) are refused to all other hosts (cluster_peers.py) and, with node
principals, to all other principals (node_identity.py), without decoding the body where possible.
On a listener with SASL, clients log in first (authentication.py).

A handler maps every expected error to a response. Any other exception is a bug:
``request_handler_failed`` is logged and the connection closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.loop.work_slices import WorkSlices, in_slices
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.net.authentication import Authentication, SaslSettings
from kraftjbod.net.cluster_actions import (
    fetching_replica,
    is_cluster_action,
    refusal_text,
    refuse_fetch,
    refuse_markers,
    refuse_undecoded,
)
from kraftjbod.net.cluster_peers import EVERY_HOST_ALLOWED, ClusterPeers
from kraftjbod.net.connection import Connection
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.connection_quotas import ConnectionQuotas
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.memory_budget import MemoryBudget
from kraftjbod.net.node_identity import NodeIdentity
from kraftjbod.net.request_session import PendingRequest, RequestSession
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.protocol.framing import Buffer, Frame
from kraftjbod.protocol.kafka_codec import (
    NO_FEATURES,
    ApiFeatures,
    ApiKey,
    Message,
    RequestHeader,
    api_key_of,
    api_name,
    api_versions_response,
    decode_request,
    decode_request_header,
    encode_long_arrays,
    encode_response,
)
from kraftjbod.protocol.messages import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    WriteTxnMarkersRequest,
)

Handler = Callable[[RequestHeader, Message, ConnectionContext], Awaitable[Message | None]]
"""Answers one request; None if the client expects no response (Produce with acks=0).

A ``Completion`` needs no task, and its response is written in the same event loop iteration.
"""

#: The most frequent requests, whose responses are small apart from the records.
_HOT: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
#: Smaller requests are decoded without a pause, and hot ones also answered without one.
_LARGE_FRAME_BYTES: Final = 32 * 1024
IsBroker = Callable[[RequestHeader, Message], bool]
"""Whether the request, a Fetch from a member, names a registered broker."""
_PRODUCE: Final = ApiKey.PRODUCE.to_bytes(2, "big")


def _accept_none(_header: RequestHeader, _body: Message) -> bool:
    return False


def _encode(header: RequestHeader, response: Message | None) -> Sequence[Buffer] | None:
    return None if response is None else encode_response(header, response)


def may_be_large(request: Frame) -> bool:
    """Return whether the response can be much larger than ``request``. False for Produce, True for
    all other requests.
    """
    return bytes(request[:2]) != _PRODUCE


class _Requests:
    """Decodes requests of one connection, calls the handler, and encodes the responses."""

    def __init__(
        self,
        connection: Connection,
        quotas: ConnectionQuotas,
        handler: Handler,
        features: Callable[[], ApiFeatures],
        is_broker: IsBroker,
        listener_name: str,
        security_protocol: str,
        peers: ClusterPeers,
        identity: NodeIdentity,
    ) -> None:
        self._connection = connection
        self._identity = identity
        self._peers = peers
        self._quotas = quotas
        self._handler = handler
        self._features = features
        self._is_broker = is_broker
        self._context = ConnectionContext(
            peer=connection.peer,
            listener_name=listener_name,
            peer_host=connection.peer_host,
            security_protocol=security_protocol,
        )
        #: None if no client logs in.
        self.login: Authentication | None = None

    def answer(self, request: PendingRequest) -> Awaitable[Any]:
        if self.login is not None and (answering := self.login.intercept(request)) is not None:
            return answering
        api_key = api_key_of(request.frame)
        if is_cluster_action(api_key, request.frame) and not self._is_member:
            return self._answer_unknown_host(request)
        is_hot = api_key in _HOT
        if not is_hot or len(request.frame) > _LARGE_FRAME_BYTES:
            return self._answer_in_slices(request, is_hot=is_hot)
        header, body = _decode(request)
        assert body is not None, header
        request.encode = partial(_encode, header)
        return self._dispatch(header, body)

    def authenticated(self, principal: str) -> None:
        """Set the principal of requests that start from now on."""
        self._identity.take_principal(principal)
        self._context = replace(self._context, principal=principal)

    def use_session(self, session: RequestSession) -> None:
        """Let handlers mute the connection."""
        self._context = replace(self._context, mute=session.mute)

    def require_login(self, sasl: SaslSettings, listener: Listener) -> None:
        """Handle requests only after the client logged in."""

        def log_in(principal: str) -> None:
            self.authenticated(principal)
            listener.logged_in(self._connection)

        self.login = Authentication(
            self._connection,
            sasl,
            listener_name=self._context.listener_name,
            logged_in=log_in,
        )

    def may_be_large(self, request: Frame) -> bool:
        """Return True for every request before the login is complete, so that each one waits for
        the answer to the previous one."""
        return (self.login is not None and not self.login.is_open) or may_be_large(request)

    def connection_closed(self) -> None:
        if self.login is not None:
            self.login.connection_closed()

    async def _answer_in_slices(
        self, request: PendingRequest, *, is_hot: bool
    ) -> Sequence[Buffer] | None:
        if not is_hot and len(request.frame) > _LARGE_FRAME_BYTES:
            # Produce requests keep their order, and their size is limited.
            await WorkSlices.of_loop().turn()
        header, body = _decode(request)
        if body is None or header.api_key == ApiKey.API_VERSIONS:
            if body is not None and self.login is not None:
                self.login.versions_answered()
            asker = getattr(body, "client_software_name", "")
            return api_versions_response(header, self._features(), asker)
        response = await self._dispatch(header, body)
        if response is not None:
            async for _ in in_slices(encode_long_arrays(header.api_version, response)):
                pass
        return _encode(header, response)

    def _dispatch(self, header: RequestHeader, body: Message) -> Awaitable[Message | None]:
        replica_id = _replica_of(header, body)
        if replica_id >= 0 and isinstance(body, FetchRequest):
            if not (self._is_member and self._identity.may_act_as(BrokerId(replica_id))):
                return self._fetch_of_unknown_host(header, body)
            self._note_member(header, body)
        elif replica_id >= 0 and not self._identity.may_act_as(BrokerId(replica_id)):
            raise RemoteProtocolError(
                self._identity.note_refused(
                    api_name(header.api_key), self._connection.peer, BrokerId(replica_id)
                )
            )
        return self._handler(header, body, self._context)

    # --- members of the cluster ------------------------------------------------------------------

    @property
    def _is_member(self) -> bool:
        return self._identity.is_known and self._peers.allows(self._connection.peer_host)

    async def _is_admitted(self) -> bool:
        """Return whether the client is a member; resolve host names first if they decide."""
        return self._identity.is_known and await self._peers.admits(self._connection.peer_host)

    def _note_member(self, header: RequestHeader, body: FetchRequest) -> None:
        if not self._connection.is_privileged and self._is_broker(header, body):
            self._quotas.note_broker(self._connection)

    async def _fetch_of_unknown_host(
        self, header: RequestHeader, body: FetchRequest
    ) -> Message | None:
        replica_id = BrokerId(fetching_replica(body, header.api_version))
        if self._identity.may_act_as(replica_id) and await self._is_admitted():
            self._note_member(header, body)
            return await self._handler(header, body, self._context)
        self._note_refused(header, replica_id)
        return refuse_fetch(body, header.api_version)

    async def _answer_unknown_host(self, request: PendingRequest) -> Sequence[Buffer] | None:
        """Answer a request that only members may send, from a host that is not known as a member.

        Host names are resolved first. If the host still is no member, the request is refused.

        :raises RemoteProtocolError: the refused request is too large to be decoded for a response.
        """
        if await self._is_admitted():
            return await self._answer_in_slices(request, is_hot=False)
        header = decode_request_header(request.frame)
        request.api = api_name(header.api_key)
        text = self._note_refused(header)
        response = refuse_undecoded(header.api_key, text)
        if response is None:
            if len(request.frame) > _LARGE_FRAME_BYTES:
                raise RemoteProtocolError(text)
            _, body = _decode(request)
            assert isinstance(body, WriteTxnMarkersRequest), body
            response = refuse_markers(body)
        return _encode(header, response)

    def _note_refused(self, header: RequestHeader, claimed: BrokerId | None = None) -> str:
        """Log a refused request for members, and return the text for the client."""
        api, connection = api_name(header.api_key), self._connection
        if not self._identity.may_act_as(claimed):
            return self._identity.note_refused(api, connection.peer, claimed)
        self._peers.note_refused(api, connection.peer)
        return refusal_text(api, connection.peer_host)


def _replica_of(header: RequestHeader, body: Message) -> int:
    """Return the id of the broker that sent the request as a replica; negative for a client."""
    if isinstance(body, FetchRequest):
        return fetching_replica(body, header.api_version)
    if isinstance(body, (ListOffsetsRequest, OffsetForLeaderEpochRequest)):
        return body.replica_id
    return -1


def _decode(request: PendingRequest) -> tuple[RequestHeader, Message | None]:
    header, body = decode_request(request.frame)
    request.api = api_name(header.api_key)
    return header, body


DEFAULT_LIMITS = ListenerLimits()


def kafka_server(
    *,
    host: str,
    port: int,
    handler: Handler,
    listener_name: str = "PLAINTEXT",
    features: Callable[[], ApiFeatures] = lambda: NO_FEATURES,
    is_broker: IsBroker = _accept_none,
    peers: ClusterPeers = EVERY_HOST_ALLOWED,
    memory: MemoryBudget | None = None,
    limits: ListenerLimits = DEFAULT_LIMITS,
    sasl: SaslSettings | None = None,
    tls: TlsSettings | None = None,
    node_principals: NodePrincipals | None = None,
    delay_ms_of: Callable[[str], int] = lambda _host: 0,
) -> Listener:
    """Create a listener for Kafka's protocol on one port, without starting the listener.

    :param listener_name: passed to the handler with each request.
    :param features: returns the features for ApiVersions.
    :param is_broker: recognizes brokers, whose connections use reserved slots.
    :param peers: the hosts that may send requests for members of the cluster.
    :param memory: budget of the daemon, if several listeners share it.
    :param sasl: settings of a listener whose clients log in. Without them the principal comes from
        the TLS handshake, or is ``User:ANONYMOUS``.
    :param tls: settings of a listener with TLS; None for plaintext.
    :param node_principals: the principals that act as nodes on this listener. None accepts each
        principal as a node's.
    :param delay_ms_of: limits new connections by address; see :class:`Listener`.
    """
    protocol = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")

    def make_session(connection: Connection) -> RequestSession:
        requests = _Requests(
            connection,
            server_listener.quotas,
            handler,
            features,
            is_broker,
            listener_name,
            protocol,
            peers,
            NodeIdentity(node_principals),
        )
        if sasl is None:
            connection.on_handshake = requests.authenticated
        else:
            requests.require_login(sasl, server_listener)
        session = server_listener.session(
            connection,
            requests.answer,
            in_order=True,
            may_be_large=requests.may_be_large,
            on_closed=requests.connection_closed,
        )
        requests.use_session(session)
        return session

    server_listener = Listener(
        name="kafka",
        host=host,
        port=port,
        make_session=make_session,
        limits=limits,
        memory=memory,
        tls=tls,
        before_login=None if sasl is None else sasl.bounds,
        delay_ms_of=delay_ms_of,
    )
    return server_listener
