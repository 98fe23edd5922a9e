"""``PeerLink``: one-way messages to a peer that is slow, refuses, or disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ConnectionId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.peer_link import PeerLink
from kraftjbod.net.rpc_server import rpc_server
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    RpcRequest,
    RpcResponse,
)


def _request(numbers: Sequence[int]) -> RpcRequest:
    """Encode the messages as digits in a field of a request."""
    digits = int("1" + "".join(map(str, numbers)))
    return AllocateProducerIdsRequest.model_validate({"broker_id": 1, "broker_epoch": digits})


class Peer:
    def __init__(self) -> None:
        self.came: list[str] = []
        self.may_answer = asyncio.Event()
        self.error: OperatingError | None = None
        self.server = rpc_server(host="127.0.0.1", port=0, handler=self._handle)

    async def _handle(self, request: RpcRequest, _connection: ConnectionId) -> RpcResponse:
        assert isinstance(request, AllocateProducerIdsRequest)
        self.came.append(str(request.broker_epoch)[1:])
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return AllocateProducerIdsResponse.model_validate(
            dict.fromkeys(AllocateProducerIdsResponse.model_fields, 4)
        )


async def test_peer_link_keeps_order_drops_the_oldest_and_reports_loss_and_refusal() -> None:
    peer = Peer()
    await peer.server.start()
    calls: list[object] = []
    link = PeerLink[int](
        "127.0.0.1",
        peer.server.port,
        make_request=_request,
        size_of=lambda _: 1,
        backoff=ExponentialBackoff(initial_ms=1, max_ms=1, random_unit=lambda: 0.5),
        timeout_ms=60_000,
        max_queued=5,
        max_queued_bytes=100,
        max_batch=3,
        max_batch_bytes=100,
        on_lost=lambda: calls.append("lost"),
        on_refused=calls.append,
    )
    link.send(0)
    while not peer.came:
        await asyncio.sleep(0.001)
    for number in range(1, 8):
        link.send(number)
    peer.may_answer.set()
    while len(peer.came) < 3:
        await asyncio.sleep(0.001)
    assert peer.came == ["0", "345", "67"]
    peer.error = OperatingError("not you", code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    link.send(8)
    while not calls:
        await asyncio.sleep(0.001)
    assert [str(one) for one in calls] == ["not you"]
    await peer.server.close(timeout_ms=1000)
    while "lost" not in calls:
        await asyncio.sleep(0.001)
    count = len(calls)
    link.send(9)
    while len(calls) == count:
        await asyncio.sleep(0.001)
    assert calls[-1] == "lost", "no peer listens"
    await link.close()


async def test_peer_link_unexpected_error_reaches_the_event_loop() -> None:
    """Otherwise the controller would continue, and never send messages to that peer again."""

    def make_request(_numbers: Sequence[int]) -> RpcRequest:
        raise ZeroDivisionError

    seen: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.put_nowait(context))
    link = PeerLink[int](
        "127.0.0.1",
        9,
        make_request=make_request,
        size_of=lambda _: 1,
        backoff=ExponentialBackoff(initial_ms=1, max_ms=1, random_unit=lambda: 0.5),
        timeout_ms=1000,
        max_queued=5,
        max_queued_bytes=100,
        max_batch=3,
        max_batch_bytes=100,
        on_lost=lambda: None,
        on_refused=lambda _: None,
    )
    link.send(0)
    assert isinstance((await seen.get())["exception"], ZeroDivisionError)
    await link.close()
