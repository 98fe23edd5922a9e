"""LOOP. ``ControllerChannel``: sends a broker's requests to the active controller.

* The voters are asked in turn, starting with the one that answered last. If a voter is not active
  or not reachable, the next one is asked. After a full round there is a growing pause.
* A hung voter, or one whose host vanished, does not close connections. While a request waits, the
  other voters are asked whether they are active. When one is, all requests that wait at other
  voters are repeated there, including the long-poll.
* Each request names the metadata log that the broker follows. A controller of another log refuses
  it, and the next voter is asked. If all refuse it, the call fails (``MetadataRefusals``).
* The caller sets the deadline. A request that was sent and not answered in time is not repeated.
* A request whose connection broke is repeated, so it may take effect twice. Every request of a
  broker is idempotent or marks its repetition (``again``, ADR 89).
* The metadata long-poll has its own connection, so that no request waits behind it. Client requests
  have another, so that no heartbeat waits behind them. When a heartbeat times out, the long-poll
  also moves to another controller: a host without power closes no connection.
* A follower controller may also serve metadata. So the long-poll has its own current voter, and
  returns to the active controller as soon as that answers a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Final, Protocol, TypeVar, cast

from kraftjbod.broker.cluster.forwarded_client import FORWARDED_CLIENT
from kraftjbod.broker.cluster.metadata_refusals import MetadataRefusals
from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    OperatingError,
    RequestTimedOutError,
)
from kraftjbod.core.ids import Uuid
from kraftjbod.core.loop.timing import Clock, Deadline, ExponentialBackoff
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION, MetadataVersion
from kraftjbod.core.node_config import Voter
from kraftjbod.core.request_limits import MAX_FORWARDED_AT_ONCE
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.protocol.rpc_config_messages import (
    ListPartitionReassignmentsRequestRpc,
)
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest, FetchMetadataResponse

R_co = TypeVar("R_co", bound=RpcResponse, covariant=True)

#: After a silence the other voters are asked this often per silence timeout, because an election
#: may be running.
_SEARCHES_PER_SILENCE: Final = 4
#: A request of a client is refused after so many answers CLUSTER_AUTHORIZATION_FAILED: the first
#: one may mean that the controller does not know this broker's address.
_MAX_REFUSALS: Final = 2
#: Limit of the wait of a forwarded request in milliseconds, independent of the client's timeout.
MAX_FORWARD_TIMEOUT_MS: Final = 60_000

Address = tuple[str, int]
"""Host and port."""


class Asks(Protocol[R_co]):
    """Type of the requests that ``call`` accepts. It lets a type checker infer that ``call``
    returns ``R_co``, the response class of the request.
    """

    @property
    def Response(self) -> type[R_co]: ...


class _Purpose(Enum):
    CONTROL = "control"
    METADATA = "metadata"
    CLIENTS = "clients"


class ControllerChannel:
    """Sends a broker's requests to the active controller, and its metadata fetches to a voter.

    The methods are ``call``, ``forward`` and ``fetch_metadata``. Call ``close()`` at the end.
    """

    def __init__(
        self,
        *,
        addresses: Sequence[Address],
        voters: Sequence[Voter] = (),
        clock: Clock,
        random_unit: Callable[[], float],
        level: Callable[[], MetadataVersion] = lambda: LATEST_METADATA_VERSION,
        log_id: Callable[[], Uuid | None] = lambda: None,
        request_timeout_ms: int = 2_000,
        retry_backoff_ms: int = 20,
        retry_backoff_max_ms: int = 500,
        dialer: Dialer = PLAIN,
    ) -> None:
        """Create a channel without connections.

        :param addresses: the configured controllers. Metadata responses may name other voters.
        :param voters: the voters in the configuration, if any.
        :param level: returns the known ``metadata.version``, which determines request versions.
        :param log_id: returns the id of the followed metadata log, if known.
        :param request_timeout_ms: time limit of a connection attempt, and of a metadata long-poll
            beyond its ``max_wait_ms``. If another request has no response after half of this time,
            the other voters are asked whether one of them is active.
        :param dialer: opens the connections.
        """
        assert addresses, "a broker needs a controller"
        self._configured = tuple(addresses)
        self._addresses = self._configured
        #: 1 once the metadata log names the voters, as far as this broker knows.
        self.kraft_version = 0
        #: Node ids of the voters, if known.
        self._node_ids = {(voter.host, voter.port): voter.node_id for voter in voters}
        self._clock = clock
        self._level = level
        self._log_id = log_id
        self._request_timeout_ms = request_timeout_ms
        self._dialer = dialer
        self._backoff = ExponentialBackoff(
            initial_ms=retry_backoff_ms, max_ms=retry_backoff_max_ms, random_unit=random_unit
        )
        #: The voter that requests go to.
        self._active = self._addresses[0]
        #: The voter that serves metadata.
        self._source = self._addresses[0]
        #: The voter that answered last.
        self._answered: Address | None = None
        self._search: asyncio.Task[None] | None = None
        #: At most one per purpose and address.
        self._clients: dict[tuple[_Purpose, Address], RpcClient] = {}
        self._forwarding = asyncio.Semaphore(MAX_FORWARDED_AT_ONCE)
        #: Called when a control connection is lost, so that the controller may treat this broker as
        #: dead.
        self.on_control_lost: Callable[[], None] | None = None
        self._log = get_logger(component="controller_channel")

    def __repr__(self) -> str:
        host, port = self._active
        return f"<ControllerChannel {host}:{port}>"

    async def call(self, request: Asks[R_co], *, timeout_ms: int) -> R_co:
        """Send a request to the active controller and return its response. Other voters are asked
        until ``timeout_ms`` have passed. If a connection breaks, the request may take effect twice.

        :raises OperatingError: the controller's refusal, with its code. At the deadline:
            REQUEST_TIMED_OUT, or a failure of one voter, such as NOT_CONTROLLER or a
            :class:`ConnectionLostError`. FOREIGN_METADATA at once if every voter has another
            metadata log.
        """
        return await self._call(_Purpose.CONTROL, request, timeout_ms)

    async def forward(self, request: Asks[R_co], *, timeout_ms: int) -> R_co:
        """Send a client's request to the active controller and return its response.

        At most ``MAX_FORWARDED_AT_ONCE`` requests are in flight; the others wait here.

        :raises OperatingError: as :meth:`call`, but REQUEST_TIMED_OUT if no controller is reached.
        """
        deadline = Deadline.after(self._clock.now_ms(), timeout_ms)
        client = FORWARDED_CLIENT.get()
        assert isinstance(request, RpcRequest), request
        if client is not None:
            named = {"client_principal": client.principal, "client_host": client.host}
            request = cast(Asks[R_co], request.model_copy(update=named))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._forwarding.acquire()
        except TimeoutError as e:
            raise RequestTimedOutError(
                f"too many other requests waited for the controller, for {timeout_ms} ms and longer"
            ) from e
        try:
            remaining_ms = max(1, deadline.remaining_ms(self._clock.now_ms()))
            return await self._call(_Purpose.CLIENTS, request, remaining_ms)
        except ConnectionLostError as e:
            # Its code, BROKER_NOT_AVAILABLE, is not retriable for clients. Kafka's brokers also
            # time out here.
            raise RequestTimedOutError(
                f"no controller could be reached within {timeout_ms} ms: {e.message}"
            ) from e
        finally:
            self._forwarding.release()

    async def fetch_metadata(self, request: FetchMetadataRequest) -> FetchMetadataResponse:
        """Send one metadata long-poll to a voter, active or not, and return its response. Voters
        that the response names are used from then on. Raises as :meth:`call`.
        """
        timeout_ms = request.max_wait_ms + self._request_timeout_ms
        response = await self._call(_Purpose.METADATA, request, timeout_ms)
        if response.controllers:
            self.kraft_version = 1
            self._follow_voters([Voter.parse(text) for text in response.controllers])
        return response

    def _follow_voters(self, voters: Sequence[Voter]) -> None:
        """Replace the list of addresses: the present ``voters``, then the configured controllers.

        Connections to controllers that remain in the list are kept. A removed voter keeps its
        connections until the next change, because it may be about to report its removal.
        """
        node_ids = {(voter.host, voter.port): voter.node_id for voter in voters}
        addresses = tuple(dict.fromkeys([*node_ids, *self._configured]))
        if addresses == self._addresses:
            return
        kept = {*addresses, *self._addresses}
        self._addresses = addresses
        self._node_ids = node_ids
        if self._active not in addresses:
            self._active = addresses[0]
        if self._source not in addresses:
            self._source = self._active
        for key in [key for key in self._clients if key[1] not in kept]:
            self._clients.pop(key).close()

    def close(self) -> None:
        """Close all connections; requests in flight fail."""
        if self._search is not None:
            self._search.cancel()
        for client in self._clients.values():
            client.close()

    async def _call(self, purpose: _Purpose, request: Asks[R_co], timeout_ms: int) -> R_co:
        assert isinstance(request, RpcRequest), request
        asked = self._with_log_id(request)
        deadline = Deadline.after(self._clock.now_ms(), timeout_ms)
        newest, failures, refused = request.version, 0, 0
        earlier: OperatingError | None = None
        refusals = MetadataRefusals(is_for_client=purpose is _Purpose.CLIENTS)
        while True:
            address = self._source if purpose is _Purpose.METADATA else self._active
            remaining_ms = max(1, deadline.remaining_ms(self._clock.now_ms()))
            version = min(newest, asked.version_at(self._level()))
            try:
                with self._suspecting(purpose, address):
                    response = await self._client(purpose, address).call(
                        asked, timeout_ms=remaining_ms, version=version
                    )
            except OperatingError as e:
                is_too_new = e.code is ErrorCode.UNSUPPORTED_VERSION
                if is_too_new and request.enough is not None and request.enough < version:
                    newest = request.enough
                    continue
                refused += e.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                refusals.note_failure(address, e)
                if not _is_about_the_voter(e) or refusals.is_certain(self._addresses):
                    raise
                if request.client_principal is not None and refused == _MAX_REFUSALS:
                    raise
                self._leave(purpose, address)
                if isinstance(e, RequestTimedOutError):
                    # The peer may have lost the connection. Kafka's client closes it, too.
                    self._client(purpose, address).drop("a request was not answered in time")
                if purpose is _Purpose.CONTROL and e.code is ErrorCode.REQUEST_TIMED_OUT:
                    self._give_up_poll(address)
                failures += 1
                asked = asked.again()
                wait_ms = self._wait_ms(failures)
                is_too_late = deadline.remaining_ms(self._clock.now_ms()) <= wait_ms
                if is_too_late or e.code is ErrorCode.REQUEST_TIMED_OUT:
                    failure = refusals.failure_at_deadline(e)
                    if isinstance(failure, RequestTimedOutError) and earlier is not None:
                        failure = _of_all_attempts(failure, earlier, request, timeout_ms)
                    raise failure from None
                earlier = e
                self._log.debug("controller_call_repeated", api=request.api, reason=str(e))
            else:
                assert isinstance(response, request.Response), response
                if address == self._active and _is_from_active(response):
                    self._note_answer(address)
                return response
            await asyncio.sleep(wait_ms / 1000)

    def _with_log_id(self, request: RpcRequest) -> RpcRequest:
        log_id = self._log_id()
        if log_id is None or request.metadata_log_id is not None:
            return request
        return request.model_copy(update={"metadata_log_id": log_id})

    def _client(self, purpose: _Purpose, address: Address) -> RpcClient:
        client = self._clients.get((purpose, address))
        if client is None:
            client = self._clients[purpose, address] = RpcClient(
                *address,
                backoff=self._backoff,
                connect_timeout_ms=self._request_timeout_ms,
                on_lost=partial(self._connection_lost, purpose),
                dialer=self._dialer,
            )
        return client

    def _connection_lost(self, purpose: _Purpose) -> None:
        """Call ``on_control_lost`` for a lost control connection, whichever controller it went to.

        The active controller may be another one by now.
        """
        if purpose is _Purpose.CONTROL and self.on_control_lost is not None:
            self.on_control_lost()

    def _give_up_poll(self, address: Address) -> None:
        """Drop the long-poll at a voter that answers no heartbeat, so that it moves to another
        voter."""
        client = self._clients.get((_Purpose.METADATA, address))
        if client is not None:
            client.drop("the controller does not answer")

    @contextlib.contextmanager
    def _suspecting(self, purpose: _Purpose, address: Address) -> Iterator[None]:
        """Search for another active voter while a request has no response for half its time limit.

        A metadata long-poll is exempt: it may be silent.
        """
        if purpose is _Purpose.METADATA or len(self._addresses) == 1:
            yield
            return
        loop = asyncio.get_running_loop()
        silence_s = self._request_timeout_ms / 2 / 1000
        timer = loop.call_later(silence_s, lambda: suspect())

        def suspect() -> None:
            nonlocal timer
            is_searching = self._search is not None and not self._search.done()
            if address == self._active and not is_searching:
                self._search = loop.create_task(self._find_another(address))
            timer = loop.call_later(silence_s / _SEARCHES_PER_SILENCE, suspect)

        try:
            yield
        finally:
            timer.cancel()

    async def _find_another(self, silent: Address) -> None:
        """Ask each voter except ``silent`` once whether it is active, and use the first that is."""
        # The request has no effect. Only the active controller answers it, after its previous
        # decisions are committed.
        question = self._with_log_id(ListPartitionReassignmentsRequestRpc(partitions={}))
        version = question.version_at(self._level())
        for address in [one for one in self._addresses if one != silent]:
            client = self._client(_Purpose.CLIENTS, address)
            try:
                await client.call(
                    question, timeout_ms=max(1, self._request_timeout_ms // 2), version=version
                )
            except OperatingError as e:
                host, port = address
                self._log.debug(
                    "controller_not_active",
                    node_id=self._node_ids.get(address),
                    host=host,
                    port=port,
                    reason=str(e),
                )
                continue
            if self._active == silent:
                self._active = address
                self._note_answer(address)
            return

    def _note_answer(self, address: Address) -> None:
        """Note that the voter at ``address`` is active. Requests that wait at other voters move to
        it."""
        self._source = address
        if self._answered == address:
            return
        self._answered = address
        for (_, voter), client in self._clients.items():
            if voter != address:
                client.drop("another controller is active")

    def _leave(self, purpose: _Purpose, address: Address) -> None:
        """Use the next voter from now on, unless another call has moved on from ``address``
        already."""
        if address not in self._addresses:
            return
        following = self._addresses[(self._addresses.index(address) + 1) % len(self._addresses)]
        if purpose is _Purpose.METADATA:
            if self._source == address:
                self._source = following
        elif self._active == address:
            self._active = following

    def _wait_ms(self, failures: int) -> int:
        rounds, within_round = divmod(failures, len(self._addresses))
        return 0 if within_round else self._backoff.wait_ms(rounds)


def _is_from_active(response: RpcResponse) -> bool:
    return response.is_active if isinstance(response, FetchMetadataResponse) else True


def _is_about_the_voter(error: OperatingError) -> bool:
    """Return whether the error concerns the voter that was asked, so that another voter may
    succeed."""
    return isinstance(error, ConnectionLostError) or error.code in (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        # Each controller has its own list of allowed hosts.
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        # One of the controllers was formatted as a separate quorum.
        ErrorCode.FOREIGN_METADATA,
    )


def _of_all_attempts(
    last: RequestTimedOutError, earlier: OperatingError, request: RpcRequest, timeout_ms: int
) -> RequestTimedOutError:
    """Return the time-out of a repeated request.

    The last attempt has only the time that the earlier ones left, which may be a few milliseconds.
    """
    return RequestTimedOutError(
        f"{request.api} had no response within {timeout_ms} ms: {last.message}; before it: "
        f"{earlier.message}"
    )


def forward_timeout_ms(asked_ms: int) -> int:
    """Return the time limit in ms of a forwarded request: ``asked_ms``, the client's, but at least
    1 and at most ``MAX_FORWARD_TIMEOUT_MS``.
    """
    return max(1, min(asked_ms, MAX_FORWARD_TIMEOUT_MS))
