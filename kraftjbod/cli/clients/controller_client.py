"""WIRE. A small client of the controllers, for requests that brokers do not accept.

An example is a request about the settings of a dead broker. The client uses the RPC of kraftjbod's
controllers, which Kafka's controllers do not understand.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from kraftjbod.core.errors import (
    ConfigError,
    ConnectionLostError,
    ErrorCode,
    OperatingError,
)
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.node_config import Endpoint
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.protocol.rpc_messages import RpcRequest
from kraftjbod.protocol.rpc_quorum_messages import (
    DescribeQuorumRequestRpc,
    DescribeQuorumResponseRpc,
)

_BACKOFF_MS: Final = 50
_BACKOFF_MAX_MS: Final = 1_000


class ControllerClient:
    """Sends requests to the active controller.

    The given addresses may be those of some controllers only: a controller that is not active names
    the leader.
    """

    def __init__(
        self,
        addresses: str,
        *,
        timeout_ms: int,
        random_unit: Callable[[], float] = random.random,
        dialer: Dialer = PLAIN,
    ) -> None:
        """:param addresses: ``HOST:PORT,...`` of some controllers.
        :param dialer: opens the connections.
        :raises ConfigError: an address is malformed.
        """
        self._timeout_ms = timeout_ms
        self._dialer = dialer
        self._backoff = ExponentialBackoff(
            initial_ms=_BACKOFF_MS, max_ms=_BACKOFF_MAX_MS, random_unit=random_unit
        )
        #: The clients, in the order in which they are tried.
        self._clients: dict[tuple[str, int], RpcClient] = {}
        for address in filter(None, (part.strip() for part in addresses.split(","))):
            host, colon, port = address.rpartition(":")
            if not (colon and host and port.isdecimal()):
                raise ConfigError(f"{address!r} is no controller: write HOST:PORT")
            self._add(host.strip("[]"), int(port))
        if not self._clients:
            raise ConfigError("no controller is named: write HOST:PORT")

    def _add(self, host: str, port: int) -> RpcClient:
        client = RpcClient(host, port, backoff=self._backoff, dialer=self._dialer)
        return self._clients.setdefault((host, port), client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for client in self._clients.values():
            client.close()

    async def call(self, request: RpcRequest) -> Any:
        """Send ``request`` to the active controller; return the response, a ``request.Response``.

        The given controllers are asked in order. One that does not respond is skipped after its
        share of the timeout, the last one after the whole timeout. If none of them is active, the
        leader that they name is asked too.

        :raises OperatingError: the active controller refuses. Or no controller is active; then the
            timeout of a silent controller, or else the error of the last one.
        """
        share_ms = max(1, self._timeout_ms // len(self._clients))
        silent: OperatingError | None = None
        following: list[RpcClient] = []
        *others, last = self._clients.values()
        for client in (*others, last):
            timeout_ms = self._timeout_ms if client is last else share_ms
            try:
                return await client.call(request, timeout_ms=timeout_ms)
            except OperatingError as e:
                if not _may_pass(e):
                    raise
                error = e
                if e.code is ErrorCode.REQUEST_TIMED_OUT:
                    silent = e
                elif e.code is ErrorCode.NOT_CONTROLLER:
                    following.append(client)
        leader = await self._unnamed_leader(following, share_ms)
        if leader is None:
            raise silent or error
        return await leader.call(request, timeout_ms=self._timeout_ms)

    async def _unnamed_leader(
        self, following: Sequence[RpcClient], timeout_ms: int
    ) -> RpcClient | None:
        """Return a client of the leader that followers name.

        None if they name no leader, or one that was asked already.
        """
        for client in following:
            try:
                quorum = await client.call(
                    DescribeQuorumRequestRpc(of_any=True), timeout_ms=timeout_ms
                )
            except OperatingError:
                continue
            assert isinstance(quorum, DescribeQuorumResponseRpc), quorum
            for voter in quorum.voters:
                if voter.node_id == quorum.leader_id and voter.endpoints:
                    endpoint = Endpoint.parse(voter.endpoints[0])
                    address = endpoint.host, endpoint.port
                    return None if address in self._clients else self._add(*address)
        return None


def _may_pass(error: OperatingError) -> bool:
    """Return whether another controller may accept the request."""
    return isinstance(error, ConnectionLostError) or error.code in (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        # Each controller checks hosts by its own file.
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    )
