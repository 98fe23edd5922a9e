"""A controller on loopback whose responses a test scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.core.ids import BrokerId, ConnectionId
from kraftjbod.core.loop.wall_guard import PossibleNow
from kraftjbod.core.node_config import Voter
from kraftjbod.net.rpc_server import rpc_server
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse

#: More event loop iterations than a queued connection of the kernel needs until it is accepted.
_TURNS = 10


async def let_in() -> None:
    """Run after the last connection attempt and before servers close.

    CPython 3.11 forgets, without closing it, a connection that was accepted but is not yet set up
    when its server closes (gh-109564).
    """
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class RealClock:
    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def possible_now(self) -> PossibleNow:
        return PossibleNow(self.wall_ms(), self.wall_ms())


class ScriptedController:
    """``answer`` returns the response or raises the error; ``seen`` lists the requests received."""

    def __init__(self, answer: Callable[[RpcRequest], RpcResponse]) -> None:
        self.answer = answer
        self.seen: list[RpcRequest] = []
        #: Requests wait for this event.
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._arrived = asyncio.Condition()
        self.server = rpc_server(host="127.0.0.1", port=0, handler=self._handle)

    async def wait_seen(self, wanted: Callable[[list[RpcRequest]], bool]) -> None:
        async with self._arrived:
            await self._arrived.wait_for(lambda: wanted(self.seen))

    def voter(self, node_id: int = 3000) -> Voter:
        return Voter(BrokerId(node_id), "127.0.0.1", self.server.port)

    async def _handle(self, request: RpcRequest, _connection: ConnectionId) -> RpcResponse:
        async with self._arrived:
            self.seen.append(request)
            self._arrived.notify_all()
        await self.may_answer.wait()
        return self.answer(request)


@asynccontextmanager
async def serving(*controllers: ScriptedController) -> AsyncIterator[None]:
    for controller in controllers:
        await controller.server.start()
    try:
        yield
    finally:
        await let_in()
        for controller in controllers:
            controller.may_answer.set()
            await controller.server.close(timeout_ms=1_000)


@asynccontextmanager
async def channel_to(
    *voters: Voter, request_timeout_ms: int = 2_000
) -> AsyncIterator[ControllerChannel]:
    channel = ControllerChannel(
        addresses=[(voter.host, voter.port) for voter in voters],
        clock=RealClock(),
        random_unit=lambda: 0.5,
        request_timeout_ms=request_timeout_ms,
        retry_backoff_ms=1,
        retry_backoff_max_ms=5,
    )
    try:
        yield channel
    finally:
        channel.close()
