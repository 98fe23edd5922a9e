"""LOOP. The door for Kafka clients and following brokers.

Decodes requests, hands them to the one injected handler and encodes what it gives back.
ApiVersions is answered here: it says what the codec speaks, and the features that it is handed.

A handler maps every expected error to a response of its own.
An exception that leaves it is a bug: ``request_handler_failed``, and that connection is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kraftjbod.core.loop.work_slices import WorkSlices, in_slices
from kraftjbod.net.authentication import AuthenticationLimits, HeldRequests, MakeAuthenticator
from kraftjbod.net.connection import Connection
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.connection_quotas import ConnectionQuotas
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.memory_budget import MemoryBudget
from kraftjbod.net.request_session import PendingRequest, RequestSession
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
    encode_long_arrays,
    encode_response,
)

Handler = Callable[[RequestHeader, Message, ConnectionContext], Awaitable[Message | None]]
"""Answers one request; None if the client expects no response (Produce with acks=0).

A ``Completion`` needs no task, and the answer leaves in the turn in which it is done.
"""

#: Served most, and answered with little beside the records.
_HOT: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
#: A smaller request is decoded, and answered if it is a hot one, in one go.
_LARGE_FRAME_BYTES: Final = 32 * 1024
IsBroker = Callable[[RequestHeader, Message], bool]
"""Whether only a broker of this cluster can have sent the request, which is a Fetch."""
_PRODUCE: Final = ApiKey.PRODUCE.to_bytes(2, "big")


def _nobody(_header: RequestHeader, _body: Message) -> bool:
    return False


def _encode(header: RequestHeader, response: Message | None) -> Sequence[Buffer] | None:
    return None if response is None else encode_response(header, response)


def may_be_large(request: Frame) -> bool:
    """All but a Produce may be answered with much more than they ask with."""
    return bytes(request[:2]) != _PRODUCE


class _Requests:
    """Of one connection: from frames to handlers, and back to buffers."""

    def __init__(
        self,
        connection: Connection,
        quotas: ConnectionQuotas,
        handler: Handler,
        features: Callable[[], ApiFeatures],
        is_broker: IsBroker,
        listener_name: str,
    ) -> None:
        self._connection = connection
        self._quotas = quotas
        self._handler = handler
        self._features = features
        self._is_broker = is_broker
        self._context = ConnectionContext(peer=connection.peer, listener_name=listener_name)

    def answer(self, request: PendingRequest) -> Awaitable[Any]:
        is_hot = api_key_of(request.frame) in _HOT
        if not is_hot or len(request.frame) > _LARGE_FRAME_BYTES:
            return self._answer_in_slices(request, is_hot=is_hot)
        header, body = _decode(request)
        assert body is not None, header
        request.encode = partial(_encode, header)
        return self._hand_on(header, body)

    def authenticated(self, principal: str) -> None:
        """Requests that begin from now on are those of ``principal``."""
        self._context = replace(self._context, principal=principal)

    def held_until_known(
        self, make_authenticator: MakeAuthenticator, limits: AuthenticationLimits
    ) -> HeldRequests:
        """The way in of a listener that asks who is there."""
        return HeldRequests(
            self._connection,
            make_authenticator(self._context),
            open_answer=self.answer,
            may_be_large=may_be_large,
            decode=_decode,
            encode=_encode,
            authenticated=self.authenticated,
            limits=limits,
        )

    async def _answer_in_slices(
        self, request: PendingRequest, *, is_hot: bool
    ) -> Sequence[Buffer] | None:
        if not is_hot and len(request.frame) > _LARGE_FRAME_BYTES:
            # Produce requests keep their order; what each may bring is limited.
            await WorkSlices.of_loop().turn()
        header, body = _decode(request)
        if body is None or header.api_key == ApiKey.API_VERSIONS:
            asker = getattr(body, "client_software_name", "")
            return api_versions_response(header, self._features(), asker)
        response = await self._hand_on(header, body)
        if response is not None:
            async for _ in in_slices(encode_long_arrays(header.api_version, response)):
                pass
        return _encode(header, response)

    def _hand_on(self, header: RequestHeader, body: Message) -> Awaitable[Message | None]:
        is_fetch = header.api_key == ApiKey.FETCH
        if is_fetch and not self._connection.is_privileged and self._is_broker(header, body):
            self._quotas.note_broker(self._connection)
        return self._handler(header, body, self._context)


def _decode(request: PendingRequest) -> tuple[RequestHeader, Message | None]:
    header, body = decode_request(request.frame)
    request.api = api_name(header.api_key)
    return header, body


DEFAULT_LIMITS = ListenerLimits()
DEFAULT_AUTHENTICATION_LIMITS = AuthenticationLimits()


def kafka_server(
    *,
    host: str,
    port: int,
    handler: Handler,
    listener_name: str = "PLAINTEXT",
    features: Callable[[], ApiFeatures] = lambda: NO_FEATURES,
    is_broker: IsBroker = _nobody,
    memory: MemoryBudget | None = None,
    limits: ListenerLimits = DEFAULT_LIMITS,
    authenticator: MakeAuthenticator | None = None,
    authentication_limits: AuthenticationLimits = DEFAULT_AUTHENTICATION_LIMITS,
) -> Listener:
    """A listener, not started yet, that speaks Kafka's wire protocol on one port.

    :param listener_name: which the handler is given with each request.
    :param features: what ApiVersions says of them when it is asked.
    :param is_broker: who shows itself as one has a place of its own.
    :param memory: of the daemon, if it has several doors.
    :param authenticator: makes one per connection, which is held until it knows who is there;
        without it everybody is ``User:ANONYMOUS`` at once.
    """

    def make_session(connection: Connection) -> RequestSession:
        requests = _Requests(connection, door.quotas, handler, features, is_broker, listener_name)
        answer, is_large = requests.answer, may_be_large
        if authenticator is not None:
            held = requests.held_until_known(authenticator, authentication_limits)
            answer, is_large = held.answer, held.may_be_large
        return door.session(connection, answer, in_order=True, may_be_large=is_large)

    door = Listener(
        name="kafka",
        host=host,
        port=port,
        make_session=make_session,
        limits=limits,
        memory=memory,
    )
    return door
