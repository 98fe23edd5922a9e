"""WIRE. A small client of the controllers, for what no broker can be asked: a dead broker's
settings.

Speaks the RPC of kraftjbod's controllers; Kafka's controllers do not understand it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from kraftjbod.core.errors import (
    ConfigError,
    ConnectionLostError,
    ErrorCode,
    OperatingError,
)
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.protocol.rpc_messages import RpcRequest

_BACKOFF_MS: Final = 50
_BACKOFF_MAX_MS: Final = 1_000


class ControllerClient:
    """``call(request)`` asks the active one of the controllers named by ``HOST:PORT,...``."""

    def __init__(
        self,
        addresses: str,
        *,
        timeout_ms: int,
        random_unit: Callable[[], float] = random.random,
    ) -> None:
        """:raises ConfigError: if an address is none."""
        self._timeout_ms = timeout_ms
        self._clients: list[RpcClient] = []
        for address in filter(None, (part.strip() for part in addresses.split(","))):
            host, colon, port = address.rpartition(":")
            if not (colon and host and port.isdecimal()):
                raise ConfigError(f"{address!r} is no controller: write HOST:PORT")
            backoff = ExponentialBackoff(
                initial_ms=_BACKOFF_MS, max_ms=_BACKOFF_MAX_MS, random_unit=random_unit
            )
            self._clients.append(RpcClient(host.strip("[]"), int(port), backoff=backoff))
        if not self._clients:
            raise ConfigError("no controller is named: write HOST:PORT")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for client in self._clients:
            client.close()

    async def call(self, request: RpcRequest) -> Any:
        """An instance of ``request.Response``, from the first that is active.

        One that stands still is left for the next after its share of the time.

        :raises OperatingError: the controller's refusal; that one did not answer, if no other one
            is active; or what the last of them said.
        """
        share_ms = max(1, self._timeout_ms // len(self._clients))
        silent: OperatingError | None = None
        *others, last = self._clients
        for client in others:
            try:
                return await client.call(request, timeout_ms=share_ms)
            except OperatingError as e:
                if not _may_pass(e):
                    raise
                if e.code is ErrorCode.REQUEST_TIMED_OUT:
                    silent = e
        try:
            return await last.call(request, timeout_ms=self._timeout_ms)
        except OperatingError as e:
            if silent is not None and _may_pass(e):
                raise silent from e
            raise


def _may_pass(error: OperatingError) -> bool:
    """Another controller may do better."""
    return isinstance(error, ConnectionLostError) or error.code in (
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
    )
