"""WIRE. The first connection to a cluster, with a helpful error for a wrong port or no response.

* If the first attempt fails or is slow, the tool reports the address that it tries, and repeats the
  attempt until a deadline.
* A controller's port given as a broker's, or the reverse, is detected by a request in the other
  protocol. Then the attempt ends at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self

from kraftjbod.cli.clients.cluster_client import ClusterClient, may_pass, parse_bootstrap
from kraftjbod.cli.clients.config_admin import ConfigResource, ResourceType, describe_configs
from kraftjbod.core.errors import (
    ConnectionLostError,
    KraftJbodError,
    OperatingError,
    RequestTimedOutError,
)
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.dialer import PLAIN, Dialer

#: After this time without a response, the attempt is reported.
_SILENT_MS: Final = 1_000
#: Time for an answer in the other protocol.
_ASK_OTHERWISE_MS: Final = 1_000
_BACKOFF_MS: Final = 50
_BACKOFF_MAX_MS: Final = 1_000
_VOTERS: Final = "controller.quorum.voters"
_NO_REASON: Final = "the connection is taken, and no answer comes"

Address = tuple[str, int]
Report = Callable[[str], None]


class WrongPortError(KraftJbodError):
    """The port is not a broker's, or not a controller's; the message names the right one."""


async def reach(
    client: ClusterClient, addresses: Sequence[Address], *, timeout_ms: int, report: Report
) -> None:
    """Fetch the brokers of the cluster, repeatedly until a broker responds.

    :param addresses: the bootstrap addresses of ``client``.
    :param report: prints a line about a slow or failed attempt.
    :raises WrongPortError: a controller listens at one of ``addresses``, and no broker responds.
    :raises ConnectionLostError: no broker responds within ``timeout_ms``.
    :raises OperatingError: an error that a retry cannot cure, such as a failed authentication.
    """
    named = ", ".join(f"{host}:{port}" for host, port in addresses)
    with _Trying(named, timeout_ms, report) as trying:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await _try(client, addresses, trying)
        except TimeoutError as e:
            raise ConnectionLostError(
                f"no broker answered at {named} within {timeout_ms / 1000:g} s: "
                f"{trying.reason or _NO_REASON}"
            ) from e


async def _try(client: ClusterClient, addresses: Sequence[Address], trying: _Trying) -> None:
    backoff, failures = _backoff(), 0
    while True:
        try:
            # Only the brokers, no topics.
            await client.refresh_metadata([])
        except OperatingError as e:
            if not may_pass(e):
                raise
            trying.reason = e.message
        else:
            return
        if not failures:
            await _refuse_controllers(addresses, client.dialer)
            trying.say()
        failures += 1
        await asyncio.sleep(backoff.wait_ms(failures) / 1000)


class _Trying:
    """Reports once which address is tried, if an attempt fails or takes a second.

    ``reason`` is the latest failure.
    """

    def __init__(self, named: str, timeout_ms: int, report: Report) -> None:
        self._text = f"trying {named} for {timeout_ms / 1000:g} s"
        self._report = report
        self._is_reported = False
        self.reason = ""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_SILENT_MS / 1000, self.say)
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def say(self) -> None:
        if not self._is_reported:
            self._report(f"{self._text}: {self.reason}" if self.reason else self._text)
        self._is_reported = True


# --- wrong port ----------------------------------------------------------------------------------


async def _refuse_controllers(addresses: Sequence[Address], dialer: Dialer) -> None:
    answers = await asyncio.gather(*(is_controller(host, port, dialer) for host, port in addresses))
    if any(answers):
        host, port = addresses[answers.index(True)]
        raise WrongPortError(
            f"{host}:{port} is a controller's port, and this needs a broker's: what `listeners` "
            "says in a broker's configuration, 9092 by default"
        )


async def is_controller(host: str, port: int, dialer: Dialer = PLAIN) -> bool:
    """Return whether a kraftjbod controller responds at this address, active or not. False if the
    connection fails or no response arrives in time."""
    # Importing the RPC's messages takes a tenth of a second, and brokers do not need them.
    from kraftjbod.net.rpc_client import RpcClient
    from kraftjbod.protocol.rpc_config_messages import (
        ListPartitionReassignmentsRequestRpc,
    )

    client = RpcClient(host, port, backoff=_backoff(), dialer=dialer)
    try:
        nothing = ListPartitionReassignmentsRequestRpc(partitions={})
        await client.call(nothing, timeout_ms=_ASK_OTHERWISE_MS)
    except (ConnectionLostError, RequestTimedOutError):
        return False
    except OperatingError:
        return True  # The controller is not active, but it answered.
    finally:
        client.close()
    return True


@asynccontextmanager
async def controllers_at(addresses: str, *, timeout_ms: int, report: Report) -> AsyncIterator[None]:
    """Context for requests to the controllers at ``HOST:PORT,...``: limits their time, explains
    errors.

    :param report: prints a line if the requests take longer than a second.
    :raises WrongPortError: the connection was lost, and a broker listens at one of the addresses.
    :raises ConnectionLostError: no response within ``timeout_ms``.
    """
    with _Trying(addresses, timeout_ms, report):
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                yield
        except ConnectionLostError as e:
            await refuse_brokers(addresses)
            raise ConnectionLostError(f"no controller answered at {addresses}: {e}") from e
        except TimeoutError as e:
            raise ConnectionLostError(
                f"no controller answered at {addresses} within {timeout_ms / 1000:g} s"
            ) from e


async def refuse_brokers(addresses: str) -> None:
    """Check that no broker listens at ``addresses``.

    :raises WrongPortError: a broker does; names the addresses of the controllers.
    """
    for host, port in parse_bootstrap(addresses):
        wanted = await _controllers_of(f"{host}:{port}")
        if wanted is not None:
            raise WrongPortError(
                f"{host}:{port} is a broker's port, and this needs a controller's: {wanted}"
            )


async def _controllers_of(address: str) -> str | None:
    """Return the controllers' addresses according to the broker at ``address``, or a hint about
    them.

    None means that no broker responds.
    """
    somewhere = f"what `{_VOTERS}` says in the broker's configuration"
    async with ClusterClient(address, request_timeout_ms=_ASK_OTHERWISE_MS) as client:
        try:
            metadata = await client.refresh_metadata([])
        except OperatingError:
            return None
        ids = sorted(metadata.brokers)
        if not ids:
            return somewhere
        resource = ConfigResource(ResourceType.BROKER, str(ids[0]))
        try:
            entries = (await describe_configs(client, [resource]))[resource]
        except OperatingError:
            return somewhere
    voters = entries[_VOTERS].value if _VOTERS in entries else None
    named = [voter.partition("@")[2] for voter in (voters or "").split(",") if "@" in voter]
    return ",".join(named) or somewhere


def _backoff() -> ExponentialBackoff:
    return ExponentialBackoff(
        initial_ms=_BACKOFF_MS, max_ms=_BACKOFF_MAX_MS, random_unit=random.random
    )
